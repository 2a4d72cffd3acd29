"""Attention × gradient, entry by entry; then read as raw attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.references.raw_attention import raw_attention


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
        layer = torch.zeros_like(a)
        for h in range(a.shape[0]):
            for i in range(a.shape[1]):
                for j in range(a.shape[2]):
                    layer[h, i, j] = max(0.0, float(a[h, i, j] * g[h, i, j]))
        raised.append(layer)
    return raw_attention(raised, row, layers, heads, read)
