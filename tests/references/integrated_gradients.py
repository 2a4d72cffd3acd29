"""Integrated gradients (Sundararajan et al. 2017): the path integral as a plain sum over many small steps, or by the
same quadrature as the method, to compare digits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tests.references.differentiable import Numbers


def integrated_gradients(numbers: Numbers, start: Tensor, steps: int, midpoints: bool = False) -> np.ndarray:
    if midpoints:
        times, weights = (np.arange(steps) + 0.5) / steps, np.full(steps, 1 / steps)
    else:
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        times, weights = (nodes + 1) / 2, weights / 2
    total = torch.zeros_like(numbers.x)
    for time, weight in zip(times, weights, strict=True):
        total += weight * numbers.gradient(start + time * (numbers.x - start))
    each = (numbers.x - start) * total
    return np.array([0.0 if unit is None else float(each[unit].sum()) for unit in numbers.units])
