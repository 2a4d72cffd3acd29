"""Comprehensiveness: does the prediction fall when what was called important is taken away?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.errors import one_of
from whyformer.evaluate.ranking import without_top
from whyformer.evaluate.trial import Trial
from whyformer.registry import metric

Array = np.ndarray[Any, Any]

BINS = (0.01, 0.05, 0.1, 0.2, 0.5)
AVERAGES = ("code", "paper")


def masks(trial: Trial, *, bins: Sequence[float] = BINS, **options: object) -> Array:
    return without_top(trial.scores_P, (0.0, *bins))


def average(falls_F: Array, how: str) -> float:
    """Over the bins: their mean (the authors' code), or their sum over one more (the paper counts k = 0 as well)."""
    one_of("average", how, AVERAGES)
    return float(falls_F.sum() / (len(falls_F) + (how == "paper")))


@metric(
    paper="DeYoung et al. 2020 (ERASER), arXiv:1911.03429",
    kind="faithfulness",
    higher_is_better=True,
    needs={"perturbation"},
    cost_text="1 forward per bin",
    masks=masks,
    ceiling="remove",
)
def comprehensiveness(
    trial: Trial, *, bins: Sequence[float] = BINS, average_as: str = "code", value: str = "probability"
) -> float:
    """How far the prediction falls when the parts with the highest scores are taken away.

    mean over bins k of p(x) - p(x without the top k), k = 1, 5, 10, 20, 50 % of the parts, rounded up.
    ``average_as="paper"`` divides by one bin more (k = 0), as the paper writes; the authors' code takes the plain mean.

    Misleads when: what is left is no text or picture that the model has ever seen; then anything may fall.
    """
    values = trial.game.values(masks(trial, bins=bins), value)
    return average(values[0] - values[1:], average_as)
