"""Confidence intervals, ranks of a method, and deletion curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from whyformer.shapes import Array

LEVEL = 0.95
ABOUT_95 = 1.96  # standard errors
DRAWS = 1000


def interval(samples: Array, seed: int = 0, after: Callable[[Array], Array] | None = None) -> tuple[Array, Array]:
    """Return the 95 % confidence interval of the mean over axis 0; ``after`` is applied to the mean of every draw.

    With few samples by Student's t, as in :func:`spread`.
    """
    count = len(samples)
    after = after or (lambda mean: mean)
    shape = after(samples.mean(0)).shape
    if count < 2:
        return np.full(shape, np.nan), np.full(shape, np.nan)
    generator = np.random.default_rng(seed)
    flat = samples.reshape(count, -1)
    means = generator.multinomial(count, np.full(count, 1 / count), size=DRAWS) @ flat / count
    drawn = np.stack([after(mean.reshape(samples.shape[1:])) for mean in means])
    low, high = _limits(after(samples.mean(0)), drawn.reshape(DRAWS, -1), count)
    return low.reshape(shape), high.reshape(shape)


def share_interval(share: Array, count: int) -> tuple[Array, Array]:
    """Return the 95 % confidence interval of a share of ``count`` draws (Wilson 1927).

    For means of numbers from 0 to 1 it is conservative: their variance is at most that of a share.
    """
    share, z2 = np.asarray(share, dtype=float), ABOUT_95**2 / count
    middle = (share + z2 / 2) / (1 + z2)
    half = np.sqrt(z2 * (share * (1 - share) + z2 / 4)) / (1 + z2)
    return np.clip(middle - half, 0.0, share), np.clip(middle + half, share, 1.0)


def difference_interval(first: Array, second: Array, count: int) -> tuple[Array, Array]:
    """Return the 95 % confidence interval of ``first - second``, two shares of ``count`` draws each.

    Newcombe 1998, Statistics in Medicine 17:873, method 10: Wilson intervals of both shares, combined.
    """
    first, second = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    (low_1, high_1), (low_2, high_2) = share_interval(first, count), share_interval(second, count)
    below = np.sqrt((first - low_1) ** 2 + (high_2 - second) ** 2)
    above = np.sqrt((high_1 - first) ** 2 + (second - low_2) ** 2)
    return first - second - below, first - second + above


def standard_errors(count: float) -> float:
    """Return how many standard errors the 95 % interval of a mean of ``count`` values reaches to each side.

    Student's t; NaN for a single value.
    """
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 1 - (1 - LEVEL) / 2)) if count > 1 else float("nan")


def limits_of_repeats(values: Array) -> tuple[Array, Array]:
    """Return the 95 % confidence interval of the mean over the last axis (Student's t); NaN for a single repeat."""
    count, mean = values.shape[-1], values.mean(-1)
    half = standard_errors(count) * values.std(-1, ddof=1) / np.sqrt(count) if count > 1 else np.nan
    return mean - half, mean + half


def spread(values_IX: Array, seed: int = 0, of: Sequence[int] | None = None) -> tuple[Array, Array, Array]:
    """Return mean and 95 % confidence interval of each column (bootstrap over inputs); NaN without values.

    From 30 inputs on, the interval holds the percentiles of the draws. Those of 5 inputs hold the true mean in 71–84 %
    of cases only; so with fewer inputs the interval is the mean ± Student's t times the standard error of the draws.

    of: the input of each row, if an input has several rows (detections): inputs are drawn with all of their rows.
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
    limits = [_limits(m, d[:, None], n) for m, d, n in zip(mean, drawn.T, enough.tolist(), strict=True)]
    return mean, *np.reshape(limits, (-1, 2)).T


def mean_within(values: Sequence[float] | Array, least: float, most: float) -> tuple[float, float, float]:
    """Return the mean of the known values and its 95 % confidence interval, cut off at the limits of the scale."""
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    if not len(known):
        return (float("nan"),) * 3
    mean, low, high = (float(part[0]) for part in spread(known[:, None]))
    return mean, *np.clip([low, high], least, most).tolist()


def _limits(mean: Array, drawn_DX: Array, count: int) -> tuple[Array, Array]:
    """Return the 95 % confidence interval by the means of bootstrap draws from ``count`` values; NaN for one value."""
    if count >= ENOUGH:
        tail = (1 - LEVEL) / 2
        return _of_draws(drawn_DX, partial(np.quantile, q=tail)), _of_draws(drawn_DX, partial(np.quantile, q=1 - tail))
    deviation = _of_draws(drawn_DX, np.std)
    half = standard_errors(count) * deviation * np.sqrt(count / max(count - 1, 1))  # draws vary by 1/n, not 1/(n - 1)
    return np.ravel(mean) - half, np.ravel(mean) + half


def _of_draws(drawn_DX: Array, statistic: Callable[..., Any]) -> Array:
    """Return a statistic of each column, ignoring draws that have no value there."""
    if not np.isnan(drawn_DX).any():
        return np.asarray(statistic(drawn_DX, axis=0))
    columns = [column[~np.isnan(column)] for column in drawn_DX.T]
    return np.array([statistic(c) if len(c) else np.nan for c in columns])


NOISE = 1e-6  # of a metric: smaller differences are rounding of the model's output, and no method is ahead by them
ENOUGH = 30  # inputs: with fewer, no method is ranked, ticked or called best
ENDINGS = {1: "st", 2: "nd", 3: "rd"}


def too_few(inputs: int, called: str = "inputs") -> str:
    """Return "5 texts: too few to rank methods (30 needed)", or "" if there are enough."""
    named = called.removesuffix("s") if inputs == 1 else called
    return f"{inputs} {named}: too few to rank methods ({ENOUGH} needed)" if inputs < ENOUGH else ""


def with_interval(gain: tuple[float, float, float], sign: str = "+") -> str:
    """Return a mean with its confidence interval, if there is one: "+0.210 (95 % CI +0.050 to +0.330)"."""
    mean, low, high = (f"{value:{sign}.3f}" for value in gain)
    return mean if np.isnan(gain[1]) else f"{mean} (95 % CI {low} to {high})"


def tied_places(ranks_IM: Array, seed: int = 0, of: Sequence[int] | None = None) -> list[int]:
    """Return the place of each method: 1 + the number of significantly better methods, so that ties share a place.

    ranks_IM: the rank of each method on each input; lower is better. A method is significantly better if the 95 %
    confidence interval of the mean difference excludes zero.
    """
    ranks = []
    for column in range(ranks_IM.shape[1]):
        _, low, _ = spread(ranks_IM[:, [column]] - ranks_IM, seed, of)
        ranks.append(1 + int((low > 0).sum()))
    # A method that varies much may be tied with more others than one with a better mean: no place above that one's.
    order = np.argsort(np.nanmean(ranks_IM, 0), kind="stable")
    largest = np.maximum.accumulate(np.array(ranks)[order])
    return [int(largest[np.flatnonzero(order == column)[0]]) for column in range(len(ranks))]


@dataclass(frozen=True)
class Standing:
    """The result of a method over all compared inputs."""

    place: int | None  # 1 is best; tied methods share a place. None: too few inputs
    of: int  # number of methods
    better: int  # number of metrics by which it beats random scores (95 % confidence interval above zero)
    measures: int  # number of metrics with a confidence interval; 0 for a single input
    inputs: int
    called: str = "inputs"  # texts, images, rows
    ties: int = 0  # other methods that share its place
    gain: tuple[float, float, float] | None = None  # over random scores, first metric: mean, low, high (95 % CI)

    @property
    def verdict(self) -> str:
        """Whether it beats random scores: "yes" (by every metric), "partly", "no", or "unknown" (too few inputs)."""
        if not self.measures or self.inputs < ENOUGH:
            return "unknown"
        return "no" if not self.better else "yes" if self.better == self.measures else "partly"

    @property
    def against_random(self) -> str:
        """Return the verdict in words: "beats random scores by 3 of 5 metrics"."""
        words = {"unknown": "not tested against random scores", "no": "not better than random scores"}
        words |= {"yes": "beats random scores"}
        return words.get(self.verdict, f"beats random scores by {self.better} of {self.measures} metrics")

    def __str__(self) -> str:
        """Return "3rd of 17 on 40 texts, beats random"."""
        if self.place is None:
            over = "" if self.gain is None else f"; gain over random scores {with_interval(self.gain)}"
            return too_few(self.inputs, self.called) + over
        beats = self.against_random.replace(" random scores", " random")  # a badge is short
        tied = f", tied with {self.ties} other{'s' * (self.ties > 1)}" if self.ties else ""
        return f"{ordinal(self.place)} of {self.of} on {self.inputs} {self.called}{tied}, {beats}"


def ordinal(place: int) -> str:
    """Return "1st", "2nd", "3rd", "11th"."""
    return f"{place}{'th' if place % 100 in (11, 12, 13) else ENDINGS.get(place % 10, 'th')}"


@dataclass(frozen=True)
class Deletion:
    """Deletion curves of one input: the prediction as features are masked, highest scores first or at random."""

    counts: tuple[int, ...]  # number of masked units: from none to all that can be masked
    orders: dict[str, tuple[int, ...]]  # method → units, in the order in which they are masked
    curves: dict[str, tuple[float, ...]]  # method → the model's output, one value per count
    low: tuple[float, ...]  # of random orders: 5 %, mean and 95 %
    mean: tuple[float, ...]
    high: tuple[float, ...]
    beaten: dict[str, int]  # method → random orders whose curve lies higher on average
    draws: int
    value: str = "probability of the target"
