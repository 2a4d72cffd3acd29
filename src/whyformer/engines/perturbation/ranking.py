"""From scores to an order of the parts, and from there to which parts are present as more and more of them go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

FRACTIONS = tuple(i / 20 for i in range(21))  # 0, 5, …, 100 %


def order_of(scores_P: Array) -> Array:
    """Parts from the highest to the lowest score; ties keep their order."""
    return np.argsort(-np.asarray(scores_P, dtype=float), kind="stable")


def count_of(fraction: float, parts: int) -> int:
    """How many parts a fraction is: rounded up, so that any fraction above 0 is at least one."""
    return min(parts, math.ceil(fraction * parts - 1e-9))


def _first(order: Array, fractions: Sequence[float]) -> Array:
    """(F, P) the first parts of an order."""
    parts = len(order)
    chosen = np.zeros((len(fractions), parts), dtype=bool)
    for row, fraction in enumerate(fractions):
        chosen[row, order[: count_of(fraction, parts)]] = True
    return chosen


def without_top(scores_P: Array, fractions: Sequence[float] = FRACTIONS) -> Array:
    """(F, P) what is present when the highest scores are taken away (most relevant first)."""
    return ~_first(order_of(scores_P), fractions)


def without_bottom(scores_P: Array, fractions: Sequence[float] = FRACTIONS) -> Array:
    """(F, P) what is present when the lowest scores are taken away (least relevant first)."""
    return ~_first(order_of(scores_P)[::-1], fractions)


def only_top(scores_P: Array, fractions: Sequence[float] = FRACTIONS) -> Array:
    """(F, P) what is present when nothing but the highest scores is kept."""
    return _first(order_of(scores_P), fractions)


def leave_one_out(parts: int) -> Array:
    """(P + 1, P) everything, then everything without part 0, 1, …"""
    return np.concatenate([np.ones((1, parts), dtype=bool), ~np.eye(parts, dtype=bool)])


def random_sets(parts: int, sets: int, share: float | None, seed: int) -> Array:
    """(M, P) random sets of parts that go (True), the same for every method; of one size, or (None) of any."""
    generator = np.random.default_rng([seed, parts])
    gone = np.zeros((sets, parts), dtype=bool)
    for row in gone:
        size = int(generator.integers(1, parts + 1)) if share is None else max(1, count_of(share, parts))
        row[generator.permutation(parts)[:size]] = True
    return gone


def area(values_F: Array, fractions: Sequence[float]) -> float:
    """Area under a curve by trapezoids, divided by the width of its range."""
    x = np.asarray(fractions, dtype=float)
    if len(x) == 1:
        return float(values_F[0])
    widths = np.diff(x)
    return float((widths * (values_F[1:] + values_F[:-1]) / 2).sum() / (x[-1] - x[0]))
