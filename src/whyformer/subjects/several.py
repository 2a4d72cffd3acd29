"""Several raw inputs: columns of them are lists, and one that cannot be used is named by its place."""

from __future__ import annotations

import math
from numbers import Number
from typing import Any

from whyformer.errors import BadInput, MissingProcessor
from whyformer.subjects.base import Batch, Subject


def listed(inputs: Any) -> Any:
    """A column of texts (a pandas Series, an array of strings) is a list of them; an array of numbers is one sound."""
    kind = getattr(getattr(inputs, "dtype", None), "kind", "")
    if kind not in {"O", "U", "T"} or getattr(inputs, "ndim", 0) != 1:
        return inputs
    members = list(inputs)
    if members and all(isinstance(member, Number) for member in members):
        return inputs
    missing = [f"inputs[{i}]" for i, member in enumerate(members) if _is_missing(member)]
    if missing:
        places = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
        raise BadInput(
            f"{len(missing)} of {len(members)} texts are missing (None or NaN): {places}. Leave them out (a Series has "
            "dropna()), or fill them in."
        )
    return members


def _is_missing(member: Any) -> bool:
    return member is None or type(member).__name__ == "NAType" or (isinstance(member, float) and math.isnan(member))


def encoded(subject: Subject, raw: list[Any]) -> Batch:
    """What the subject makes of the inputs. Where one of several is to blame, the error says which."""
    try:
        return subject.encode(raw)
    except MissingProcessor:
        raise
    except BadInput as error:
        place = _to_blame(subject, raw, str(error)) if len(raw) > 1 else None
        if place is not None:
            error.args = (f"inputs[{place}]: {error}",)
        raise


def _to_blame(subject: Subject, raw: list[Any], message: str) -> int | None:
    """The first input that gives this error by itself, unless all do: then it is not the input."""
    first, fine = None, False
    for place, one in enumerate(raw):
        try:
            subject.encode([one])
            fine = True
        except BadInput as error:
            first = place if first is None and str(error) == message else first
        if fine and first is not None:
            return first
    return None
