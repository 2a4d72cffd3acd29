"""Raw attention, one entry at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.references.eager_attention import quantities_of
from tests.references.twin import FAMILY, Twin, each, relative_to_one


def raw_attention(
    attention: Sequence[Tensor],
    row: int,
    layers: str | int | Sequence[int] = "last",
    heads: str | int | Sequence[int] = "mean",
    read: str = "row",
) -> Tensor:
    fused = [fuse(a, heads) for a in attention]
    if layers == "last":
        whole = fused[-1]
    elif layers == "mean":
        whole = sum(fused) / len(fused)
    elif layers == "product":
        whole = fused[0]
        for later in fused[1:]:
            whole = later @ whole
    else:
        chosen = [layers] if isinstance(layers, int) else list(layers)
        whole = sum(fused[i] for i in chosen) / len(chosen)
    n, cells = whole.shape[0], whole.tolist()
    scores = torch.zeros(n, dtype=torch.float64)
    for j in range(n):
        received = [cells[i][j] for i in range(n)]
        scores[j] = {
            "row": cells[row][j],
            "column": cells[j][row],
            "column_mean": sum(received) / n,
            "column_sum": sum(received),
            "column_max": max(received),
            "diagonal": cells[j][j],
        }[read]
    return scores


def fuse(attention_HQK: Tensor, heads: str | int | Sequence[int]) -> Tensor:
    if isinstance(heads, int):
        return attention_HQK[heads]
    if not isinstance(heads, str):
        return sum(attention_HQK[h] for h in heads) / len(heads)
    count, n, m = attention_HQK.shape
    cells, fused = attention_HQK.tolist(), [[0.0] * m for _ in range(n)]
    for i in range(n):
        for j in range(m):
            cell = [cells[h][i][j] for h in range(count)]
            fused[i][j] = {"mean": sum(cell) / count, "sum": sum(cell), "max": max(cell), "min": min(cell)}[heads]
    return torch.tensor(fused, dtype=torch.float64)


def expected(name: str, row: int, **options: Any) -> dict[str, Tensor]:
    q = quantities_of(name, row)
    return {"scores": raw_attention(q.attention, q.row, **options)}


READINGS = ("row", "column", "column_mean", "column_sum", "column_max", "diagonal")
CHOICES: list[dict[str, Any]] = [
    *[{"read": r} for r in READINGS],
    *[{"heads": h} for h in ("max", "min", "sum", 2, [0, 3])],
    *[{"layers": layers} for layers in ("mean", "product", 0, -1, [0, 1])],
    {"layers": "product", "heads": 1, "read": "column_max"},
]
TWIN = Twin(expected, each(FAMILY, CHOICES, double=False, compare=relative_to_one))
