"""Deletion: the area under the curve while the most important parts go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.evaluate.ranking import FRACTIONS, area, without_top
from whyformer.evaluate.trial import Trial
from whyformer.registry import metric

Array = np.ndarray[Any, Any]


def masks(trial: Trial, *, fractions: Sequence[float] = FRACTIONS, **options: object) -> Array:
    return without_top(trial.scores_P, fractions)


@metric(
    paper="Petsiuk, Das & Saenko 2018 (RISE), arXiv:1806.07421",
    kind="faithfulness",
    higher_is_better=False,
    needs={"perturbation"},
    cost_text="20 forwards",
    masks=masks,
    ceiling="remove",
)
def deletion(trial: Trial, *, fractions: Sequence[float] = FRACTIONS, value: str = "probability") -> float:
    """Area under the prediction while parts are taken away from the highest score to the lowest.

    Trapezoids over 0, 5, …, 100 % of the parts, as a share of the width. Low is good.

    Misleads when: what is put in place (grey, mask) is itself evidence for or against the class.
    """
    # NOTE[DIFF] the authors take pixels away one row's worth at a time; here whole units (patches, tokens, columns).
    return area(trial.game.values(masks(trial, fractions=fractions), value), fractions)
