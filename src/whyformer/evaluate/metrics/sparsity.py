"""Sparsity: are a few parts named, or all of them a little?"""

from __future__ import annotations

import numpy as np

from whyformer.evaluate.trial import Trial
from whyformer.registry import metric


@metric(
    paper="Gini index, as in Chalasani et al. 2020, arXiv:1810.06583",
    kind="complexity",
    higher_is_better=True,
    needs=set(),
    cost_text="none",
)
def sparsity(trial: Trial) -> float:
    """Gini index of the sizes of the scores: 0 where all are equal, near 1 where one part has everything.

    Σ_i (2i - n - 1) |φ|_(i) / (n Σ|φ|) with sizes in ascending order.

    Misleads when: taken for quality: a wrong map can be as sparse as a right one.
    """
    sizes = np.sort(np.abs(np.asarray(trial.scores_P, dtype=float)))
    total, count = float(sizes.sum()), len(sizes)
    if total == 0:
        return float("nan")
    return float(((2 * np.arange(1, count + 1) - count - 1) * sizes).sum() / (count * total))
