"""A matrix on a sheet: cells, slanted column labels, axes' names."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.views.color import colours, ink_on
from whyformer.views.facts import short
from whyformer.views.figure.sheet import GREY, LINE, Sheet, letter
from whyformer.views.marks import Matrix

LONGEST_LABEL = 16
MOST_LABELS = 48
LARGEST_CELL, NUMBERED = 0.32, 0.46  # inches; with numbers
READABLE = 0.3  # inches that a number needs
UPRIGHT = 3  # letters of a column's label that need not be slanted
SIZE = 8.0


def numbered_width(mark: Matrix) -> float:
    """Inches that a matrix needs for its numbers to be drawn; 0 without numbers."""
    if not mark.numbers:
        return 0.0
    across, down = (max((len(_short(x)) for x in names), default=0) for names in (mark.column_labels, mark.row_labels))
    slant = across * letter(SIZE) * 0.6 if across > UPRIGHT else 0.05
    return 0.35 + down * letter(SIZE) + slant + (READABLE + 0.02) * int(mark.values.shape[1])


def draw_matrix(sheet: Sheet, x: float, y: float, width: float, mark: Matrix) -> float:
    """Returns where it ends."""
    rows, columns = int(mark.values.shape[0]), int(mark.values.shape[1])
    if mark.small:
        side = min(width, 2.2)
        height = side * rows / columns
        sheet.pixels(x, y, side, height, colours(mark.scale, mark.values))
        sheet.box(x, y, side, height, "none", LINE)
        return y + height
    labelled = max(rows, columns) <= MOST_LABELS
    row_labels = [_short(label) for label in mark.row_labels] if labelled else []
    column_labels = [_short(label) for label in mark.column_labels] if labelled else []
    left = x + (0.32 if mark.row_axis else 0.25) + max((len(label) for label in row_labels), default=0) * letter(SIZE)
    longest = max((len(label) for label in column_labels), default=0)
    overhang = longest * letter(SIZE) if longest > UPRIGHT else 0.08
    cell = min(NUMBERED if mark.numbers else LARGEST_CELL, (x + width - left - overhang * 0.6) / columns)
    top = y + 0.1 + overhang * 0.82
    size = min(SIZE, cell * 72 * 0.8)
    pixels = colours(mark.scale, mark.values)
    sheet.pixels(left, top, cell * columns, cell * rows, pixels)
    sheet.box(left, top, cell * columns, cell * rows, "none", LINE)
    if mark.numbers and cell >= READABLE:
        for (r, c), value in np.ndenumerate(mark.told()):
            ink = ink_on((int(pixels[r, c, 0]), int(pixels[r, c, 1]), int(pixels[r, c, 2])))
            middle: dict[str, Any] = {"ha": "center", "va": "center", "size": cell * 15, "color": ink}
            sheet.text(left + (c + 0.5) * cell, top + (r + 0.5) * cell, short(float(value)), **middle)
    for i, label in enumerate(row_labels):
        sheet.text(left - 0.06, top + (i + 0.5) * cell, label, size=size, ha="right", va="center")
    slanted: dict[str, Any] = {"rotation": 55, "rotation_mode": "anchor", "va": "center"}
    turned = slanted if longest > UPRIGHT else {"ha": "center"}
    for i, label in enumerate(column_labels):
        at = left + (i + 0.5) * cell
        sheet.text(at, top - 0.05, label, size=size, **turned)
    # The names of the axes can be longer than the axes.
    half_across, half_down = (len(axis) * letter(SIZE) / 2 for axis in (mark.column_axis, mark.row_axis))
    across, down = max(left + cell * columns / 2, x + 0.25 + half_across), max(top + cell * rows / 2, y + half_down)
    end = max(top + cell * rows, down + half_down)
    if mark.row_axis:
        sheet.text(x + 0.1, down, mark.row_axis, size=SIZE, color=GREY, rotation=90, ha="center", va="center")
    if mark.column_axis:
        end += 0.2
        sheet.text(across, end, mark.column_axis, size=SIZE, color=GREY, ha="center")
    return end


def _short(label: str) -> str:
    longest = 2 * LONGEST_LABEL if " = " in label else LONGEST_LABEL  # a column and its value
    return label if len(label) <= longest else label[: longest - 1] + "…"
