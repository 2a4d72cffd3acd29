"""In-context predictions: the columns of the row, and the training rows beside it."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.parameters import checked
from whyformer.views.facts import number
from whyformer.views.marks import Bar, Bars, Matrix
from whyformer.views.scales import scale_of
from whyformer.views.view import Fact, Panel, View

MOST_BARS, MOST_ROWS = 24, 12  # training rows, the strongest first


@checked
def context_view(result: Any) -> View:
    """The picture of a ContextExplanation: two panels of bars, and the cells of the training rows that count most."""
    panels = []
    order = _strongest(result.row_scores)[:MOST_BARS]
    names = [f"row {i} = {answer}" for i, answer in enumerate(result.answers)]
    if np.isfinite(result.scores).all():
        scale = scale_of([result.scores], result.signed, meaning="score")
        bars = tuple(
            Bar(f"{result.columns[i]} = {result.values[i]}", float(result.scores[i]), False)
            for i in _strongest(result.scores)
        )
        panels.append(Panel((Bars(bars, scale),), "columns of this row"))
    row_scale = scale_of([result.row_scores], result.rows_signed, meaning="score")
    rows = tuple(Bar(names[i], float(result.row_scores[i]), False) for i in order)
    panels.append(Panel((Bars(rows, row_scale),), "training rows and their answers"))
    if np.isfinite(result.cells).all():
        first = order[:MOST_ROWS]
        shade = scale_of([result.cells[first]], result.signed, meaning="score")
        labels = tuple(names[i] for i in first)
        mark = Matrix(result.cells[first], shade, labels, result.columns, "training row", "column")
        panels.append(Panel((mark,), f"cells of the first {len(first)} of these training rows", wide=True))
    settings = ", ".join(f"{k}={v}" for k, v in result.options.items())
    facts = (
        Fact("explained", f"{result.scalar.replace('_', '-')} of {result.target} = {number(result.value)}"),
        Fact("method", result.method + (f" ({settings})" if settings else "")),
        Fact("cost", f"{result.forwards} forward, {result.backwards} backward"),
        Fact("model", result.model),
    )
    more = len(result.row_scores) - len(order)
    caption = f"{more} training rows that count less are not shown." if more > 0 else ""
    return View("What this row and its training rows did", tuple(panels), facts, result.warnings, caption, columns=2)


def _strongest(scores: Any) -> list[int]:
    return [int(i) for i in np.argsort(-np.abs(scores), kind="stable")]
