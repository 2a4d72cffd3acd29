"""Rank correlation and intervals, with numpy alone: for machines that have no more than that."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# Student's t at 97.5 %, by degrees of freedom from 1 on; a normal distribution's after the last.
STUDENT = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448,
    2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484,
    2.0452, 2.0423,
)  # fmt: skip


def ranked(values_RU: Array) -> Array:
    """(R, U) ranks of each row from 1 on, ties sharing the mean of theirs."""
    made = np.empty(values_RU.shape)
    for row, values in enumerate(values_RU):
        _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
        last = np.cumsum(counts)
        made[row] = (last - (counts - 1) / 2)[where.ravel()]
    return made


def spearman(a_RU: Array, b_RU: Array) -> Array:
    """(R,) rank correlation of each row; NaN where a side does not tell columns apart."""
    ranks = [ranked(x) - (x.shape[1] + 1) / 2 for x in (a_RU, b_RU)]
    size = [np.sqrt((r**2).sum(1)) for r in ranks]
    with np.errstate(invalid="ignore", divide="ignore"):
        return (ranks[0] * ranks[1]).sum(1) / (size[0] * size[1])


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval (Student's t)."""
    known = np.array([v for v in values if not np.isnan(v)])
    if not len(known):
        return float("nan"), float("nan")
    freedom = len(known) - 1
    quantile = STUDENT[freedom - 1] if 0 < freedom <= len(STUDENT) else 1.96
    half = quantile * known.std(ddof=1) / np.sqrt(len(known)) if freedom else float("nan")
    return float(known.mean()), float(half)
