"""Input × gradient (Shrikumar et al. 2016), unit by unit."""

from __future__ import annotations

import numpy as np

from tests.references.differentiable import Numbers, bert_embeddings, numbers
from tests.references.twin import FAMILY, Setting, Twin, each


def input_x_gradient(numbers: Numbers) -> np.ndarray:
    gradient = numbers.gradient(numbers.x)
    scores = []
    for unit in numbers.units:
        pairs = [] if unit is None else zip(numbers.x[unit].tolist(), gradient[unit].tolist(), strict=True)
        scores.append(sum(x * g for x, g in pairs))
    return np.array(scores)


def expected(name: str, row: int, at: str = "input") -> dict[str, np.ndarray]:
    return {"scores": input_x_gradient(bert_embeddings(row) if at == "embeddings" else numbers(name, row))}


TWIN = Twin(expected, [*each(FAMILY), Setting("bert", {"at": "embeddings"})])
