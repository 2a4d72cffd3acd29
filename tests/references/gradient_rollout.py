"""Gradient rollout (vit-explain), cell by cell, in the right layer order and with rows that sum to one."""

from __future__ import annotations

import numpy as np

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
