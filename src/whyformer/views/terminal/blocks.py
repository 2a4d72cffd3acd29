"""Pictures and matrices on a terminal: half blocks in colour, shades of grey characters without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text

from whyformer.files.image_file import resized
from whyformer.views.color import colours, head_colour, ink_on
from whyformer.views.facts import short
from whyformer.views.image import canvas_size, framed, painted, painted_heads, picture, shrunk
from whyformer.views.marks import HeadColours, Heat, Matrix, Picture, Scale

Array = np.ndarray[Any, Any]
SHADES = "·░▒▓█"  # a dot for nothing, so that the edges of a map are seen
MINUS = "·:-=#"  # negative scores
TALLEST = 32  # pixels; two per line
LONGEST_LABEL = 14
NUMBER = 6  # columns of a cell with its number in it


def picture_block(mark: Picture, width: int, coloured: bool) -> RenderableType:
    if not coloured:
        return Text(f"(the image, {mark.image.shape[0]} × {mark.image.shape[1]} pixels)")
    return _half_blocks(framed(picture(mark, _fitting(canvas_size(mark), width)), mark.frames))


def heat_block(mark: Heat, width: int, coloured: bool) -> RenderableType:
    if mark.fine:  # pixels that are picked from many would make a pattern of their own
        mark = replace(mark, values_RC=shrunk(mark.values_RC, min(TALLEST, max(2, width // 2))))
    if coloured:  # the picture stands beside it: mixed with it in so few pixels, a scale would not keep its order
        size = _fitting(canvas_size(mark), width)
        return _half_blocks(framed(painted(replace(mark, image=None), size), mark.frames))
    values = mark.values_RC
    if values.shape[1] * 2 > width:
        size = (max(1, round(values.shape[0] * width / 2 / values.shape[1])), width // 2)
        values = resized(values, size)
    return Group(*(Text("".join(_shade(v, mark.scale) * 2 for v in row), no_wrap=True) for row in values))


def heads_block(mark: HeadColours, width: int, coloured: bool) -> RenderableType:
    if coloured:
        legend = Text()
        for i, name in zip(mark.numbers, mark.names, strict=True):
            legend.append("■ ", style=head_colour(i)).append(f"{name}  ")
        return Group(_half_blocks(painted_heads(mark, _fitting(canvas_size(mark), width))), legend)
    maps = [shrunk(one, max(1, width)) for one in mark.maps_RC]
    wide = 2 if maps[0].shape[1] * 2 <= width else 1
    if len(maps) == 1:  # one head by itself: how strongly it looks, next to its highest
        scale = Scale(float(maps[0].min()), float(maps[0].max()))
        shades = [Text("".join(_shade(v, scale) * wide for v in row), no_wrap=True) for row in maps[0]]
        return Group(*shades, Text(mark.names[0]))
    strongest = np.stack(maps).argmax(0)
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    lines = [Text("".join(f"{digits[v % len(digits)]:<{wide}}" for v in row), no_wrap=True) for row in strongest]
    legend = Text("strongest head per patch: " + ", ".join(f"{digits[i % 36]} {n}" for i, n in enumerate(mark.names)))
    return Group(*lines, legend)


def matrix_block(mark: Matrix, width: int, coloured: bool) -> RenderableType:
    if mark.small:
        side = max(2, min(width, 24))
        values = shrunk(mark.values, side)
        if coloured:
            return _half_blocks(colours(mark.scale, values))
        return Group(*(Text("".join(_shade(v, mark.scale) for v in row), no_wrap=True) for row in values))
    if mark.numbers:
        return _numbered(mark, width, coloured)
    label_width = min(LONGEST_LABEL, max((cell_len(x) for x in mark.row_labels), default=0))
    rows, columns = mark.values.shape
    cell = 3 if columns * 3 + label_width + 5 <= width else 1
    shown = min(columns, (width - label_width - 5) // cell)
    lines = []
    if mark.row_axis or mark.column_axis:
        lines.append(Text(f"rows: {mark.row_axis}; columns: {mark.column_axis}", style="dim"))
    if cell == 3:
        head = "".join(f"{i:>3}" for i in range(shown))
        lines.append(Text(" " * (label_width + 4) + head, style="dim", no_wrap=True))
    for i, row in enumerate(mark.values):
        label = mark.row_labels[i] if i < len(mark.row_labels) else ""
        line = Text(f"{i:>3} {set_cell_size(label, label_width)} "[: label_width + 5], no_wrap=True)
        for value in row[:shown]:
            if coloured:
                red, green, blue = colours(mark.scale, np.array(value))
                line.append(" " * cell, style=f"on rgb({red},{green},{blue})")
            else:
                shade = _shade(value, mark.scale)
                line.append(f"{shade * 2} " if cell > 1 else shade)
        lines.append(line)
    if shown < columns:
        lines.append(Text(f"… {columns - shown} more columns", style="dim"))
    if rows != columns or mark.row_labels != mark.column_labels:
        names = ", ".join(f"{i} {label}" for i, label in enumerate(mark.column_labels[:shown]))
        lines.append(Text(f"columns: {names}" if names else "", style="dim"))
    return Group(*lines)


def matrix_width(mark: Matrix) -> int:
    """What a matrix needs to stand in one piece."""
    if not mark.numbers:
        return min(LONGEST_LABEL, _label_width([*mark.row_labels])) + 5 + int(mark.values.shape[1])
    return _label_width(_row_names(mark)) + 1 + NUMBER * int(mark.values.shape[1])


def _label_width(labels: list[str]) -> int:
    return max((cell_len(label) for label in labels), default=0)


def _row_names(mark: Matrix) -> list[str]:
    """With their numbers where columns, which have no room for words, are told by them."""
    names = [set_cell_size(x, LONGEST_LABEL) if cell_len(x) > LONGEST_LABEL else x for x in mark.row_labels]
    return names if _columns_fit(mark) else [f"{name} {i:>2}" for i, name in enumerate(names)]


def _columns_fit(mark: Matrix) -> bool:
    return all(cell_len(label) < NUMBER for label in mark.column_labels)


def _numbered(mark: Matrix, width: int, coloured: bool) -> RenderableType:
    """Numbers on their colours; columns that do not fit beside each other go below."""
    names, by_name = _row_names(mark), _columns_fit(mark)
    label_width, columns = _label_width(names), int(mark.values.shape[1])
    step = max(1, (width - label_width - 1) // NUMBER)
    lines = [Text(f"rows: {mark.row_axis}; columns: {mark.column_axis}", style="dim")]
    for start in range(0, columns, step):
        shown = range(start, min(start + step, columns))
        heads = "".join(
            _to_the_right(mark.column_labels[c] if by_name and mark.column_labels else str(c)) for c in shown
        )
        lines.append(Text(" " * (label_width + 1) + heads, style="dim", no_wrap=True))
        for r, (row, told) in enumerate(zip(mark.values, mark.told(), strict=True)):
            label = names[r] if names else ""
            line = Text(" " * (label_width - cell_len(label)) + f"{label} ", style="dim", no_wrap=True)
            for c in shown:
                red, green, blue = (int(part) for part in colours(mark.scale, row[c]))
                style = f"not dim {ink_on((red, green, blue))} on rgb({red},{green},{blue})" if coloured else "not dim"
                line.append(f"{short(float(told[c])):>{NUMBER - 1}} ", style=style)
            lines.append(line)
    if not by_name and mark.row_labels != mark.column_labels:
        names_across = ", ".join(f"{i} {label}" for i, label in enumerate(mark.column_labels))
        lines.append(Text(f"columns: {names_across}", style="dim"))
    return Group(*lines)


def _to_the_right(label: str) -> str:
    return " " * (NUMBER - 1 - cell_len(label)) + label + " "


def _shade(value: float, scale: Scale) -> str:
    if np.isnan(value):
        return " "
    if not scale.signed:
        return SHADES[round(scale.position(value) * (len(SHADES) - 1))]
    length = scale.length(value)
    marks = SHADES if length >= 0 else MINUS
    return marks[round(abs(length) * (len(marks) - 1))]


def _fitting(size: tuple[int, int], width: int) -> tuple[int, int]:
    factor = min(width / size[1], TALLEST / size[0])
    return max(2, round(size[0] * factor)), max(1, round(size[1] * factor))


def _half_blocks(pixels: Array) -> Text:
    """Two rows of pixels per line: the upper is the character's colour, the lower its background."""
    if len(pixels) % 2:
        pixels = np.concatenate([pixels, pixels[-1:]])
    text = Text(no_wrap=True)
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        for a, b in zip(upper, lower, strict=True):
            text.append("▀", style=f"rgb({a[0]},{a[1]},{a[2]}) on rgb({b[0]},{b[1]},{b[2]})")
        text.append("\n")
    text.rstrip()
    return text
