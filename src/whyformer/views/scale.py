"""Which scale a picture gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.types import Explanation
from whyformer.views.view import Scale

Array = np.ndarray[Any, Any]
OUTSHINES = 3  # times the highest of the others


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

    What [CLS] gets is often tens of times what any word gets, and would leave every word white. So would what the
    position that is read gives itself.
    """
    left_out = outshining(explanation)
    plain = _plain(explanation)
    return np.asarray(explanation.scores[[i for i in plain if i != left_out] or slice(None)], float)


def outshining(explanation: Explanation) -> int | None:
    """The unit that is read, where it is an ordinary one without a sign and all others would be white beside it.

    What a position gives itself is 1 and more by construction in methods that follow attention.
    """
    at, plain = position_read(explanation), _plain(explanation)
    others = [float(explanation.scores[i]) for i in plain if i != at]
    if explanation.signed or at is None or at not in plain or not others:
        return None
    return at if float(explanation.scores[at]) > OUTSHINES * max(others) else None


def position_read(explanation: Explanation) -> int | None:
    """The unit whose output row is read, where it is a single one ("first position", "target: last position")."""
    stream, _, place = explanation.readout.rpartition(": ")
    members = [i for i, s in enumerate(explanation.units.stream) if stream in ("", s)]
    at = {"first position": 0, "last position": -1}.get(place)
    return None if at is None or not members else members[at]


def _plain(explanation: Explanation) -> list[int]:
    return [i for i, special in enumerate(explanation.units.special) if not special]


def share(explanation: Explanation) -> float:
    """What to multiply scores by, so that those of ordinary units add up to one in absolute value.

    Methods have units of their own (attention sums to one, gradients do not); shares can stand on one scale.
    """
    total = float(np.abs(ordinary(explanation)).sum())
    return 1 / total if total else 1.0
