"""Sums of columns with unused ones: the sign of the sum of three columns out of eight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.known_truth.task import Array, Change, Classifier, Inputs, Planted

COLUMNS, USED = 8, (1, 4, 6)
SMALLEST, LARGEST = 0.5, 1.5  # of every number, without its sign: no column is zero, so each of the three matters
MARGIN = 0.5  # of the sum: no row lies on the border


def values(rng: np.random.Generator, *shape: int) -> Array:
    sizes = rng.uniform(SMALLEST, LARGEST, shape)
    return np.where(rng.random(shape) < 0.5, -sizes, sizes).astype(np.float32)


def total(rows_IC: Array) -> Array:
    return rows_IC[:, USED].sum(1)


def draw(rng: np.random.Generator, count: int) -> Array:
    """(I, C) rows whose sum is not near zero."""
    rows = values(rng, 4 * count + 16, COLUMNS)
    return rows[np.abs(total(rows)) >= MARGIN][:count]


def with_other_sign(rows_IC: Array, column: int) -> tuple[Array, Array]:
    """The rows with one column changed so that the sum changes its sign, and where that is possible."""
    sign = np.sign(total(rows_IC))
    rest = (total(rows_IC) - rows_IC[:, column]) * sign  # what the other two say, for what was said before
    needed = np.clip(rest + MARGIN, SMALLEST, None)
    changed = rows_IC.copy()
    changed[:, column] = -sign * np.clip(needed, None, LARGEST)
    return changed, needed <= LARGEST


def tensors(rows_IC: Array) -> Inputs:
    return {"numerical": torch.from_numpy(rows_IC)}


@dataclass(frozen=True)
class Columns(Classifier):
    """An FT-Transformer."""

    blocks: int = 2
    name: str = "columns"
    modality: str = "table"
    steps: int = 2500
    rate: float = 1e-3

    def model(self) -> nn.Module:
        from rtdl_revisiting_models import FTTransformer

        return FTTransformer(
            n_cont_features=COLUMNS,
            cat_cardinalities=[],
            d_out=2,
            n_blocks=self.blocks,
            d_block=32,
            attention_n_heads=4,
            attention_dropout=0.0,
            ffn_d_hidden=None,
            ffn_d_hidden_multiplier=4 / 3,
            ffn_dropout=0.0,
            residual_dropout=0.0,
        )

    def processor(self) -> Any:
        from whyformer import Table

        names = [f"column {i}" for i in range(COLUMNS)]
        reference = draw(np.random.default_rng(999), 256)  # what an absent column is filled from
        return Table(numerical=names, classes=("negative", "positive"), reference=reference)

    def batch(self, rng: np.random.Generator, count: int) -> tuple[Inputs, Tensor]:
        rows = draw(rng, count)
        return tensors(rows), torch.from_numpy((total(rows) > 0).astype(np.int64))

    def held_out(self, rng: np.random.Generator, count: int) -> Planted:
        rows = draw(rng, count)
        redrawn = values(rng, count, COLUMNS)
        redrawn[:, USED] = rows[:, USED]
        changes = {}
        for column in USED:
            changed, possible = with_other_sign(rows, column)
            changes[f"column {column}"] = Change(tensors(changed), possible)
        return Planted(
            inputs=tensors(rows),
            asked_I=(total(rows) > 0).astype(np.int64),
            cause_IU=np.tile(np.isin(np.arange(COLUMNS), USED), (count, 1)),
            counted_IU=np.ones((count, COLUMNS), bool),
            changes=changes,
            rest_redrawn=tensors(redrawn),
        )

    def logits(self, model: nn.Module, inputs: Inputs) -> Tensor:
        return model(inputs["numerical"], None)
