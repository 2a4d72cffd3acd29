"""Scores as a forecast of what random changes do: Bhatt et al. 2020, Yeh et al. 2019; one set at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Predict = Callable[[set[int]], float]


def faithfulness_correlation(predict: Predict, scores: Sequence[float], sets: Sequence[set[int]]) -> float:
    everything = set(range(len(scores)))
    sums = [sum(scores[i] for i in gone) for gone in sets]
    falls = [predict(everything) - predict(everything - gone) for gone in sets]
    mean_s, mean_f = sum(sums) / len(sums), sum(falls) / len(falls)
    above = sum((s - mean_s) * (f - mean_f) for s, f in zip(sums, falls, strict=True))
    return above / math.sqrt(sum((s - mean_s) ** 2 for s in sums) * sum((f - mean_f) ** 2 for f in falls))


def infidelity(predict: Predict, scores: Sequence[float], sets: Sequence[set[int]], normalize: bool) -> float:
    everything = set(range(len(scores)))
    pairs = []
    for gone in sets:
        foretold = sum(scores[i] for i in gone)  # Iᵀφ with I = 1 at what goes
        pairs.append((foretold, predict(everything) - predict(everything - gone)))
    beta = sum(a * b for a, b in pairs) / sum(a * a for a, b in pairs) if normalize else 1.0
    return sum((beta * a - b) ** 2 for a, b in pairs) / len(pairs)


def gini(scores: Sequence[float]) -> float:
    """Σ_i Σ_j ||φ_i| - |φ_j|| / (2 n Σ|φ|)."""
    sizes = [abs(s) for s in scores]
    apart = sum(abs(a - b) for a in sizes for b in sizes)
    return apart / (2 * len(sizes) * sum(sizes))
