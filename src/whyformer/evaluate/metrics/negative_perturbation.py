"""Negative perturbation: how long the decision holds while the least important parts go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.evaluate.metrics.positive_perturbation import STEPS
from whyformer.evaluate.ranking import area, without_bottom
from whyformer.evaluate.trial import Trial
from whyformer.registry import metric

Array = np.ndarray[Any, Any]


def masks(trial: Trial, *, fractions: Sequence[float] = STEPS, **options: object) -> Array:
    return without_bottom(trial.scores_P, fractions)


@metric(
    paper="Chefer, Gur & Wolf 2021 (CVPR), arXiv:2012.09838",
    kind="faithfulness",
    higher_is_better=True,
    needs={"perturbation"},
    cost_text="9 forwards",
    masks=masks,
    ceiling="keep",
)
def negative_perturbation(trial: Trial, *, fractions: Sequence[float] = STEPS) -> float:
    """How long the decision holds while parts are taken away from the lowest score to the highest.

    Area under "is the target still predicted?" over 0, 10, …, 90 % of the parts. High is good.

    Misleads when: the model says the target of an empty input anyway.
    """
    return area(trial.game.stays(masks(trial, fractions=fractions)), fractions)
