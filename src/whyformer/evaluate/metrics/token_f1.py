"""Token F1: are the highest-scored parts those that people marked?"""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.evaluate.ranking import count_of, order_of
from whyformer.evaluate.trial import Trial
from whyformer.registry import metric

Array = np.ndarray[Any, Any]


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
def token_f1(trial: Trial, *, share: float | None = None) -> float:
    """F1 of the parts with the highest scores against those that people marked.

    As many parts as were marked are named, or a ``share`` of all.

    Misleads when: taken for faithfulness: it asks whether people agree, not whether the model used these parts.
    """
    if trial.rationale_P is None or not trial.rationale_P.any():
        return float("nan")
    named = chosen(trial, share)
    return f1(float((named & trial.rationale_P).sum()), float(named.sum()), float(trial.rationale_P.sum()))
