"""Could these scores come from random concepts? Welch's test, corrected for asking several times."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def welch(scores: Array, others: Array, back: Array | None = None) -> float:
    """Two-sided p of equal means; variances may differ. Without any spread: 1 for equal means, else 0.

    back: the others once more, read the other way round. Mean and spread are then those of both, while they count
    once: what is random in one direction is so in the other, and a concept and its opposite get the same p.
    """
    from scipy.stats import ttest_ind_from_stats

    if min(len(scores), len(others)) < 2:
        return float("nan")
    both = others if back is None else np.concatenate([others, back])
    if np.ptp(scores) == 0 and np.ptp(both) == 0:
        return 1.0 if scores[0] == both[0] else 0.0
    # From mean and spread: a set of equal scores is common here, and no reason for a warning.
    facts = (scores.mean(), scores.std(ddof=1), len(scores), both.mean(), both.std(ddof=1), len(others))
    return float(ttest_ind_from_stats(*facts, equal_var=False).pvalue)


def holm(p_values: list[float]) -> list[float]:
    """Holm's step-down correction; NaN stays NaN and does not count."""
    corrected = [float("nan")] * len(p_values)
    known = sorted((p, i) for i, p in enumerate(p_values) if not np.isnan(p))
    highest = 0.0
    for rank, (p, i) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        corrected[i] = highest
    return corrected


def interval(scores: Array) -> tuple[float, float]:
    """95 % limits of the mean, kept inside 0 to 1; NaN for a single score."""
    from scipy.stats import t

    if len(scores) < 2:
        return float("nan"), float("nan")
    half = float(t.ppf(0.975, len(scores) - 1) * scores.std(ddof=1) / len(scores) ** 0.5)
    return max(0.0, float(scores.mean()) - half), min(1.0, float(scores.mean()) + half)
