"""Tables, curves and points on a sheet."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.views.axes import axes_of, styles, x_of
from whyformer.views.color import colour, hexadecimal, ink_on
from whyformer.views.figure.sheet import GREY, INK, LINE, Sheet, cells, letter
from whyformer.views.html.charts import SHADE
from whyformer.views.marks import Lines, Scatter, Table

ROW, SIZE = 0.21, 8.0
CROWD = 200  # points, beyond which they are small
DASHES: dict[str, Any] = {"": "-", "5 3": (0, (4, 2)), "2 3": (0, (1.5, 2)), "7 3 2 3": (0, (5, 2, 1.5, 2))}


def draw_table(sheet: Sheet, x: float, y: float, width: float, mark: Table) -> float:
    """Returns where the table ends; columns shrink where the sheet is too narrow."""
    wide = _column_widths(mark)
    scale = min(1.0, width / sum(wide))
    size, wide = SIZE * scale, [w * scale for w in wide]
    ends = x + np.cumsum(wide)
    for c, heading in enumerate(mark.columns):
        _cell(sheet, x, ends, wide, c, y, heading, size, color=GREY)
    y += ROW
    sheet.axes.plot([x, x + float(sum(wide))], [y, y], color=GREY, linewidth=0.7)
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


def table_width(mark: Table) -> float:
    """Inches that a table takes where there is room for it."""
    return sum(_column_widths(mark))


def _column_widths(mark: Table) -> list[float]:
    return [
        max([cells(mark.columns[c]), *(cells(row[c]) for row in mark.rows)]) * letter(SIZE) + 0.2
        for c in range(len(mark.columns))
    ]


def _cell(
    sheet: Sheet, x: float, ends: Any, wide: list[float], column: int, y: float, text: str, size: float, **look: Any
) -> None:
    at = x if column == 0 else float(ends[column]) - 0.06
    sheet.text(at, y + ROW * 0.7, text, size=size, ha="left" if column == 0 else "right", **look)


def draw_lines(sheet: Sheet, x: float, y: float, width: float, mark: Lines) -> float:
    """Curves in a frame, with their limits; names below."""
    plane = _Plane(sheet, x, y + 0.1, width, mark)
    for line, (stroke, dash) in zip(mark.lines, styles(mark.lines), strict=True):
        xs = plane.across(x_of(mark, line))
        look: dict[str, Any] = {"color": stroke, "linestyle": DASHES[dash], "linewidth": 1.4}
        if line.low is not None and line.high is not None:
            sheet.axes.fill_between(xs, plane.up(line.low), plane.up(line.high), alpha=0.15, color=stroke, linewidth=0)
            look |= {"marker": "o", "markersize": 3}
        sheet.axes.plot(xs, plane.up(line.values), **look)
    if len(mark.lines) > 1:  # a single one is named by the heading
        plane.keys([line.name for line in mark.lines], styles(mark.lines), lines=True)
    return plane.end


def draw_scatter(sheet: Sheet, x: float, y: float, width: float, mark: Scatter) -> float:
    """Points in a frame, kinds below."""
    plane = _Plane(sheet, x, y + 0.1, width, mark)
    size = 9 if sum(len(group.x) for group in mark.groups) > CROWD else 26
    for group, (ink, _) in zip(mark.groups, styles(mark.groups), strict=True):
        look: dict[str, Any] = {"s": size, "alpha": 0.6, "color": ink, "linewidths": 0}
        sheet.axes.scatter(plane.across(group.x), plane.up(group.y), **look)
    plane.keys([group.name for group in mark.groups], styles(mark.groups))
    return plane.end


class _Plane:
    """A frame with ticks and names; ``across`` and ``up`` say where values lie on the sheet."""

    def __init__(self, sheet: Sheet, x: float, y: float, width: float, mark: Lines | Scatter) -> None:
        self.sheet, self.x, self.y, self.width = sheet, x, y, min(width, 6.5)
        self.left, self.wide, self.height = x + 0.55, self.width - 0.65, min(2.9, 0.6 * width)
        self.x_axis, self.y_axis = axes_of(mark)
        self.end = y + self.height + 0.4
        for value in self.y_axis.ticks():
            ends, level = [self.left, self.left + self.wide], [float(self.up(value))] * 2
            sheet.axes.plot(ends, level, color=LINE, linewidth=0.6, zorder=0.5)
            sheet.text(self.left - 0.06, float(self.up(value)) + 0.03, f"{value:.4g}", size=7, ha="right", color=GREY)
        below = y + self.height
        for value in self.x_axis.ticks():
            sheet.text(float(self.across(value)), below + 0.16, f"{value:.4g}", size=7, ha="center", color=GREY)
        sheet.text(self.left + self.wide / 2, below + 0.34, mark.x_axis, size=8, ha="center", color=GREY)
        upright: dict[str, Any] = {"size": 8, "ha": "center", "va": "center", "rotation": 90, "color": GREY}
        sheet.text(x + 0.1, y + self.height / 2, mark.y_axis, **upright)

    def across(self, values: Any) -> Any:
        return self.left + self.x_axis.shares(values) * self.wide

    def up(self, values: Any) -> Any:
        return self.y + (1 - self.y_axis.shares(values)) * self.height

    def keys(self, names: list[str], looks: list[tuple[str, str]], lines: bool = False) -> None:
        at, below = self.left, self.y + self.height + 0.58
        for name, (ink, dash) in zip(names, looks, strict=True):
            needed = 0.42 + cells(name) * letter(7.5)
            if at + needed > self.x + self.width and at > self.left:
                at, below = self.left, below + 0.17
            if lines:
                ends, level = [at, at + 0.22], [below - 0.04] * 2
                self.sheet.axes.plot(ends, level, color=ink, linestyle=DASHES[dash], linewidth=1.4)
            else:
                self.sheet.axes.scatter([at + 0.16], [below - 0.04], s=22, color=ink, linewidths=0)
            self.sheet.text(at + 0.27, below, name, size=7.5)
            at += needed
        self.end = below + 0.08
