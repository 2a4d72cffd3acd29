"""Zhao & Aletras 2023 and Huang & Chan 2026: erased by chance, as the scores say; one draw at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tests.references.metrics.twin import Facts, MetricTwin


def scaled(scores: Sequence[float]) -> list[float]:
    return [(s - min(scores)) / (max(scores) - min(scores)) for s in scores]


def with_mean(weights: Sequence[float], pi: float) -> list[float]:
    """min(1, c w) of mean π, c by bisection; where the positive weights cannot carry it, the others share the rest."""
    positive = sum(w > 0 for w in weights)
    if positive <= pi * len(weights):
        others = (pi * len(weights) - positive) / (len(weights) - positive) if positive < len(weights) else 0.0
        return [1.0 if w > 0 else others for w in weights]
    low, high = 0.0, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        if sum(min(1.0, middle * w) for w in weights) < pi * len(weights):
            low = middle
        else:
            high = middle
    return [min(1.0, low * w) for w in weights]


def lost(whole: float, nothing: float, said: Sequence[float]) -> float:
    """Soft comprehensiveness, normalised by what the empty input loses."""
    if whole <= nothing:
        return math.nan
    return sum(max(0.0, whole - p) for p in said) / len(said) / (whole - nothing)


def whole_parts(facts: Facts, keep_high: bool, pi: Sequence[float], samples: int, value: str) -> float:
    everything, says = set(range(len(facts.scores))), facts.says[value]
    weights = [a if keep_high else 1 - a for a in scaled(facts.scores)]
    said = []
    for share in pi:
        probabilities = with_mean(weights, share)
        for numbers in facts.uniform(samples):
            said.append(says({i for i in everything if numbers[i] < probabilities[i]}))
    share_lost = lost(says(everything), says(set()), said)
    return 1 - share_lost if keep_high else share_lost


PI = (0.2, 0.4, 0.6, 0.8)
CHOICES: list[dict[str, Any]] = [{}, {"pi": (0.3,), "samples": 4}, {"value": "logit"}]
TWINS = {
    "pi_soft_nc": MetricTwin(
        lambda facts, pi=PI, samples=10, value="probability": whole_parts(facts, False, pi, samples, value),
        CHOICES,
        {"abs": 1e-9},
        at_least=2,
    ),
    "pi_soft_ns": MetricTwin(
        lambda facts, pi=PI, samples=10, value="probability": whole_parts(facts, True, pi, samples, value),
        CHOICES,
        {"abs": 1e-9},
        at_least=2,
    ),
}
