"""Value zeroing (Mohebbi et al. 2023): zero a token's value in one layer, run the model, compare the block's output."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tests.models import CASES
from tests.references.blocks import with_value_zeroed
from tests.references.twin import FAMILY, Twin, each

Distance = Callable[[Tensor, Tensor], Tensor]


def cosine(changed: Tensor, original: Tensor) -> Tensor:
    return 1 - torch.dot(changed, original) / (changed.norm() * original.norm())


def euclidean(changed: Tensor, original: Tensor) -> Tensor:
    return (changed - original).norm()


@cache
def layer_map(name: str, index: int, layer: int, distance: Distance = cosine) -> Tensor:
    """(N, N) distances before normalisation."""
    original = with_value_zeroed(name, index, layer, None)
    n = len(original)
    scores = torch.zeros(n, n, dtype=torch.float64)
    for token in range(n):
        changed = with_value_zeroed(name, index, layer, token)
        for i in range(n):
            scores[i, token] = distance(changed[i], original[i])
    return scores


def normalised(scores: Tensor) -> Tensor:
    shares = scores.clone()
    for i in range(len(scores)):
        shares[i] = scores[i] / scores[i].sum()
    return shares


def value_zeroing(name: str, index: int, layers: int, distance: Distance = cosine) -> Tensor:
    whole = normalised(layer_map(name, index, 0, distance))
    for layer in range(1, layers):
        whole = normalised(layer_map(name, index, layer, distance)) @ whole
    return whole


def expected(name: str, row: int, distance: str, layers: str | int = "product") -> dict[str, Tensor]:
    measure = {"cosine": cosine, "euclidean": euclidean}[distance]
    maps = [normalised(layer_map(name, row, layer, measure)) for layer in range(2)]
    whole = value_zeroing(name, row, 2, measure)
    if layers != "product":
        whole = (maps[0] + maps[1]) / 2 if layers == "mean" else maps[layers]
    return {
        "layers": torch.stack(maps),
        "matrix": whole,
        "scores": whole[0 if CASES[name].readout == 0 else -1],
    }


CHOICES: list[dict[str, Any]] = [
    {"distance": "cosine"},
    {"distance": "euclidean"},
    {"distance": "cosine", "layers": 0},
    {"distance": "cosine", "layers": "mean"},
]
TWIN = Twin(expected, each(FAMILY, CHOICES, layers=True))
