"""Insertion: the area under the curve while the most important parts come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.evaluate.ranking import FRACTIONS, area, only_top
from whyformer.evaluate.trial import Trial
from whyformer.registry import metric

Array = np.ndarray[Any, Any]


def masks(trial: Trial, *, fractions: Sequence[float] = FRACTIONS, **options: object) -> Array:
    return only_top(trial.scores_P, fractions)


@metric(
    paper="Petsiuk, Das & Saenko 2018 (RISE), arXiv:1806.07421",
    kind="faithfulness",
    higher_is_better=True,
    needs={"perturbation"},
    cost_text="20 forwards",
    masks=masks,
    ceiling="keep",
)
def insertion(trial: Trial, *, fractions: Sequence[float] = FRACTIONS, value: str = "probability") -> float:
    """Area under the prediction while parts are put in from the highest score to the lowest, beginning with none.

    Trapezoids over 0, 5, …, 100 % of the parts, as a share of the width. High is good.

    Misleads when: the model is sure of an empty input already.
    """
    # NOTE[DIFF] the authors begin insertion with a blurred image and deletion ends in grey; here one replacement
    # serves both, so that the variants are shared (replace="blur" gives the authors' insertion).
    return area(trial.game.values(masks(trial, fractions=fractions), value), fractions)
