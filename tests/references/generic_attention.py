"""Generic attention explainability (Chefer et al. 2021): eqs. 5 and 6 for a single stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.references.eager_attention import quantities_of
from tests.references.twin import FAMILY, Twin, each, relative_to_one


def generic_attention(
    attention: Sequence[Tensor], gradient: Sequence[Tensor], start_layer: int = 0, heads: Sequence[int] | None = None
) -> Tensor:
    n = attention[0].shape[-1]
    relevance = torch.eye(n, dtype=torch.float64)  # each token is relevant to itself
    for a, g in list(zip(attention, gradient, strict=True))[start_layer:]:
        chosen = range(a.shape[0]) if heads is None else heads
        cam = torch.zeros(n, n, dtype=torch.float64)
        for h in chosen:
            for i in range(n):
                for j in range(n):
                    cam[i, j] += max(0.0, float(g[h, i, j] * a[h, i, j])) / len(chosen)  # eq. 5
        relevance = relevance + cam @ relevance  # eq. 6
    return relevance


def expected(name: str, row: int, start_layer: int = 0, heads: int | list[int] | None = None) -> dict[str, Any]:
    q = quantities_of(name, row)
    whole = generic_attention(q.attention, q.gradient, start_layer, [heads] if isinstance(heads, int) else heads)
    return {"matrix": whole, "scores": whole[q.row], "value": pytest.approx(q.logit, abs=1e-4)}


CHOICES: list[dict[str, Any]] = [{"start_layer": 0}, {"start_layer": 1}, {"heads": 1}, {"heads": [0, 2]}]
TWIN = Twin(expected, each(FAMILY, CHOICES, double=False, compare=relative_to_one))
