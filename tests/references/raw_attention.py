"""Raw attention, one entry at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
    n = whole.shape[0]
    scores = torch.zeros(n, dtype=torch.float64)
    for j in range(n):
        received = [float(whole[i, j]) for i in range(n)]
        scores[j] = {
            "row": float(whole[row, j]),
            "column": float(whole[j, row]),
            "column_mean": sum(received) / n,
            "column_sum": sum(received),
            "column_max": max(received),
            "diagonal": float(whole[j, j]),
        }[read]
    return scores


def fuse(attention_HQK: Tensor, heads: str | int | Sequence[int]) -> Tensor:
    if isinstance(heads, int):
        return attention_HQK[heads]
    if not isinstance(heads, str):
        return sum(attention_HQK[h] for h in heads) / len(heads)
    count, n, m = attention_HQK.shape
    fused = torch.zeros(n, m, dtype=torch.float64)
    for i in range(n):
        for j in range(m):
            cell = [float(attention_HQK[h, i, j]) for h in range(count)]
            fused[i, j] = {"mean": sum(cell) / count, "sum": sum(cell), "max": max(cell), "min": min(cell)}[heads]
    return fused
