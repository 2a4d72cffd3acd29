"""Input × gradient (Shrikumar et al. 2016), unit by unit."""

from __future__ import annotations

import numpy as np

from tests.references.differentiable import Numbers


def input_x_gradient(numbers: Numbers) -> np.ndarray:
    gradient = numbers.gradient(numbers.x)
    scores = []
    for unit in numbers.units:
        pairs = [] if unit is None else zip(numbers.x[unit].tolist(), gradient[unit].tolist(), strict=True)
        scores.append(sum(x * g for x, g in pairs))
    return np.array(scores)
