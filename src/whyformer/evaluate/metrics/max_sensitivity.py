"""Max-sensitivity: how far the scores move when the input moves a little."""

from __future__ import annotations

import numpy as np

from whyformer.evaluate.trial import Trial
from whyformer.registry import metric


@metric(
    paper="Yeh et al. 2019, arXiv:1901.09392",
    kind="robustness",
    higher_is_better=False,
    needs={"explaining_again"},
    cost_text="10 × the method's own",
)
def max_sensitivity(trial: Trial, *, radius: float = 0.02, samples: int = 10) -> float:
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
