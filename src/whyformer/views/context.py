"""In-context predictions: the columns of the row, and the training rows beside it."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.parameters import checked
from whyformer.views.facts import number
from whyformer.views.view import Bar, Bars, Fact, Matrix, Panel, View, scale_of

MOST = 12  # training rows at either end


@checked
def context_view(result: Any) -> View:
    """The picture of a ContextExplanation: two panels of bars, and the cells of the training rows that count most."""
    panels = []
    order = _strongest(result.row_scores)[: 2 * MOST]
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
        shown = result.cells[order]
        shade = scale_of([shown], result.signed, meaning="score")
        mark = Matrix(shown, shade, tuple(names[i] for i in order), result.columns, "training row", "column")
        panels.append(Panel((mark,), "cells of these training rows", wide=True))
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
