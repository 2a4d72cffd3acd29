"""Judged by the scores alone: how steady they are under small changes of the input, and how few parts carry them."""

from __future__ import annotations

import numpy as np

from whyformer.evaluate.trial import Trial
from whyformer.parameters import Count, Weight
from whyformer.registry import metric


@metric(
    paper="Yeh et al. 2019, arXiv:1901.09392",
    kind="robustness",
    higher_is_better=False,
    needs={"explaining_again"},
    cost_text="10 × the method's own",
)
def max_sensitivity(trial: Trial, *, radius: Weight = 0.02, samples: Count = 10) -> float:
    """The largest relative change of the scores among inputs with a little noise.

    max_k ‖φ(x + δ_k) - φ(x)‖ / ‖φ(x)‖, δ uniform in ±radius times the spread (standard deviation) of the input's
    numbers: pixels, columns, or word embeddings. Low is good.

    Misleads when: taken for faithfulness: constant scores are the least sensitive of all.
    """
    if trial.again is None:
        return float("nan")
    scores = np.asarray(trial.scores_P, dtype=float)
    size = float(np.linalg.norm(scores))
    if size == 0:
        return float("nan")
    return max(float(np.linalg.norm(trial.again(draw, radius) - scores)) for draw in range(samples)) / size


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
