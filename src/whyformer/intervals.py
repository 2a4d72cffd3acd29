"""Intervals around means: percentile bootstrap over inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


# Means over inputs with 95 % limits; inputs without a value are left out.


def spread(values_IX: Array, seed: int = 0, of: Sequence[int] | None = None) -> tuple[Array, Array, Array]:
    """Mean, lower and upper limit of each column: percentile bootstrap, in which all columns draw the same inputs.

    NaN where there is no value, and limits for fewer than two. ``of``: the input that each row is of, where an input
    has several rows (detections): inputs are drawn with all of their rows, which are not independent.
    """
    values = np.asarray(values_IX, dtype=float)
    known, filled = ~np.isnan(values), np.nan_to_num(values)
    number = np.unique(np.arange(len(values)) if of is None else np.asarray(of), return_inverse=True)[1]
    inputs = int(number.max()) + 1
    enough = np.array([len(np.unique(number[column])) for column in known.T])
    drawn_DI = np.random.default_rng(seed).multinomial(inputs, np.full(inputs, 1 / inputs), size=DRAWS)
    weights = drawn_DI[:, number].astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = filled.sum(0) / known.sum(0)
        drawn = weights @ filled / (weights @ known.astype(float))
    tail = (1 - LEVEL) / 2
    limits = [np.where(enough > 1, _quantile(drawn, q), np.nan) for q in (tail, 1 - tail)]
    return mean, limits[0], limits[1]


def _quantile(drawn_DX: Array, share: float) -> Array:
    """Draws that met no value of a column are left out of it."""
    if not np.isnan(drawn_DX).any():
        return np.quantile(drawn_DX, share, axis=0)
    columns = [column[~np.isnan(column)] for column in drawn_DX.T]
    return np.array([np.quantile(c, share) if len(c) else np.nan for c in columns])
