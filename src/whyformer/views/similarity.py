"""Two texts and how close they are: what each pair of their tokens adds, and each token by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.parameters import checked
from whyformer.types import Explanation
from whyformer.views.explained import explanation_view
from whyformer.views.facts import doubts, facts, number
from whyformer.views.view import Bar, Bars, Matrix, Panel, View, scale_of

Array = np.ndarray[Any, Any]
CAPTION = (
    "A cell is what a pair of tokens adds to the cosine; all cells add up to it. Bars are the sums of rows and "
    "columns. Blue brings the texts together, orange sets them apart."
)


@checked
def similarity_view(explanation: Explanation, *, title: str = "") -> View:
    """Token × token heat map of two compared texts; the usual picture where pairs are not known (other pooling)."""
    maps = explanation.matrix if isinstance(explanation.matrix, dict) else {}
    if ("a", "b") not in maps:
        return explanation_view(explanation, title=title)
    pairs = maps["a", "b"]
    labels = {s: _labels(explanation, s) for s in ("a", "b")}
    scale = scale_of([pairs], True)
    both = scale_of([pairs.sum(1), pairs.sum(0)], True)
    matrix = Matrix(pairs, scale, labels["a"], labels["b"], "first text", "second text")
    panels = [Panel((matrix,), "pairs of tokens", wide=True)]
    for stream, sums in (("a", pairs.sum(1)), ("b", pairs.sum(0))):
        bars = tuple(Bar(label, float(v)) for label, v in zip(labels[stream], sums, strict=True))
        panels.append(Panel((Bars(bars, both),), {"a": "first text", "b": "second text"}[stream]))
    return View(
        title or f"similarity {number(explanation.value)}",
        tuple(panels),
        facts(explanation),
        doubts(explanation),
        CAPTION,
        legend=scale,
    )


def _labels(explanation: Explanation, stream: str) -> tuple[str, ...]:
    units = explanation.units
    return tuple(label for label, s in zip(units.labels, units.stream, strict=True) if s == stream)
