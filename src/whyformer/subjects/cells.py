"""The values of one column: numbers, categories, and the gaps between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.errors import BadInput

Array = np.ndarray[Any, Any]


def is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, list, tuple))


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
