"""Faithful truthfulness (FT): do the signs of the scores agree with what happens without each part?"""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.evaluate.ranking import leave_one_out
from whyformer.evaluate.trial import Trial
from whyformer.registry import metric

Array = np.ndarray[Any, Any]


def masks(trial: Trial, **options: object) -> Array:
    return leave_one_out(len(trial.scores_P))


def agreement(scores_MP: Array, drops_P: Array, signed: bool) -> Array:
    """(M, P) s_i d_i; a part that a signed method calls neutral costs |d_i|.

    An unsigned method says "how much", never "against": all of its parts count as positive (the authors scale
    attention to between 1e-7 and 1, so that none is neutral).
    """
    if not signed:
        return np.broadcast_to(drops_P, np.shape(scores_MP)).astype(float)
    signs = np.sign(scores_MP)
    return np.where(signs == 0, -np.abs(drops_P), signs * drops_P)


@metric(
    paper="Mylonas, Mollas & Tsoumakas 2022 (Optimus), arXiv:2209.10876",
    kind="faithfulness",
    higher_is_better=True,
    needs={"perturbation"},
    cost_text="(parts + 1) forwards",
    masks=masks,
    ceiling="leave_one_out",
)
def truthfulness(trial: Trial, *, value: str = "probability") -> float:
    """Whether the sign of each score agrees with how the prediction changes without that part.

    FT = Σ_i sign(w_i) d_i, d_i = p(x) - p(x without i); a neutral part (w_i = 0) counts as -|d_i|. Ranks play no role.

    Misleads when: methods without signs are compared by it: they all say "positive" everywhere and get the same value.
    """
    return float(agreement(trial.scores_P, trial.game.drops(value), trial.signed).sum())
