"""Tables, curves and points on a terminal: columns of text, a curve as a line of blocks, points as letters."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from whyformer.views.axes import axes_of, limits, styles, x_of
from whyformer.views.color import colour, hexadecimal, ink_on
from whyformer.views.facts import number
from whyformer.views.html.charts import SHADE
from whyformer.views.marks import Line, Lines, Scatter, Table

BLOCKS = "▁▂▃▄▅▆▇█"
FEWEST = 8  # blocks of a curve
TALL, WIDE = 14, 60  # lines and columns of a plane of points, at most
POINTS = "·o+x*#@%"


def table_block(mark: Table, width: int, coloured: bool) -> RenderableType:
    """Columns that do not fit beside each other go below, under the first one again."""
    groups = _groups(mark, width)
    return Group(*(_columns(mark, [0, *group], coloured) for group in groups))


def _groups(mark: Table, width: int) -> list[list[int]]:
    sizes = [
        max(len(mark.columns[c]), *(len(row[c]) for row in mark.rows), 0) + 2 if mark.rows else len(mark.columns[c]) + 2
        for c in range(len(mark.columns))
    ]
    groups: list[list[int]] = [[]]
    room = width - sizes[0]
    for column in range(1, len(sizes)):
        if groups[-1] and sizes[column] > room:
            groups.append([])
            room = width - sizes[0]
        groups[-1].append(column)
        room -= sizes[column]
    return groups


def _columns(mark: Table, chosen: list[int], coloured: bool) -> RichTable:
    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for column in chosen:
        table.add_column(Text(mark.columns[column]), justify="right" if column else "left", no_wrap=True)
    for r, row in enumerate(mark.rows):
        cells = []
        for column in chosen:
            shade = mark.shade(r, column)
            style = "dim" if r in mark.quiet else ""
            if coloured and shade is not None:
                background = colour(SHADE, shade)
                style = f"{ink_on(background)} on {hexadecimal(background)}"
            cells.append(Text(row[column], style=style))
        table.add_row(*cells)
    table.add_row("")
    return table


def lines_block(mark: Lines, width: int, coloured: bool) -> RenderableType:
    """Each curve as blocks between the lowest and the highest value of all, with its ends."""
    low, high = limits(mark)
    longest = max(len(line.name) for line in mark.lines)
    room = max(FEWEST, min(max(len(x_of(mark, line)) for line in mark.lines), width - narrowest_lines(mark) + FEWEST))
    curves = []
    for line in mark.lines:
        values = line.values if len(line.values) else np.full(1, np.nan)
        picked = values[np.linspace(0, len(values) - 1, room).round().astype(int)]
        places = (picked - low) / (high - low) * (len(BLOCKS) - 1)
        drawn = "".join(" " if not np.isfinite(p) else BLOCKS[round(float(p))] for p in places)
        text = f"{line.name:<{longest}}  {drawn}  {_ends(line)}"
        curves.append(Text(text, style="dim" if line.quiet else "", no_wrap=True))
    return Group(*curves, Text(f"{mark.y_axis}, against {mark.x_axis}", style="dim"))


def narrowest_lines(mark: Lines) -> int:
    """Columns that the names, a few blocks and both ends of the curves need."""
    return max(len(line.name) for line in mark.lines) + max(len(_ends(line)) for line in mark.lines) + FEWEST + 4


def _ends(line: Line) -> str:
    return f"{number(float(line.values[0]))} → {number(float(line.values[-1]))}" if len(line.values) else ""


def scatter_block(mark: Scatter, width: int, coloured: bool) -> RenderableType:
    """A plane of characters, one per kind of points; later kinds stand before earlier ones."""
    across, up = axes_of(mark)
    wide = max(FEWEST, min(WIDE, width - 12))
    plane = [[Text(" ") for _ in range(wide)] for _ in range(TALL)]
    keys = Text()
    for number_of, (group, (ink, _)) in enumerate(zip(mark.groups, styles(mark.groups), strict=True)):
        letter = Text(POINTS[number_of % len(POINTS)], style=ink if coloured else "")
        keys.append_text(letter).append(f" {group.name}  ")
        for x, y in zip(across.shares(group.x), up.shares(group.y), strict=True):
            if np.isfinite(x) and np.isfinite(y):
                plane[TALL - 1 - round(y * (TALL - 1))][round(x * (wide - 1))] = letter
    lines = []
    for height, row in enumerate(plane):
        value = number(up.end) if height == 0 else number(up.start) if height == TALL - 1 else ""
        lines.append(Text(f"{value:>9} │", no_wrap=True).append_text(Text("").join(row)))
    ends = f"{number(across.start)}{number(across.end):>{max(1, wide - len(number(across.start)))}}"
    lines.append(Text(" " * 11 + ends, no_wrap=True))
    return Group(*lines, keys, Text(f"{mark.y_axis}, against {mark.x_axis}", style="dim"))
