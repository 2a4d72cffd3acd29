"""Infidelity: how far the scores are from predicting what a change of the input does."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.evaluate.metrics.faithfulness_correlation import masks
from whyformer.evaluate.trial import Trial
from whyformer.registry import metric

Array = np.ndarray[Any, Any]


def squared_error(scores_P: Array, changes_MP: Array, falls_M: Array, normalize: bool) -> float:
    """E_I[(β·Iᵀφ - (f(x) - f(x - I)))²], β = 1 or the factor that fits best, E[ab]/E[a²]."""
    foretold = changes_MP @ np.asarray(scores_P, dtype=float)
    if normalize:
        power = float((foretold**2).mean())
        foretold = foretold * (float((foretold * falls_M).mean()) / power) if power else foretold
    return float(((foretold - falls_M) ** 2).mean())


@metric(
    paper="Yeh et al. 2019, arXiv:1901.09392",
    kind="faithfulness",
    higher_is_better=False,
    needs={"perturbation"},
    cost_text="50 forwards, the same for every method",
    masks=masks,
)
def infidelity(
    trial: Trial, *, sets: int = 50, share: float | None = None, normalize: bool = True, value: str = "logit"
) -> float:
    """Mean squared error of the scores as a forecast of how the output falls when random sets of parts go.

    E_S[(β Σ_{i∈S} w_i - (f(x) - f(x without S)))²]: the perturbation of a part that goes is 1, which fits scores that
    share out the whole effect of a part (input × gradient, Shapley values), not plain gradients. ``normalize``: β is
    the factor that fits best, since attention has no unit; False takes the scores as they are. Low is good.

    Misleads when: inputs with a large output range dominate the mean over inputs.
    """
    present = masks(trial, sets=sets, share=share)
    values = trial.game.values(present, value)
    return squared_error(trial.scores_P, (~present[1:]).astype(float), values[0] - values[1:], normalize)
