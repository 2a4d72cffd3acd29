"""Metrics of ERASER (DeYoung et al. 2020) as the code of HateXplain computes them.

They differ from ``token_f1`` and ``iou_f1`` of whyformer, which name as many features as people marked and join
neighbours to spans: here the five highest tokens are named, and each of them is a span of its own.
"""

from __future__ import annotations

import numpy as np

from whyformer.evaluate.metrics.plausibility import f1, overlap, precision_recall, stretches
from whyformer.shapes import Array

TOP = 5  # tokens that HateXplain's code names


def named(scores_P: Array, top: int = TOP) -> Array:
    """Return which tokens have the highest scores; of equal ones the last, as in the authors' code."""
    chosen = np.zeros(len(scores_P), dtype=bool)
    chosen[np.argsort(scores_P, kind="stable")[-top:]] = True
    return chosen


def token_f1(scores_P: Array, marked_P: Array, top: int = TOP) -> float:
    """F1 of the named tokens against the marked ones."""
    chosen = named(scores_P, top)
    return f1(float((chosen & marked_P).sum()), float(chosen.sum()), float(marked_P.sum()))


def iou_parts(scores_P: Array, marked_P: Array, top: int = TOP) -> tuple[float, float]:
    """Precision and recall of spans: a named token is a hit if it is at least half of a marked span."""
    spans = stretches(marked_P)
    tokens = [(int(at), int(at) + 1) for at in np.flatnonzero(named(scores_P, top))]
    hits = sum(any(overlap(token, span) >= 0.5 for span in spans) for token in tokens)
    return hits / len(tokens), hits / len(spans)


def iou_f1(parts: Array) -> float:
    """F1 of the mean precision and the mean recall over inputs."""
    precision, recall = np.asarray(parts, float).mean(0)
    return float(2 * precision * recall / (precision + recall)) if precision + recall else 0.0


def auprc(scores_P: Array, marked_P: Array) -> float:
    """Area under the precision-recall curve, by trapezoids from precision 1 at recall 0."""
    precision, recall = precision_recall(np.asarray(scores_P, float), marked_P)
    precision, recall = np.concatenate([[1.0], precision]), np.concatenate([[0.0], recall])
    return float((np.diff(recall) * (precision[1:] + precision[:-1]) / 2).sum())
