"""Maps that are larger than what can be drawn: neighbours share a cell."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def largest(values: Array, longest: int) -> Array:
    """At most so many rows and columns: a mean would fade single weights, and the scale would be that of means."""
    for axis in (0, 1):
        if values.shape[axis] > longest:
            starts = [int(part[0]) for part in np.array_split(np.arange(values.shape[axis]), longest)]
            values = np.maximum.reduceat(values, starts, axis)
    return values
