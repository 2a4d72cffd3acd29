"""A method averaged over maskings of its input: φ_i = mean, over the maskings that keep i, of its score of i."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


def averaged(
    scores_of: Callable[[Sequence[bool]], np.ndarray], maskings: np.ndarray, always: Sequence[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and their standard errors; scores_of: what is kept → scores; always: units that are never masked."""
    kept: list[list[float]] = [[] for _ in maskings[0]]
    for masking in maskings:
        scores = scores_of(masking)
        for unit, keeps in enumerate(masking):
            if keeps or unit in always:
                kept[unit].append(float(scores[unit]))
    means, errors = [], []
    for values in kept:
        mean = sum(values) / len(values)
        spread = sum((value - mean) ** 2 for value in values)
        means.append(mean)
        errors.append((spread / len(values) / (len(values) - 1)) ** 0.5 if len(values) > 1 else 0.0)
    return np.array(means), np.array(errors)
