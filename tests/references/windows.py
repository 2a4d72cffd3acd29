"""Swin's windows, shift and patch merging written out in loops, one image: maps over the whole grid of each stage."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def window_tokens(side: int, window: int, shift: int) -> list[list[int]]:
    """Token numbers in each window of a square grid that was rolled up and left by ``shift``."""
    found = []
    for top in range(0, side, window):
        for left in range(0, side, window):
            places = [(top + r, left + c) for r in range(window) for c in range(window)]
            found.append([((r + shift) % side) * side + (c + shift) % side for r, c in places])
    return found


def whole(maps: Array, side: int, window: int, shift: int) -> Array:
    """(windows, n, n) maps → (N, N)."""
    result = np.zeros((side * side, side * side))
    for number, tokens in enumerate(window_tokens(side, window, shift)):
        for i, row in enumerate(tokens):
            for j, column in enumerate(tokens):
                result[row, column] = maps[number, i, j]
    return result


def merging(side: int) -> Array:
    """(N/4, N): each merged token is the mean of a square of four."""
    half = side // 2
    result = np.zeros((half * half, side * side))
    for r in range(half):
        for c in range(half):
            for dr in (0, 1):
                for dc in (0, 1):
                    result[r * half + c, (2 * r + dr) * side + 2 * c + dc] = 0.25
    return result
