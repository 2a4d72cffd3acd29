"""Which scale a picture of an explanation gets, and which units stand beside it: [CLS], a first token, the one read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.types import Explanation, Units
from whyformer.views.marks import Scale

Array = np.ndarray[Any, Any]

OUTSHINES = 3  # times the highest of the others
FIRST_TOKEN = "first_token_share"  # what is known of an explanation of a causal language model
ANSWERED = "log_probability"  # what is explained of an answer as a whole
TEMPLATE = "template"  # the role of what stands around the messages of a chat


def scale_of(scores: Sequence[Array], signed: bool = False, from_zero: bool = True, meaning: str = "score") -> Scale:
    """One scale for all of ``scores``: symmetric if signed, else from zero (or the lowest) to the highest."""
    known = [np.asarray(s, float).ravel() for s in scores if np.size(s)]
    values = np.concatenate(known) if known else np.zeros(1)
    values = values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
    if signed or values.min() < 0:
        reach = float(np.abs(values).max())
        return Scale(-reach, reach, True, meaning)
    return Scale(0.0 if from_zero else float(values.min()), float(values.max()), False, meaning)


def ordinary(explanation: Explanation) -> Array:
    """Scores of the units that are not special; of all where there are no others.

    What [CLS] gets is often tens of times what any word gets, and would leave every word white. So would what the
    position that is read gives itself.
    """
    left_out = aside_of(explanation)
    plain = plain_units(explanation.units)
    return np.asarray(explanation.scores[[i for i in plain if i not in left_out] or slice(None)], float)


def aside_of(explanation: Explanation) -> set[int]:
    """Units beyond the scale of the others: the one that is read, and a language model's first token."""
    return {i for i in (outshining(explanation), first_token(explanation)) if i is not None}


def first_token(explanation: Explanation) -> int | None:
    """The first token of a language model's text, where it is a unit of its own: many models park attention there."""
    units = explanation.units
    begins = units.spans is None or not units.spans or units.spans[0][0] == 0  # chosen ranges may begin anywhere
    if not explanation.checks.get(FIRST_TOKEN) or not begins or len(units.labels[0].split()) > 1:
        return None
    return 0 if any(i > 0 for i in plain_units(units)) else None


def outshining(explanation: Explanation) -> int | None:
    """The unit that is read, where it is an ordinary one without a sign and all others would be white beside it.

    What a position gives itself is 1 and more by construction in methods that follow attention.
    """
    at = None if explanation.signed else position_read(explanation)
    if at is None:
        return None
    plain, first = plain_units(explanation.units), first_token(explanation)
    others = [float(explanation.scores[i]) for i in plain if i not in (at, first)]
    if at not in plain or not others:
        return None
    return at if float(explanation.scores[at]) > OUTSHINES * max(others) else None


def position_read(explanation: Explanation) -> int | None:
    """The unit whose output row is read, where it is a single one ("first position", "target: last position")."""
    if explanation.scalar == ANSWERED:  # read at the position before each of its tokens
        return None
    stream, _, place = explanation.readout.rpartition(": ")
    members = [i for i, s in enumerate(explanation.units.stream) if stream in ("", s)]
    at = {"first position": 0, "last position": -1}.get(place)
    return None if at is None or not members else members[at]


def plain_units(units: Units) -> list[int]:
    """Units that are neither special tokens nor what a chat template put in."""
    return [i for i, special in enumerate(units.special) if not special and not in_template(units, i)]


def in_template(units: Units, index: int) -> bool:
    return units.role is not None and units.role[index] == TEMPLATE


def share(explanation: Explanation) -> float:
    """What to multiply scores by, so that those of ordinary units add up to one in absolute value.

    Methods have units of their own (attention sums to one, gradients do not); shares can stand on one scale.
    """
    total = float(np.abs(ordinary(explanation)).sum())
    return 1 / total if total else 1.0
