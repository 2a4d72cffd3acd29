"""Curves while parts go or come, step by step: Samek et al. 2017, RISE 2018, Chefer et al. 2021."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tests.references.metrics.twin import Facts, MetricTwin, Predict


def order(scores: Sequence[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))


def count(share: float, parts: int) -> int:
    return math.ceil(round(share * parts, 9))


def curve_without(predict: Predict, sequence: Sequence[int], fractions: Sequence[float]) -> list[float]:
    """The prediction after each step of taking parts away in this sequence."""
    values = []
    for share in fractions:
        left = set(range(len(sequence)))
        for part in sequence[: count(share, len(sequence))]:
            left.remove(part)
        values.append(predict(left))
    return values


def curve_with(predict: Predict, sequence: Sequence[int], fractions: Sequence[float]) -> list[float]:
    return [predict(set(sequence[: count(share, len(sequence))])) for share in fractions]


def trapezoids(values: Sequence[float], fractions: Sequence[float]) -> float:
    total = 0.0
    for i in range(len(values) - 1):
        total += (fractions[i + 1] - fractions[i]) * (values[i] + values[i + 1]) / 2
    return total / (fractions[-1] - fractions[0])


def aopc(predict: Predict, scores: Sequence[float], fractions: Sequence[float]) -> float:
    """1/(L+1) Σ_{k=0}^{L} f(x) - f(x_k)."""
    whole = predict(set(range(len(scores))))
    values = curve_without(predict, order(scores), fractions)
    return sum(whole - v for v in values) / len(values)


def deletion(predict: Predict, scores: Sequence[float], fractions: Sequence[float]) -> float:
    return trapezoids(curve_without(predict, order(scores), fractions), fractions)


def insertion(predict: Predict, scores: Sequence[float], fractions: Sequence[float]) -> float:
    return trapezoids(curve_with(predict, order(scores), fractions), fractions)


def positive_perturbation(decides: Predict, scores: Sequence[float], fractions: Sequence[float]) -> float:
    return trapezoids(curve_without(decides, order(scores), fractions), fractions)


def negative_perturbation(decides: Predict, scores: Sequence[float], fractions: Sequence[float]) -> float:
    return trapezoids(curve_without(decides, order(scores)[::-1], fractions), fractions)


def along(twin: Callable[..., float], fractions: Sequence[float]) -> Callable[..., float]:
    def expected(facts: Facts, fractions: Sequence[float] = fractions, value: str = "probability") -> float:
        return twin(facts.says[value], facts.scores, fractions)

    return expected


def decided(twin: Callable[..., float]) -> Callable[..., float]:
    def expected(facts: Facts, fractions: Sequence[float] = STEPS) -> float:
        return twin(facts.says["decides"], facts.scores, fractions)

    return expected


FRACTIONS = tuple(i / 20 for i in range(21))
STEPS = tuple(i / 10 for i in range(10))
COARSE = (0.0, 0.25, 1.0)
CHOICES: list[dict[str, Any]] = [{}, {"value": "logit"}, {"fractions": COARSE}]
TWINS = {
    **{
        twin.__name__: MetricTwin(along(twin, FRACTIONS), CHOICES, {"abs": 1e-12})
        for twin in (aopc, deletion, insertion)
    },
    **{
        twin.__name__: MetricTwin(decided(twin), [{}, {"fractions": COARSE}], {"abs": 1e-12})
        for twin in (positive_perturbation, negative_perturbation)
    },
}
