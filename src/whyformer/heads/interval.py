"""How sure is a mean over inputs? Percentile bootstrap: draw the inputs anew many times and look at the spread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LEVEL = 0.95
DRAWS = 1000


def interval(
    samples: Array, seed: int = 0, after: Callable[[Array], Array] | None = None, draws: int = DRAWS
) -> tuple[Array, Array]:
    """Lower and upper 95 % limits of the mean over axis 0; NaN for a single sample, which shows no spread.

    after: what is done to the mean (a normalisation), done to every draw too.
    """
    count = len(samples)
    after = after or (lambda mean: mean)
    shape = after(samples.mean(0)).shape
    if count < 2:
        return np.full(shape, np.nan), np.full(shape, np.nan)
    generator = np.random.default_rng(seed)
    flat = samples.reshape(count, -1)
    means = generator.multinomial(count, np.full(count, 1 / count), size=draws) @ flat / count
    drawn = np.stack([after(mean.reshape(samples.shape[1:])) for mean in means])
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=0)
    return low, high
