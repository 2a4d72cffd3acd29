"""Attention × gradient, entry by entry; then read as raw attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.references.eager_attention import quantities_of
from tests.references.raw_attention import READINGS, raw_attention
from tests.references.twin import FAMILY, Setting, Twin, absolute


def attention_x_gradient(
    attention: Sequence[Tensor],
    gradient: Sequence[Tensor],
    row: int,
    layers: str | int | Sequence[int] = "last",
    heads: str | int | Sequence[int] = "mean",
    read: str = "row",
) -> Tensor:
    raised = []
    for a, g in zip(attention, gradient, strict=True):
        heads_of, slopes = a.tolist(), g.tolist()  # plain numbers: indexing a tensor takes a thousand times as long
        for h in range(a.shape[0]):
            for i in range(a.shape[1]):
                for j in range(a.shape[2]):
                    heads_of[h][i][j] = max(0.0, heads_of[h][i][j] * slopes[h][i][j])
        raised.append(torch.tensor(heads_of, dtype=a.dtype))
    return raw_attention(raised, row, layers, heads, read)


def expected(name: str, row: int, **options: Any) -> dict[str, Tensor]:
    q = quantities_of(name, row)
    return {"scores": attention_x_gradient(q.attention, q.gradient, q.row, **options)}


# Every choice of three options, on one model each: the diagonals of their grid give each value each model.
TWIN = Twin(
    expected,
    [
        Setting(
            FAMILY[(i + j + k) % len(FAMILY)],
            {"layers": layers, "heads": heads, "read": read},
            double=False,
            compare=absolute,
        )
        for i, layers in enumerate(("last", "mean", "product", 0, [0, 1]))
        for j, heads in enumerate(("mean", 1))
        for k, read in enumerate(READINGS)
    ],
)
