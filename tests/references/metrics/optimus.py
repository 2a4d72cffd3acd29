"""Mylonas et al. 2022 (Optimus): truthfulness, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.references.metrics.twin import Facts, MetricTwin


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


def judged(twin: Callable[..., float]) -> Callable[..., float]:
    def expected(facts: Facts, value: str = "probability") -> float:
        everything = set(range(len(facts.scores)))
        says = facts.says[value]
        drops = [says(everything) - says(everything - {part}) for part in sorted(everything)]
        # Unsigned scores are positive everywhere, as after the authors' scaling to at least 1e-7.
        weights = facts.scores if facts.signed else [score + 1e-7 for score in facts.scores]
        return twin(weights, drops)

    return expected


TWINS = {
    twin.__name__: MetricTwin(judged(twin), [{}, {"value": "logit"}], {"abs": 1e-12})
    for twin in (truthfulness, ranked_truthfulness)
}
