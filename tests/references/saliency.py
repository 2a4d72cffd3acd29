"""Saliency (Simonyan et al. 2014), unit by unit."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from tests.references.differentiable import Numbers


def saliency(numbers: Numbers, norm: str = "l2") -> np.ndarray:
    gradient = numbers.gradient(numbers.x)
    return np.array([size(gradient, unit, norm) for unit in numbers.units])


def size(gradient: Tensor, unit: Tensor | None, norm: str) -> float:
    """The entries of a gradient that belong to one unit, as one number."""
    if unit is None:
        return 0.0
    entries = gradient[unit].tolist()
    if norm == "l2":
        return float(sum(g * g for g in entries) ** 0.5)
    if norm == "l1":
        return float(sum(abs(g) for g in entries))
    if norm == "max":
        return max(abs(g) for g in entries)
    return float(sum(entries))
