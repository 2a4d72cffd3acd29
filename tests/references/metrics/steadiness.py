"""What scores add up to (Sundararajan et al. 2017), how they change (Yeh et al. 2019), how few carry them (Gini)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.references.metrics.twin import Facts, MetricTwin


def completeness(facts: Facts) -> float:
    """|Σφ - (s(x) - s₀)| / |s(x) - s₀|; s₀ is that of nothing where the method has no background."""
    if not facts.signed:
        return math.nan
    base = facts.says["logit"](set()) if facts.base is None else facts.base
    return abs(sum(facts.scores) - (facts.value - base)) / abs(facts.value - base)


def max_sensitivity(facts: Facts, radius: float = 0.02, samples: int = 10) -> float:
    size = math.sqrt(sum(s * s for s in facts.scores))
    if size == 0:
        return math.nan
    largest = 0.0
    for draw in range(samples):
        changed = facts.again(draw, radius)
        largest = max(largest, math.dist(changed, facts.scores) / size)
    return largest


def gini(scores: Sequence[float]) -> float:
    """Σ_i Σ_j ||φ_i| - |φ_j|| / (2 n Σ|φ|)."""
    sizes = [abs(s) for s in scores]
    if not any(sizes):
        return math.nan
    apart = sum(abs(a - b) for a in sizes for b in sizes)
    return apart / (2 * len(sizes) * sum(sizes))


TWINS = {
    "completeness": MetricTwin(completeness),
    "max_sensitivity": MetricTwin(max_sensitivity, [{}, {"radius": 0.3, "samples": 4}]),
    "sparsity": MetricTwin(lambda facts: gini(facts.scores), within={"abs": 1e-12}),
}
