"""Attention Grad-CAM (the baseline of Chefer et al.), cell by cell."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def attention_gradcam(attention: Array, gradient: Array, cells: list[tuple[int, int]] | None = None) -> Array:
    """attention, gradient: (H, Q, K) of one layer of one input; ``cells``: where the gradient is averaged (all)."""
    heads, queries, keys = attention.shape
    where = cells or [(i, j) for i in range(queries) for j in range(keys)]
    weight = [sum(gradient[h, i, j] for i, j in where) / len(where) for h in range(heads)]
    cam = np.zeros((queries, keys))
    for i in range(queries):
        for j in range(keys):
            total = sum(weight[h] * attention[h, i, j] for h in range(heads))
            cam[i, j] = max(0.0, total / heads)
    return cam
