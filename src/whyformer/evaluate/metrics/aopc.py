"""AOPC: the area over the perturbation curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.evaluate.ranking import FRACTIONS, without_top
from whyformer.evaluate.trial import Trial
from whyformer.registry import metric

Array = np.ndarray[Any, Any]


def masks(trial: Trial, *, fractions: Sequence[float] = FRACTIONS, **options: object) -> Array:
    return np.concatenate([np.ones((1, len(trial.scores_P)), dtype=bool), without_top(trial.scores_P, fractions)])


@metric(
    paper="Samek et al. 2017, arXiv:1509.06321",
    kind="faithfulness",
    higher_is_better=True,
    needs={"perturbation"},
    cost_text="20 forwards",
    masks=masks,
    ceiling="remove",
)
def aopc(trial: Trial, *, fractions: Sequence[float] = FRACTIONS, value: str = "probability") -> float:
    """The mean fall of the prediction while parts are taken away from the highest score to the lowest.

    1/(L+1) Σ_{k=0..L} (p(x) - p(x without the top k)), k = 0, 5, …, 100 % of the parts.

    Misleads when: used alone on inputs whose prediction does not depend on any part; and the second half of the curve,
    where hardly anything is left, counts as much as the first.
    """
    values = trial.game.values(masks(trial, fractions=fractions), value)
    return float((values[0] - values[1:]).mean())
