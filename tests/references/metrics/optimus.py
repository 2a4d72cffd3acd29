"""Mylonas et al. 2022 (Optimus): truthfulness, part by part."""

from __future__ import annotations

from collections.abc import Sequence


def truthfulness(weights: Sequence[float], drops: Sequence[float]) -> float:
    total = 0.0
    for weight, drop in zip(weights, drops, strict=True):
        if weight > 0:
            total += drop
        elif weight < 0:
            total -= drop
        else:  # neutral: a penalty
            total -= abs(drop)
    return total


def ranked_truthfulness(weights: Sequence[float], drops: Sequence[float]) -> float:
    total = 0.0
    for weight, drop in zip(weights, drops, strict=True):
        # Rank 1 is the largest |w|; equal ones share the worst rank among them.
        rank = sum(abs(other) >= abs(weight) for other in weights)
        if weight > 0:
            total += drop / rank
        elif weight < 0:
            total -= drop / rank
        else:
            total -= abs(drop) / rank
    return total
