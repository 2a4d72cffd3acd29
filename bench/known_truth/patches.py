"""Planted patches: one of three marks in one cell of a picture says its class."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.known_truth.backgrounds import GRID, PATCH, SIDE, cut
from bench.known_truth.task import Array, Change, Classifier, Inputs, Planted, alone

_row, _column = np.mgrid[:PATCH, :PATCH]
MARKS = np.stack([(_row // 2) % 2, (_column // 2) % 2, ((_row + _column) // 2) % 2]).astype(
    np.float32
)  # stripes: ─ │ ╱
CELLS = GRID * GRID


@dataclass(frozen=True)
class Pictures:
    background_IXYC: Array
    cell_I: Array
    mark_I: Array
    color_IC: Array  # of the bright stripes; the dark ones are black

    def drawn(self) -> Inputs:
        pictures = self.background_IXYC.copy()
        for picture, cell, mark, color in zip(pictures, self.cell_I, self.mark_I, self.color_IC, strict=True):
            top, left = PATCH * (cell // GRID), PATCH * (cell % GRID)
            picture[top : top + PATCH, left : left + PATCH] = MARKS[mark][:, :, None] * color
        return pixels(pictures)


def pixels(pictures_IXYC: Array) -> Inputs:
    """As a vision transformer reads them: channels first, about -1…1."""
    return {"pixel_values": torch.from_numpy(np.ascontiguousarray(pictures_IXYC.transpose(0, 3, 1, 2))) * 2 - 1}


def draw(rng: np.random.Generator, count: int, photos: str | None, held_out: bool = False) -> Pictures:
    return Pictures(
        cut(rng, photos, count, held_out),
        rng.integers(0, CELLS, count),
        rng.integers(0, len(MARKS), count),
        rng.uniform(0.6, 1, (count, 3)).astype(np.float32),
    )


def vit(classes: int, side: int = SIDE, width: int = 64, layers: int = 2) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=side,
        patch_size=PATCH,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=classes,
    )
    return ViTForImageClassification(config)


@dataclass(frozen=True)
class Patches(Classifier):
    """A ViT of two layers, 36 patches."""

    photos: str | None = None
    name: str = "patches"
    modality: str = "image"
    steps: int = 2500
    rate: float = 1e-3

    def model(self) -> nn.Module:
        return vit(len(MARKS))

    def processor(self) -> Any:
        return None

    def batch(self, rng: np.random.Generator, count: int) -> tuple[Inputs, Tensor]:
        drawn = draw(rng, count, self.photos)
        return drawn.drawn(), torch.from_numpy(drawn.mark_I)

    def held_out(self, rng: np.random.Generator, count: int) -> Planted:
        drawn = draw(rng, count, self.photos, held_out=True)
        other = (drawn.mark_I + rng.integers(1, len(MARKS), count)) % len(MARKS)
        cause = np.arange(CELLS) == drawn.cell_I[:, None]
        again = replace(drawn, background_IXYC=cut(rng, self.photos, count, held_out=True))
        return Planted(
            inputs=drawn.drawn(),
            asked_I=drawn.mark_I,
            cause_IU=cause,
            counted_IU=np.ones_like(cause),
            group_I=alone(count),
            changes={"mark": Change(replace(drawn, mark_I=other).drawn(), np.ones(count, bool))},
            rest_redrawn=again.drawn(),
        )

    def logits(self, model: nn.Module, inputs: Inputs) -> Tensor:
        return model(**inputs).logits
