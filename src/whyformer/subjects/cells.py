"""The values of one column: numbers, categories, and the gaps between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from whyformer.errors import BadInput

Array = np.ndarray[Any, Any]


def is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, list, tuple))


def row_of(given: Any) -> Any:
    """A Series as a dict; anything else as it is."""
    if not hasattr(given, "to_dict") or isinstance(given, Mapping):
        return given
    require_once([str(name) for name in getattr(given, "index", ())])
    return given.to_dict()


def require_once(names: Sequence[str]) -> None:
    """Of two columns with one name, which is meant?"""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        others = f" (as are {', '.join(map(repr, twice[1:]))})" if twice[1:] else ""
        raise BadInput(f"column {twice[0]!r} is there more than once{others}: keep the one that is meant.")


def column_of(values: Any) -> Array:
    """Values as they are: numpy must not turn numbers beside a string into strings."""
    made = np.asarray(values)
    return made if made.dtype.kind in "fiub" and made.ndim == 1 else np.array([*values, None], dtype=object)[:-1]


def numbers_of(name: str, values: Array) -> Array:
    try:
        numbers = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        for row, value in enumerate(values.tolist()):
            if not is_missing(value) and not _is_number(value):
                raise BadInput(f"column {name!r} holds {value!r} in row {row}: numbers are expected there.") from None
        raise BadInput(missing_message(name, values)) from None
    if np.isnan(numbers).any():
        raise BadInput(missing_message(name, values))
    if not np.isfinite(numbers).all():
        raise BadInput(f"column {name!r} is infinite in row {int(np.argmax(~np.isfinite(numbers)))}.")
    return numbers


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def is_missing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and np.isnan(value)) or str(value) == "<NA>"


def missing_message(name: str, values: Array) -> str:
    rows = [i for i, value in enumerate(values.tolist()) if is_missing(value)]
    where = f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:5]))}{', …' if len(rows) > 5 else ''}"
    return f"column {name!r} has no value in {where}: fill it, or leave those rows out."


def is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def shown_value(value: Any) -> str:
    if isinstance(value, (float, np.floating)):
        return f"{value:.6g}"
    return str(value)
