"""What Quantus demands of its arrays before it computes a metric, said again: tests do without the package."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def check_attributions(x_batch: Array, y_batch: Array, a_batch: Array) -> None:
    """NumPy arrays, as many samples and axes, channels first; the places of a sample agree, and scores differ."""
    assert all(type(array) is np.ndarray for array in (x_batch, y_batch, a_batch))
    assert len(x_batch) == len(y_batch) == len(a_batch) and y_batch.ndim == 1 and y_batch.dtype.kind == "i"
    assert x_batch.ndim == a_batch.ndim
    assert a_batch.shape[2:] == x_batch.shape[2:] and a_batch.shape[1] in (1, x_batch.shape[1])
    assert np.isfinite(a_batch).all() and all(len(np.unique(sample)) > 1 for sample in a_batch)
