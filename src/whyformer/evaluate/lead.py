"""Whether the best of many, picked in hindsight, leads by more than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

FLIPS = 4096  # of signs, at most: all of them for twelve inputs or fewer
RARE = 0.025  # one side of 95 %


def chance_of_lead(values_IM: Array, choice: int, seed: int, of: Sequence[int]) -> float:
    """How often somebody's lead over the choice would look as large if none of them had one.

    The best in hindsight is picked by the numbers that it is judged by, so its own interval is too narrow. Here the
    signs of all differences of an input are turned together, at random (if nobody is ahead, they might as well be), and
    the largest standardised lead of *anyone* is compared with the largest that was seen. All detections of an image are
    one input. NaN where there is nobody else, or a single input.
    """
    number = np.unique(np.asarray(of), return_inverse=True)[1]
    inputs = int(number.max(initial=-1)) + 1
    differences_IM = np.delete(values_IM - values_IM[:, [choice]], choice, 1)
    if inputs < 2 or not differences_IM.shape[1]:
        return math.nan
    each_IM = np.zeros((inputs, differences_IM.shape[1]))
    np.add.at(each_IM, number, differences_IM)
    turned = _signs(inputs, seed)
    sums_FM = turned @ each_IM
    squares_M = (each_IM**2).sum(0)
    # With squares fixed under turning, t rises with sum/√squares: no need for a variance per turn.
    sizes_FM = np.where(squares_M > 0, sums_FM / np.sqrt(np.where(squares_M > 0, squares_M, 1)), 0.0)
    most_F = sizes_FM.max(1)
    seen = float(np.where(squares_M > 0, each_IM.sum(0) / np.sqrt(np.where(squares_M > 0, squares_M, 1)), 0.0).max())
    return float((most_F >= seen - 1e-9).mean())


def _signs(inputs: int, seed: int) -> Array:
    """(F, I) ways to turn signs: all of them where they are few, as they are among them."""
    if 2**inputs <= FLIPS:
        return 1.0 - 2.0 * ((np.arange(2**inputs)[:, None] >> np.arange(inputs)) & 1)
    drawn = np.random.default_rng(seed).choice([-1.0, 1.0], (FLIPS, inputs))
    drawn[0] = 1.0
    return drawn
