"""Faithfulness correlation: do the summed scores of random sets follow what happens without them?"""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.evaluate.ranking import random_sets
from whyformer.evaluate.trial import Trial
from whyformer.registry import metric

Array = np.ndarray[Any, Any]


def masks(trial: Trial, *, sets: int = 50, share: float | None = None, **options: object) -> Array:
    parts = len(trial.scores_P)
    return np.concatenate([np.ones((1, parts), dtype=bool), ~random_sets(parts, sets, share, trial.seed)])


@metric(
    paper="Bhatt, Weller & Moura 2020, arXiv:2005.00631",
    kind="faithfulness",
    higher_is_better=True,
    needs={"perturbation"},
    cost_text="50 forwards, the same for every method",
    masks=masks,
)
def faithfulness_correlation(
    trial: Trial, *, sets: int = 50, share: float | None = None, value: str = "probability"
) -> float:
    """Correlation of the summed scores of random sets of parts with the fall of the prediction without them.

    corr_S(Σ_{i∈S} w_i, p(x) - p(x without S)) over ``sets`` sets, of a ``share`` of the parts as in the paper, or
    (None) of any size, which are then the sets of infidelity, too. NaN where one side does not vary.

    Misleads when: sets of any size are drawn and all scores are positive: larger sets then score more and matter more,
    which is worth some correlation already. Compare with random.
    """
    # NOTE[DIFF] the paper draws sets of one size; share=0.2 does.
    present = masks(trial, sets=sets, share=share)
    values = trial.game.values(present, value)
    falls = values[0] - values[1:]
    sums = (~present[1:]) @ np.asarray(trial.scores_P, dtype=float)
    if np.ptp(sums) == 0 or np.ptp(falls) == 0:
        return float("nan")
    return float(np.corrcoef(sums, falls)[0, 1])
