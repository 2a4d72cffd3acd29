"""Scores as a forecast of what random changes do: Bhatt et al. 2020, Yeh et al. 2019; one set at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tests.references.metrics.twin import MetricTwin, Predict


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


CHOICES: list[dict[str, Any]] = [{"share": None}, {"share": 0.2}]
TWINS = {
    "faithfulness_correlation": MetricTwin(
        lambda facts, share, value="probability": faithfulness_correlation(
            facts.says[value], facts.scores, facts.drawn(share)
        ),
        [*CHOICES, {"share": None, "value": "logit"}],
        {"abs": 1e-9},
        at_least=2,
    ),
    "infidelity": MetricTwin(
        lambda facts, share, normalize: infidelity(facts.says["logit"], facts.scores, facts.drawn(share), normalize),
        [choice | {"normalize": normalize} for choice in CHOICES for normalize in (True, False)],
        {"rel": 1e-9},
        at_least=2,
    ),
}
