"""Attention rollout (Abnar & Zuidema 2020, section 3): Ã(l_i) = A(l_i) Ã(l_{i-1}), A = 0.5 W_att + 0.5 I."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.references.eager_attention import quantities_of
from tests.references.twin import FAMILY, Twin, each, relative_to_one


def attention_rollout(attention: Sequence[Tensor], residual: float = 0.5, start_layer: int = 0) -> Tensor:
    n = attention[0].shape[-1]
    joint = torch.eye(n, dtype=torch.float64)
    for a in attention[start_layer:]:
        mean = sum(a[h] for h in range(a.shape[0])) / a.shape[0]
        mixed = (1 - residual) * mean + residual * torch.eye(n, dtype=torch.float64)
        for i in range(n):
            mixed[i] = mixed[i] / mixed[i].sum()
        joint = mixed @ joint
    return joint


def expected(name: str, row: int, **options: Any) -> dict[str, Tensor]:
    q = quantities_of(name, row)
    whole = attention_rollout(q.attention, **options)
    return {"matrix": whole, "scores": whole[q.row]}


CHOICES: list[dict[str, Any]] = [{}, {"residual": 0.0}, {"residual": 0.3}, {"start_layer": 1}]
TWIN = Twin(expected, each(FAMILY, CHOICES, double=False, compare=relative_to_one))
