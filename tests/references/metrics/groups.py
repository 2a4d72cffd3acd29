"""SaCo (Wu et al. 2024), F-Fidelity (Zheng et al. 2025) and IDSDS (Hesse et al. 2024), one variant at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tests.references.metrics.twin import Facts, MetricTwin, Predict


def by_score(scores: Sequence[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))


def saco(predict: Predict, scores: Sequence[float], groups: int) -> float:
    """Algorithm 1, with the mean score of a group; equal effects say nothing, where the paper has them on the side of
    the scores."""
    order, everything = by_score(scores), set(range(len(scores)))
    groups = min(groups, len(order))
    cut, at = [], 0
    for number in range(groups):  # the first ones take one more where it does not come out even
        size = len(order) // groups + (number < len(order) % groups)
        cut.append(order[at : at + size])
        at += size
    salience = [sum(scores[i] for i in group) / len(group) for group in cut]
    effect = [predict(everything) - predict(everything - set(group)) for group in cut]
    faithful = total = 0.0
    for i in range(groups):
        for j in range(i + 1, groups):
            weight = salience[i] - salience[j]
            total += weight
            if effect[i] != effect[j]:
                faithful += weight if effect[i] > effect[j] else -weight
    return faithful / total if total else math.nan


def f_fidelity(
    facts: Facts,
    plus: bool,
    alpha: float = 0.5,
    beta: float = 0.1,
    sizes: Sequence[float] = (0.1, 0.3, 0.5, 0.7, 0.9),
    samples: int = 10,
    value: str = "probability",
) -> float:
    order, predict = by_score(facts.scores), facts.says[value]
    everything, falls = set(order), []
    for share in sizes:
        size = math.ceil(round(share * len(order), 9))
        pool = order[:size] if plus else order[size:]
        if not pool:  # nothing is outside of all parts
            continue
        most = min(math.ceil(round(alpha * len(pool), 9)), math.ceil(round(beta * len(order), 9)))
        for numbers in facts.uniform(samples):
            gone = set(sorted(pool, key=lambda i: numbers[i])[:most])
            falls.append(predict(everything) - predict(everything - gone))
    return sum(falls) / len(falls) if falls else math.nan


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest; equal values share the mean of their ranks."""
    return [sum(v < value for v in values) + (1 + sum(v == value for v in values)) / 2 for value in values]


def single_deletion(predict: Predict, scores: Sequence[float]) -> float:
    """Section 3: Pearson's correlation of the ranks of the scores with those of the falls without one part."""
    everything = set(range(len(scores)))
    falls = [predict(everything) - predict(everything - {part}) for part in range(len(scores))]
    of_scores, of_falls, middle = ranks(scores), ranks(falls), (len(scores) + 1) / 2
    together = sum((a - middle) * (b - middle) for a, b in zip(of_scores, of_falls, strict=True))
    alone = [math.sqrt(sum((rank - middle) ** 2 for rank in each)) for each in (of_scores, of_falls)]
    return together / math.prod(alone) if all(alone) else math.nan


CHOICES: list[dict[str, Any]] = [{}, {"alpha": 1.0, "beta": 0.5, "sizes": (0.4,)}, {"samples": 3, "value": "logit"}]
TWINS = {
    "saco": MetricTwin(
        lambda facts, groups=10, value="probability": saco(facts.says[value], facts.scores, groups),
        [{}, {"groups": 3}, {"value": "logit"}],
        {"abs": 1e-9},
        at_least=2,
    ),
    "single_deletion": MetricTwin(
        lambda facts, value="probability": single_deletion(facts.says[value], facts.scores),
        [{}, {"value": "logit"}],
        {"abs": 1e-9},
    ),
    "f_fidelity_plus": MetricTwin(lambda facts, **how: f_fidelity(facts, True, **how), CHOICES, {"abs": 1e-9}),
    "f_fidelity_minus": MetricTwin(lambda facts, **how: f_fidelity(facts, False, **how), CHOICES, {"abs": 1e-9}),
}
