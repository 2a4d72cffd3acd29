"""Attention Grad-CAM (the baseline of Chefer et al.), cell by cell."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.references.eager_attention import reported, reported_by_columns
from tests.references.twin import FAMILY, TARGET, Setting, Twin, each

Array = np.ndarray


def attention_gradcam(attention: Array, gradient: Array, cells: list[tuple[int, int]] | None = None) -> Array:
    """attention, gradient: (H, Q, K) of one layer of one input; ``cells``: where the gradient is averaged (all)."""
    heads, queries, keys = attention.shape
    where = cells or [(i, j) for i in range(queries) for j in range(keys)]
    weight = [sum(gradient[h, i, j] for i, j in where) / len(where) for h in range(heads)]
    cam = np.zeros((queries, keys))
    for i in range(queries):
        for j in range(keys):
            total = sum(weight[h] * attention[h, i, j] for h in range(heads))
            cam[i, j] = max(0.0, total / heads)
    return cam


def expected(name: str, row: int, layer: str | int = "last", region: str = "all") -> dict[str, Array]:
    if name == "rtdl_ft_transformer":  # its last layer has one row
        known = reported_by_columns(name, row, TARGET)
        maps = [attention_gradcam(a, g)[0] for a, g in zip(known.attention, known.gradient, strict=True)]
        return {"scores": maps[-1] if layer == "last" else np.mean(maps, axis=0)}
    known = reported(name, row, TARGET)
    number = -1 if layer == "last" else int(layer)
    special = 1 if region == "row_units" else 0  # the authors' reading of a vision transformer: patches alone
    cells = [(known.row, j) for j in range(special, known.attention[0].shape[-1])]
    whole = attention_gradcam(known.attention[number], known.gradient[number], None if region == "all" else cells)
    return {"matrix": whole, "scores": whole[known.row]}


CHOICES: list[dict[str, Any]] = [{"region": r, "layer": n} for r in ("all", "row") for n in ("last", 0, -2)]
TWIN = Twin(
    expected,
    [
        *each(FAMILY, CHOICES),
        Setting("vit", {"region": "row_units"}),
        *each(("rtdl_ft_transformer",), [{"layer": "last"}, {"layer": "mean"}]),
    ],
)
