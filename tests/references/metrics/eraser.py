"""DeYoung et al. 2020 (ERASER), word by word: faithfulness by erasing, agreement with what people marked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Predict = Callable[[set[int]], float]  # probability of the predicted class when only these words are there


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
