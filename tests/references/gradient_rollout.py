"""Gradient rollout (vit-explain), cell by cell, in the right layer order and with rows that sum to one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.references.eager_attention import reported, reported_by_columns
from tests.references.twin import FAMILY, TARGET, Setting, Twin, each

Array = np.ndarray


def gradient_rollout(
    attention: list[Array],
    gradient: list[Array],
    fusion: str = "mean",
    discard: float = 0.0,
    protected: list[int] | None = None,
    first_query: int = 0,
) -> Array:
    """attention, gradient: per layer (H, Q, K) of one input. The rolled-out map (Q of the last layer, K)."""
    tokens = attention[0].shape[-1]
    rolled = np.eye(tokens)
    for a, g in zip(attention, gradient, strict=True):
        heads, queries, keys = a.shape
        fused = np.zeros((queries, keys))
        for i in range(queries):
            for j in range(keys):
                products = [a[h, i, j] * g[h, i, j] for h in range(heads)]
                reduced = {"mean": np.mean, "max": np.max, "min": np.min}[fusion](products)
                fused[i, j] = max(0.0, reduced)
        offset = first_query if queries < keys else 0
        discard_smallest(fused, discard, protected or [], offset)
        step = np.zeros((queries, keys))
        for i in range(queries):
            for j in range(keys):
                step[i, j] = (fused[i, j] + (1.0 if j == i + offset else 0.0)) / 2
            step[i] = step[i] / step[i].sum()
        rolled = step @ rolled
    return rolled


def discard_smallest(fused: Array, share: float, protected: list[int], offset: int = 0) -> None:
    """Zero the floor(share·cells) smallest cells in place; cells in a protected row or column stay."""
    queries, keys = fused.shape
    cells = sorted((fused[i, j], i, j) for i in range(queries) for j in range(keys))
    for _, i, j in cells[: int(share * queries * keys)]:
        if i + offset not in protected and j not in protected:
            fused[i, j] = 0.0


def expected(
    name: str, row: int, heads: str = "mean", discard: float = 0.0, start_layer: int = 0, protect_special: bool = False
) -> dict[str, Any]:
    if name == "rtdl_ft_transformer":
        known = reported_by_columns(name, row, TARGET)
        assert known.attention[-1].shape[1] == 1  # a last layer of one row
        return {"scores": gradient_rollout(known.attention, known.gradient, heads, discard)[0]}
    known = reported(name, row, TARGET)
    whole = gradient_rollout(
        known.attention[start_layer:], known.gradient[start_layer:], heads, discard, [0] if protect_special else None
    )
    return {"matrix": whole, "scores": whole[known.row], "value": pytest.approx(known.logit, abs=1e-4)}


CHOICES: list[dict[str, Any]] = [
    {},
    {"heads": "max"},
    {"heads": "min"},
    {"discard": 0.6},
    {"discard": 0.6, "heads": "max"},
    {"start_layer": 1},
]
TWIN = Twin(
    expected,
    [
        *each(FAMILY, CHOICES),
        Setting("rtdl_ft_transformer", {"discard": 0.3}),
        # A ViT's class token is the only special one: with everything else discarded its row and column are left.
        *each(("vit",), [{"discard": 0.9, "protect_special": p} for p in (False, True)]),
    ],
)
