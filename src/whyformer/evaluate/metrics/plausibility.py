"""Plausibility: do the highest scores stand where people marked the reasons?"""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.engines.perturbation.ranking import count_of, order_of
from whyformer.evaluate.trial import Trial
from whyformer.parameters import Share
from whyformer.registry import metric

Array = np.ndarray[Any, Any]

# All thresholds at once: how well the scores sort what people marked before the rest.


def precision_recall(scores_X: Array, marked_X: Array) -> tuple[Array, Array]:
    """Precision and recall at every threshold, from the highest down; equal scores are taken together."""
    order = np.argsort(-scores_X, kind="stable")
    scores, hits = scores_X[order], np.cumsum(marked_X[order])
    last = np.flatnonzero(np.append(np.diff(scores) != 0, True))
    return hits[last] / (last + 1), hits[last] / hits[-1]


@metric(
    paper="DeYoung et al. 2020 (ERASER), arXiv:1911.03429",
    kind="plausibility",
    higher_is_better=True,
    needs={"rationale"},
    cost_text="none",
)
def auprc(trial: Trial) -> float:
    """Area under the precision-recall curve of the scores against the parts that people marked.

    Trapezoids between thresholds, beginning at precision 1 and recall 0, as in the authors' code.

    Misleads when: few parts were marked: the floor is their share, which random shows.
    """
    if trial.rationale_P is None or not trial.rationale_P.any():
        return float("nan")
    precision, recall = precision_recall(np.asarray(trial.scores_P, dtype=float), trial.rationale_P)
    precision, recall = np.concatenate([[1.0], precision]), np.concatenate([[0.0], recall])
    return float((np.diff(recall) * (precision[1:] + precision[:-1]) / 2).sum())


# As many parts as people marked: are the highest-scored ones theirs, part by part, or in whole stretches?


def chosen(trial: Trial, share: float | None) -> Array:
    """(P,) the parts that the explanation names: as many as people marked, or a share of all."""
    assert trial.rationale_P is not None
    parts = len(trial.scores_P)
    count = int(trial.rationale_P.sum()) if share is None else count_of(share, parts)
    named = np.zeros(parts, dtype=bool)
    named[order_of(trial.scores_P)[:count]] = True
    return named


def f1(hits: float, named: float, marked: float) -> float:
    """Harmonic mean of precision and recall; 0 where nothing was hit."""
    return 2 * hits / (named + marked) if named + marked else 0.0


@metric(
    paper="DeYoung et al. 2020 (ERASER), arXiv:1911.03429",
    kind="plausibility",
    higher_is_better=True,
    needs={"rationale"},
    cost_text="none",
)
def token_f1(trial: Trial, *, share: Share | None = None) -> float:
    """F1 of the parts with the highest scores against those that people marked.

    As many parts as were marked are named, or a ``share`` of all.

    Misleads when: taken for faithfulness: it asks whether people agree, not whether the model used these parts.
    """
    if trial.rationale_P is None or not trial.rationale_P.any():
        return float("nan")
    named = chosen(trial, share)
    return f1(float((named & trial.rationale_P).sum()), float(named.sum()), float(trial.rationale_P.sum()))


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
def iou_f1(trial: Trial, *, share: Share | None = None, threshold: Share = 0.5) -> float:
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
