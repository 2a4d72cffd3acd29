"""Grad-SAM (Barkan et al. 2021): r_i = 1/(L·M·N) Σ_l Σ_m Σ_j A_ij · ReLU(G_ij)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.references.eager_attention import quantities_of
from tests.references.twin import FAMILY, Twin, each, relative_to_one


def grad_sam(attention: Sequence[Tensor], gradient: Sequence[Tensor], reduce: str = "query") -> Tensor:
    layers, heads, n = len(attention), attention[0].shape[0], attention[0].shape[-1]
    scores = torch.zeros(n, dtype=torch.float64)
    for a, g in zip((a.tolist() for a in attention), (g.tolist() for g in gradient), strict=True):
        for m in range(heads):
            for i in range(n):
                for j in range(n):
                    cell = a[m][i][j] * max(0.0, g[m][i][j])
                    scores[i if reduce == "query" else j] += cell
    return scores / (layers * heads * n)


def expected(name: str, row: int, reduce: str, layers: str | int = "mean") -> dict[str, Tensor]:
    q = quantities_of(name, row)
    chosen = slice(None) if layers == "mean" else slice(-1, None) if layers == "last" else slice(layers, layers + 1)
    return {"scores": grad_sam(q.attention[chosen], q.gradient[chosen], reduce)}


CHOICES: list[dict[str, Any]] = [
    {"reduce": "query"},
    {"reduce": "key"},
    {"reduce": "key", "layers": 0},
    {"reduce": "query", "layers": "last"},
]
TWIN = Twin(expected, each(FAMILY, CHOICES, double=False, compare=relative_to_one))
