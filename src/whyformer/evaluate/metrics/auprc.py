"""AUPRC: how well the scores sort what people marked before the rest."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.evaluate.trial import Trial
from whyformer.registry import metric

Array = np.ndarray[Any, Any]


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
