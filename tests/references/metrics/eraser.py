"""DeYoung et al. 2020 (ERASER), word by word: faithfulness by erasing, agreement with what people marked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tests.references.metrics.twin import Facts, MetricTwin, Predict


def top(scores: Sequence[float], count: int) -> set[int]:
    """The words with the highest scores, the earlier one where two are equal."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return set(order[:count])


def comprehensiveness(predict: Predict, scores: Sequence[float], bins: Sequence[float]) -> float:
    everything = set(range(len(scores)))
    falls = []
    for share in bins:
        rationale = top(scores, math.ceil(round(share * len(scores), 9)))
        falls.append(predict(everything) - predict(everything - rationale))
    return sum(falls) / len(falls)


def sufficiency(predict: Predict, scores: Sequence[float], bins: Sequence[float]) -> float:
    everything = set(range(len(scores)))
    falls = []
    for share in bins:
        rationale = top(scores, math.ceil(round(share * len(scores), 9)))
        falls.append(predict(everything) - predict(rationale))
    return sum(falls) / len(falls)


def token_f1(scores: Sequence[float], marked: set[int]) -> float:
    named = top(scores, len(marked))
    hits = len(named & marked)
    if hits == 0:
        return 0.0
    precision, recall = hits / len(named), hits / len(marked)
    return 2 * precision * recall / (precision + recall)


def _stretches(words: set[int]) -> list[set[int]]:
    found: list[set[int]] = []
    for word in sorted(words):
        if found and word - 1 in found[-1]:
            found[-1].add(word)
        else:
            found.append({word})
    return found


def iou_f1(scores: Sequence[float], marked: set[int], threshold: float = 0.5) -> float:
    named, wanted = _stretches(top(scores, len(marked))), _stretches(marked)
    right = sum(any(len(n & w) / len(n | w) >= threshold for w in wanted) for n in named)
    found = sum(any(len(n & w) / len(n | w) >= threshold for n in named) for w in wanted)
    if right == 0:
        return 0.0
    precision, recall = right / len(named), found / len(wanted)
    return 2 * precision * recall / (precision + recall)


def auprc(scores: Sequence[float], marked: set[int]) -> float:
    """Trapezoids between thresholds, from precision 1 and recall 0 on."""
    total, precision, recall = 0.0, 1.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        named = {i for i, score in enumerate(scores) if score >= threshold}
        hits = len(named & marked)
        total += (hits / len(marked) - recall) * (hits / len(named) + precision) / 2
        precision, recall = hits / len(named), hits / len(marked)
    return total


def erased(twin: Callable[..., float]) -> Callable[..., float]:
    def expected(
        facts: Facts, bins: Sequence[float] = BINS, average_as: str = "code", value: str = "probability"
    ) -> float:
        mean = twin(facts.says[value], facts.scores, bins)
        return mean * len(bins) / (len(bins) + 1) if average_as == "paper" else mean

    return expected


BINS = (0.01, 0.05, 0.1, 0.2, 0.5)
CHOICES: list[dict[str, Any]] = [{}, {"average_as": "paper"}, {"bins": (0.3, 0.6)}, {"value": "logit"}]
TWINS = {
    "comprehensiveness": MetricTwin(erased(comprehensiveness), CHOICES, {"abs": 1e-12}),
    "sufficiency": MetricTwin(erased(sufficiency), CHOICES, {"abs": 1e-12}),
    "token_f1": MetricTwin(lambda facts: token_f1(facts.scores, facts.marked)),
    "iou_f1": MetricTwin(
        lambda facts, threshold=0.5: iou_f1(facts.scores, facts.marked, threshold), [{}, {"threshold": 0.2}]
    ),
    "auprc": MetricTwin(lambda facts: auprc(facts.scores, facts.marked)),
}
