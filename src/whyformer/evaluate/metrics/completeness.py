"""Completeness: do the scores add up to what is explained?"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from whyformer.evaluate.game import VALUES
from whyformer.evaluate.trial import Trial
from whyformer.registry import metric

Array = np.ndarray[Any, Any]


def masks(trial: Trial, **options: object) -> Array:
    return np.zeros((1, len(trial.scores_P)), dtype=bool)


@metric(
    paper="Sundararajan, Taly & Yan 2017, arXiv:1703.01365",
    kind="faithfulness",
    higher_is_better=False,
    needs={"perturbation"},
    cost_text="1 forward",
    masks=masks,
)
def completeness(trial: Trial) -> float:
    """The gap between the sum of the scores and what they should add up to, relative to it.

    |Σφ - (s(x) - s₀)| / |s(x) - s₀|; s₀ is the value at the method's own background where it has one, else that of the
    input with all parts taken away. For signed methods only: attention is no share of a score. Low is good.

    Misleads when: taken for faithfulness: any scores can be scaled to add up.
    """
    scored = trial.scored
    if scored is None or not trial.signed:
        return math.nan
    base = scored.base
    if base is None:
        if scored.scalar not in VALUES:
            return math.nan
        base = trial.game.empty(scored.scalar)
    whole = scored.value - base
    return abs(float(scored.scores.sum()) - whole) / abs(whole) if whole else math.nan
