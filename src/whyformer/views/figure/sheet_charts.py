"""Tables and curves on a sheet."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.views.color import colour, hexadecimal, ink_on
from whyformer.views.figure.sheet import GREY, INK, LINE, Sheet, cells, letter
from whyformer.views.html.charts import SHADE, limits, styles, ticks
from whyformer.views.view import Lines, Table

ROW, SIZE = 0.21, 8.0
DASHES: dict[str, Any] = {"": "-", "5 3": (0, (4, 2)), "2 3": (0, (1.5, 2)), "7 3 2 3": (0, (5, 2, 1.5, 2))}


def draw_table(sheet: Sheet, x: float, y: float, width: float, mark: Table) -> float:
    """Returns where the table ends; columns shrink where the sheet is too narrow."""
    step = letter(SIZE)
    wide = [
        max([cells(mark.columns[c]), *(cells(row[c]) for row in mark.rows)]) * step + 0.2
        for c in range(len(mark.columns))
    ]
    scale = min(1.0, width / sum(wide))
    size, wide = SIZE * scale, [w * scale for w in wide]
    ends = x + np.cumsum(wide)
    for c, heading in enumerate(mark.columns):
        _cell(sheet, x, ends, wide, c, y, heading, size, color=GREY)
    y += ROW
    sheet.box(x, y, float(sum(wide)), 0.006, GREY)
    for r, row in enumerate(mark.rows):
        quiet = r in mark.quiet
        for c, text in enumerate(row):
            shade, ink = mark.shade(r, c), GREY if quiet else INK
            if shade is not None:
                background = colour(SHADE, shade)
                ink = ink_on(background)
                sheet.box(float(ends[c]) - wide[c], y + 0.01, wide[c], ROW - 0.02, hexadecimal(background))
            _cell(sheet, x, ends, wide, c, y, text, size, color=ink, style="italic" if quiet else "normal")
        y += ROW
    return y


def _cell(
    sheet: Sheet, x: float, ends: Any, wide: list[float], column: int, y: float, text: str, size: float, **look: Any
) -> None:
    at = x if column == 0 else float(ends[column]) - 0.06
    sheet.text(at, y + ROW * 0.7, text, size=size, ha="left" if column == 0 else "right", **look)


def draw_lines(sheet: Sheet, x: float, y: float, width: float, mark: Lines) -> float:
    """Curves in a frame, names below."""
    y += 0.1
    low, high = limits(mark)
    left, height = x + 0.55, min(2.9, 0.6 * width)
    across = width - 0.65
    x0, x1 = float(mark.x[0]), float(mark.x[-1])

    def to_y(value: Any) -> Any:
        return y + (high - value) / (high - low) * height

    for value in ticks(low, high):
        sheet.box(left, float(to_y(value)), across, 0.004, LINE)
        sheet.text(left - 0.06, float(to_y(value)) + 0.03, f"{value:.4g}", size=7, ha="right", color=GREY)
    for value in ticks(x0, x1):
        at = left + (value - x0) / ((x1 - x0) or 1) * across
        sheet.text(at, y + height + 0.16, f"{value:.4g}", size=7, ha="center", color=GREY)
    sheet.text(left + across / 2, y + height + 0.34, mark.x_axis, size=8, ha="center", color=GREY)
    sheet.text(x + 0.1, y + height / 2, mark.y_axis, size=8, ha="center", va="center", rotation=90, color=GREY)
    at, below = left, y + height + 0.58
    for line, (stroke, dash) in zip(mark.lines, styles(mark), strict=True):
        xs = left + (np.asarray(mark.x) - x0) / ((x1 - x0) or 1) * across
        sheet.axes.plot(xs, to_y(np.asarray(line.values)), color=stroke, linestyle=DASHES[dash], linewidth=1.4)
        needed = 0.42 + cells(line.name) * letter(7.5)
        if at + needed > x + width and at > left:
            at, below = left, below + 0.17
        sheet.axes.plot([at, at + 0.22], [below - 0.04] * 2, color=stroke, linestyle=DASHES[dash], linewidth=1.4)
        sheet.text(at + 0.27, below, line.name, size=7.5)
        at += needed
    return below + 0.08
