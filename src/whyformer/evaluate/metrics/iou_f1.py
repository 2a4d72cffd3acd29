"""IoU F1: do stretches of the highest-scored parts match the stretches that people marked?"""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.evaluate.metrics.token_f1 import chosen
from whyformer.evaluate.trial import Trial
from whyformer.registry import metric

Array = np.ndarray[Any, Any]


def stretches(marked_P: Array) -> list[tuple[int, int]]:
    """(start, end) of each run of marked parts."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marked_P.astype(int), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def overlap(a: tuple[int, int], b: tuple[int, int]) -> float:
    """Intersection over union of two stretches."""
    shared = max(0, min(a[1], b[1]) - max(a[0], b[0]))
    return shared / (max(a[1], b[1]) - min(a[0], b[0])) if shared else 0.0


@metric(
    paper="DeYoung et al. 2020 (ERASER), arXiv:1911.03429",
    kind="plausibility",
    higher_is_better=True,
    needs={"rationale"},
    cost_text="none",
)
def iou_f1(trial: Trial, *, share: float | None = None, threshold: float = 0.5) -> float:
    """F1 over stretches of text: a named stretch counts if it overlaps a marked one by ``threshold`` or more.

    Overlap is intersection over union; stretches are runs of neighbouring parts, as many parts as were marked.

    Misleads when: scores alternate between neighbouring words: many short stretches match none.
    """
    if trial.rationale_P is None or not trial.rationale_P.any():
        return float("nan")
    named, marked = stretches(chosen(trial, share)), stretches(trial.rationale_P)
    if not named:
        return 0.0
    precision = sum(any(overlap(n, m) >= threshold for m in marked) for n in named) / len(named)
    # NOTE[DIFF] the authors divide the hits among the named stretches by the number of marked ones, so recall can
    # exceed 1; here a marked stretch is found or not.
    recall = sum(any(overlap(n, m) >= threshold for n in named) for m in marked) / len(marked)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0
