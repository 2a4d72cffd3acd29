"""Saliency (Simonyan et al. 2014), unit by unit."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from tests.references.differentiable import Numbers, bert_embeddings, numbers
from tests.references.twin import FAMILY, Setting, Twin, each, relative, vanishing


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


def expected(name: str, row: int, norm: str = "l2", at: str = "input") -> dict[str, Any]:
    where = bert_embeddings(row) if at == "embeddings" else numbers(name, row)
    return {"scores": saliency(where, norm), "signed": norm == "sum"}


CENTRED = ("bert", "gpt2")  # every norm takes the mean over a vector away, so the score has no slope along it
TWIN = Twin(
    expected,
    [
        *each(FAMILY, [{"norm": norm} for norm in ("l2", "l1", "max")]),
        *[Setting(m, {"norm": "sum"}, compare=vanishing if m in CENTRED else relative) for m in FAMILY],
        Setting("bert", {"at": "embeddings"}),
    ],
)
