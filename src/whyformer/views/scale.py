"""Which scale a picture gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.types import Explanation
from whyformer.views.view import Scale

Array = np.ndarray[Any, Any]


def scale_of(scores: Sequence[Array], signed: bool = False, from_zero: bool = True, meaning: str = "score") -> Scale:
    """One scale for all of ``scores``: symmetric if signed, else from zero (or the lowest) to the highest."""
    known = [np.asarray(s, float).ravel() for s in scores if np.size(s)]
    values = np.concatenate(known) if known else np.zeros(1)
    if signed or values.min() < 0:
        reach = float(np.abs(values).max())
        return Scale(-reach, reach, True, meaning)
    return Scale(0.0 if from_zero else float(values.min()), float(values.max()), False, meaning)


def ordinary(explanation: Explanation) -> Array:
    """Scores of the units that are not special; of all where there are no others.

    What [CLS] gets is often tens of times what any word gets, and would leave every word white.
    """
    chosen = [s for s, special in zip(explanation.scores, explanation.units.special, strict=True) if not special]
    return np.asarray(chosen if chosen else explanation.scores, float)


def share(explanation: Explanation) -> float:
    """What to multiply scores by, so that those of ordinary units add up to one in absolute value.

    Methods have units of their own (attention sums to one, gradients do not); shares can stand on one scale.
    """
    total = float(np.abs(ordinary(explanation)).sum())
    return 1 / total if total else 1.0
