"""Sufficiency: is what was called important enough for the prediction?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.evaluate.metrics.comprehensiveness import BINS, average
from whyformer.evaluate.ranking import only_top
from whyformer.evaluate.trial import Trial
from whyformer.registry import metric

Array = np.ndarray[Any, Any]


def masks(trial: Trial, *, bins: Sequence[float] = BINS, **options: object) -> Array:
    return only_top(trial.scores_P, (1.0, *bins))


@metric(
    paper="DeYoung et al. 2020 (ERASER), arXiv:1911.03429",
    kind="faithfulness",
    higher_is_better=False,
    needs={"perturbation"},
    cost_text="1 forward per bin",
    masks=masks,
    ceiling="keep",
)
def sufficiency(
    trial: Trial, *, bins: Sequence[float] = BINS, average_as: str = "code", value: str = "probability"
) -> float:
    """How far the prediction falls when nothing but the parts with the highest scores is kept.

    mean over bins k of p(x) - p(the top k alone), k = 1, 5, 10, 20, 50 % of the parts, rounded up. Low is good; below
    zero, the model is surer of the few parts than of the whole.

    Misleads when: the model says this class of an empty input anyway: then everything is sufficient.
    """
    values = trial.game.values(masks(trial, bins=bins), value)
    return average(values[0] - values[1:], average_as)
