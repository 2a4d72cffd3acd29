"""Positive perturbation: how long the decision holds while the most important parts go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.evaluate.ranking import area, without_top
from whyformer.evaluate.trial import Trial
from whyformer.registry import metric

Array = np.ndarray[Any, Any]

STEPS = tuple(i / 10 for i in range(10))  # 0, 10, …, 90 %


def masks(trial: Trial, *, fractions: Sequence[float] = STEPS, **options: object) -> Array:
    return without_top(trial.scores_P, fractions)


@metric(
    paper="Chefer, Gur & Wolf 2021 (CVPR), arXiv:2012.09838",
    kind="faithfulness",
    higher_is_better=False,
    needs={"perturbation"},
    cost_text="9 forwards",
    masks=masks,
    ceiling="remove",
)
def positive_perturbation(trial: Trial, *, fractions: Sequence[float] = STEPS) -> float:
    """How long the decision holds while parts are taken away from the highest score to the lowest.

    Area under "is the target still predicted?" over 0, 10, …, 90 % of the parts; its mean over inputs is the area
    under the accuracy curve. Low is good. Pass the true labels as ``target`` for accuracy against labels.

    Misleads when: decisions flip at chance; a curve of probabilities (deletion) says more about few inputs.
    """
    return area(trial.game.stays(masks(trial, fractions=fractions)), fractions)
