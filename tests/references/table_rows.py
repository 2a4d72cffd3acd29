"""A baseline of several real rows, by loops: which rows, how much each counts, and the mean of the model over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tests.references.two_ended import Value

Row = dict[str, Any]
Predict = Callable[[list[Row]], np.ndarray]  # one value per row


def distance(one: Row, other: Row, spread: dict[str, float]) -> float:
    """Numbers in standard deviations, categories 0 or 1, summed over columns."""
    total = 0.0
    for name in one:
        if name in spread:
            total += abs(one[name] - other[name]) / spread[name]
        elif one[name] != other[name]:
            total += 1.0
    return total


def covering(reference: Sequence[Row], numbers: Sequence[str], most: int) -> tuple[list[int], list[int]]:
    """Greedy k-medoids, every candidate tried; and the number of rows that are nearest to each of the chosen."""
    spread = {name: float(np.std([row[name] for row in reference])) for name in numbers}
    chosen: list[int] = []
    for _ in range(most):
        totals = []
        for candidate in range(len(reference)):
            tried = [*chosen, candidate]
            totals.append(sum(min(distance(row, reference[i], spread) for i in tried) for row in reference))
        chosen.append(int(np.argmin(np.round(totals, 9))))
    counts = [0] * len(chosen)
    for row in reference:
        counts[int(np.argmin([distance(row, reference[i], spread) for i in chosen]))] += 1
    return chosen, counts


def mean_over_rows(
    predict: Predict, row: Row, baselines: Sequence[Row], weights: Sequence[float], columns: Sequence[Sequence[str]]
) -> Value:
    """The value of a set of players: Σ_b w_b · f(present columns of the row, all others of baseline b) / Σ_b w_b."""

    def value(present: frozenset[int]) -> float:
        total = 0.0
        for baseline, weight in zip(baselines, weights, strict=True):
            mixed = dict(baseline)
            for player in present:
                for name in columns[player]:
                    mixed[name] = row[name]
            with torch.no_grad():
                total += weight * float(predict([mixed])[0])
        return total / sum(weights)

    return value
