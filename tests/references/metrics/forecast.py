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


def linear_surrogate(predict: Predict, scores: Sequence[float], sets: Sequence[set[int]]) -> float:
    """Pearson correlation of the ranks; those that tie share the mean of theirs."""
    everything = set(range(len(scores)))
    sums = [sum(scores[i] for i in sorted(everything - gone)) for gone in sets]
    said = [predict(everything - gone) for gone in sets]

    def ranks(numbers: list[float]) -> list[float]:
        return [sum(o < n for o in numbers) + (sum(o == n for o in numbers) - 1) / 2 for n in numbers]

    a, b = ranks([round(s, 9) for s in sums]), ranks([round(s, 9) for s in said])
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    above = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    return above / math.sqrt(sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b))


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
    "linear_surrogate": MetricTwin(
        lambda facts, share, value="logit": linear_surrogate(facts.says[value], facts.scores, facts.drawn(share)),
        [{"share": 0.5}, {"share": 0.2, "value": "probability"}],
        {"abs": 1e-3},
        at_least=2,
    ),
    "infidelity": MetricTwin(
        lambda facts, share, normalize: infidelity(facts.says["logit"], facts.scores, facts.drawn(share), normalize),
        [choice | {"normalize": normalize} for choice in CHOICES for normalize in (True, False)],
        {"rel": 1e-9},
        at_least=2,
    ),
}
