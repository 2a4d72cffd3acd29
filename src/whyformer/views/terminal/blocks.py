"""Text, pictures, matrices, tables and curves on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from whyformer.files import resized
from whyformer.shapes import Array
from whyformer.views import marks
from whyformer.views.header import number, short, whole_percent
from whyformer.views.html.charts import SHADE
from whyformer.views.image_marks import canvas_size, framed, painted, painted_heads, picture, shrunk
from whyformer.views.scales import axes_of, colour, colours, head_colour, hexadecimal, ink_on, limits, styles, x_of
from whyformer.views.text_marks import BarRow, Char, characters_of, placed_rows, wrapped

BLOCKS = "▁▂▃▄▅▆▇█"
FEWEST = 8  # blocks of a curve
TALL, WIDE = 14, 60  # lines and columns of a plane of points, at most
POINTS = "·o+x*#@%"


def table_block(mark: marks.TableMark, width: int, coloured: bool) -> RenderableType:
    """Columns that do not fit beside each other go below, under the first one again."""
    sizes = [max(map(len, column)) + 2 for column in zip(mark.columns, *mark.rows, strict=True)]
    groups: list[list[int]] = [[]]
    room = width - sizes[0]
    for column in range(1, len(sizes)):
        if groups[-1] and sizes[column] > room:
            groups.append([])
            room = width - sizes[0]
        groups[-1].append(column)
        room -= sizes[column]
    return Group(*(_columns(mark, [0, *group], coloured) for group in groups))


def _columns(mark: marks.TableMark, chosen: list[int], coloured: bool) -> RichTable:
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


def lines_block(mark: marks.Lines, width: int, coloured: bool) -> RenderableType:
    """Each named curve as blocks between the lowest and the highest value of all, with its ends."""
    mark = replace(mark, lines=tuple(line for line in mark.lines if not line.faint))
    low, high = limits(mark)
    longest = max(len(line.name) for line in mark.lines)
    room = max(FEWEST, min(max(len(x_of(mark, line)) for line in mark.lines), width - narrowest_lines(mark) + FEWEST))
    curves = []
    for line in mark.lines:
        values = line.values if len(line.values) else np.full(1, np.nan)
        picked = values[np.linspace(0, len(values) - 1, room).round().astype(int)]
        heights = (picked - low) / (high - low) * (len(BLOCKS) - 1)
        drawn = "".join(" " if not np.isfinite(p) else BLOCKS[round(float(p))] for p in heights)
        text = f"{line.name:<{longest}}  {drawn}  {_ends(line)}"
        curves.append(Text(text, style="dim" if line.quiet else "", no_wrap=True))
    return Group(*curves, Text(f"{mark.y_axis}, against {mark.x_axis}", style="dim"))


def narrowest_lines(mark: marks.Lines) -> int:
    """Columns that the names, a few blocks and both ends of the curves need."""
    return max(len(line.name) for line in mark.lines) + max(len(_ends(line)) for line in mark.lines) + FEWEST + 4


def _ends(line: marks.Line) -> str:
    return f"{number(float(line.values[0]))} → {number(float(line.values[-1]))}" if len(line.values) else ""


def scatter_block(mark: marks.Scatter, width: int, coloured: bool) -> RenderableType:
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


# Highlighted text on a terminal: wrapped by hand, so that marks stay under (or behind) their words. And an answer,
# with what each of its tokens came from, over what was read.

HATCH = "╱"
MOST_TOKENS = 24  # of an answer, that are followed one by one
LONGEST_TOKEN = 18
RISING = " ▁▂▃▄▅▆▇█"
HANGING = " ▔▀█"


def run_block(run: marks.TokenRun, width: int, coloured: bool) -> Group:
    """Lines of text with coloured backgrounds; without colours, blocks under the words (above and under if signed)."""
    lines: list[Text] = []
    for line in wrapped(characters_of(run), width):
        lines += [_highlighted(line, run.scale)] if coloured else _with_blocks(line, run.scale)
    return Group(*lines)


def _highlighted(line: list[Char], scale: marks.Scale) -> Text:
    text = Text(no_wrap=True)
    for _, group in groupby(line, key=lambda c: c.piece):
        characters = list(group)
        first, style = characters[0], ""
        if first.tint is not None:
            background = colour(scale, first.tint)
            style = f"{ink_on(background)} on {hexadecimal(background)}" + " italic" * first.special
            style = "dim strike" if first.aside else style
        text.append("".join(c.char for c in characters), style)
    return text


def _with_blocks(line: list[Char], scale: marks.Scale) -> list[Text]:
    words = "".join(c.char for c in line)
    above, below = ("".join(_block(c, scale, sign) for c in line) for sign in (1, -1))
    return [Text(part, no_wrap=True) for part in ((above, words, below) if scale.signed else (words, above))]


def _block(char: Char, scale: marks.Scale, sign: int) -> str:
    cells = cell_len(char.char)
    if char.aside:
        return (HATCH if sign > 0 else " ") * cells
    length = 0.0 if char.tint is None else (scale.length(char.tint) if scale.signed else scale.position(char.tint))
    blocks = RISING if sign > 0 else HANGING
    level = round(max(0.0, length * sign) * (len(blocks) - 1))
    return blocks[level] * cells


def reading_block(mark: marks.Reading, width: int, coloured: bool) -> Group:
    """Voice by voice under their names; folds in one line of words, what a template put in without colours."""
    lines: list[RenderableType] = []
    for part in mark.parts:
        if part.quiet:
            lines.append(Text(cut(f"{part.heading}: {part.text()}", width), style="dim"))
            continue
        lines.append(Text(part.heading, style="bold" if coloured else "", no_wrap=True))
        for passage in part.passages:
            if passage.folded:
                lines.append(Text(f"{passage.folded}, not shown …", style="dim"))
            else:
                lines.append(run_block(marks.TokenRun(passage.from_its_first_word(), mark.scale), width, coloured))
    return Group(*lines)


def dialogue_block(mark: marks.Dialogue, width: int, coloured: bool) -> Group:
    """The answer; its sentences and its first tokens, each with what it came from; what was read, and the mean."""
    answer = marks.TokenRun((marks.Piece("".join(mark.said).strip()),), marks.Scale(0.0, 1.0))
    lines = [Text("".join(c.char for c in line), style="bold") for line in wrapped(characters_of(answer), width)]
    lines.append(Text())
    if len(mark.sentences) > 1:
        for first, end in mark.sentences:
            words = "".join(mark.said[first:end]).strip()
            lines.append(_came_from(words, mark, first, end, width, LONGEST_TOKEN * 2))
        lines.append(Text())
    for token in range(min(len(mark.said), MOST_TOKENS)):
        words = mark.said[token].strip() or repr(mark.said[token])
        lines.append(_came_from(words, mark, token, token + 1, width))
    if len(mark.said) > MOST_TOKENS:
        lines.append(Text(f"… {len(mark.said) - MOST_TOKENS} more tokens", style="dim"))
    lines += [Text(), Text("what it read, with the mean over the answer", style="dim")]
    return Group(*lines, reading_block(mark.reading, width, coloured))


def _came_from(name: str, mark: marks.Dialogue, first: int, end: int, width: int, room: int = LONGEST_TOKEN) -> Text:
    sources = mark.sources(first, end)
    longest = max(LONGEST_TOKEN, width // 3)
    words = ", ".join(f"{cut(' '.join(text.split()), longest)} {whole_percent(share)}" for text, share in sources)
    words = words or "no single source"
    room = min(room, width // 3)
    shown = set_cell_size(cut(" ".join(name.split()), room), room)
    text = Text(f"{shown} ← ", no_wrap=True)
    return text.append(cut(words, width - cell_len(text.plain)))


def graph_block(mark: marks.StepGraph, width: int, coloured: bool) -> Group:
    """Each step, and below it what drove it."""
    lines: list[Text] = []
    for step, sources in mark.told():
        lines.append(Text(cut(step, width), style="bold" if coloured else ""))
        lines += [Text(cut(f"  ← {source}", width)) for source in sources]
    return Group(*lines)


def cut(words: str, width: int) -> str:
    """At most one line."""
    words = " ".join(words.split()) if "\n" in words else words
    return words if cell_len(words) <= width else set_cell_size(words, max(1, width - 1)).rstrip() + "…"


SHORTEST = 20  # cells of bars: with less room, notes beside them are their first word
LONGEST_NAME, LONGEST_BAR = 20, 30


def bars_block(mark: marks.Bars, width: int, coloured: bool) -> Group:
    rows, more = placed_rows(mark), mark.more
    digits = len(str(len(rows) or 1))
    labels = []
    for row in rows:  # a column with its value may take half of the width
        label = cut(row.bar.label, max(LONGEST_NAME, width // 2) if marks.PAIR in row.bar.label else LONGEST_NAME)
        labels.append(f"{row.rank:>{digits}}. {label}" if row.rank else label)
    lines = _bar_lines(rows, labels, mark, width, coloured)
    lines += [Text(" " * (digits + 2) + more, style="dim")] if more else []
    return Group(*lines, *([Text(mark.folded, style="dim")] if mark.folded else []))


def _bar_lines(rows: list[BarRow], labels: list[str], mark: marks.Bars, width: int, coloured: bool) -> list[Text]:
    draw = _step if mark.starts else _bar
    scores = [row.number + row.error for row in rows]
    label_width, score_width = (max(map(cell_len, words), default=0) for words in (labels, scores))
    whole, notes = width - label_width - score_width - 2, [row.bar.note for row in rows]
    room = whole - max((len(note) + 1 for note in notes if note), default=0)
    if room < SHORTEST:
        notes = [note.partition(":")[0] for note in notes]
        room = whole - max((len(note) + 1 for note in notes if note), default=0)
    lines = []
    for label, score, row, note in zip(labels, scores, rows, notes, strict=True):
        line = Text(f"{set_cell_size(label, label_width)} {score:>{score_width}} ", no_wrap=True)
        if room >= 4:
            drawn = draw(row, mark.scale, min(room, LONGEST_BAR), coloured)
            drawn.pad_right(min(room, LONGEST_BAR) - len(drawn) if note else 0)
            line.append_text(drawn)
        line.append(f" {note}" if note else "", style="dim")
        if row.bar.special:
            line.stylize("dim")
        lines.append(line)
    return lines


def _bar(row: BarRow, scale: marks.Scale, room: int, coloured: bool) -> Text:
    bar, length = row.bar, scale.length(row.bar.score)
    if scale.signed:
        half = (room - 1) // 2
        cells = round(abs(length) * half)
        left = " " * (half - cells) + "▓" * cells if length < 0 else " " * half
        drawn = f"{left}│{'█' * cells if length > 0 else ''}"
    else:
        full, rest = divmod(round(max(0.0, length * room) * 8), 8)
        drawn = "█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]
    if row.beyond:  # longer than the scale of the ordinary units
        drawn = f"«{drawn[1:]}" if length < 0 else f"{drawn[: room - 1]}»"
    return _inked(drawn, bar, scale, coloured)


def _step(row: BarRow, scale: marks.Scale, room: int, coloured: bool) -> Text:
    """A bar of a waterfall: at least one cell, from where the one before ended."""
    first = min(room - 1, round(row.start * room))
    cells = max(1, round((row.start + row.width) * room) - first)
    sign = "│" if row.bar.special and row.width < 0.01 else "▓" if row.bar.score < 0 else "█"
    return _inked(" " * first + sign * cells if row.width else "", row.bar, scale, coloured)


def _inked(drawn: str, bar: marks.Bar, scale: marks.Scale, coloured: bool) -> Text:
    if not coloured or bar.special or bar.quiet:
        return Text(drawn)
    # Bars are told apart by length; pale ends of the map would vanish on a white terminal.
    strong = max(abs(bar.score), 0.7 * max(abs(scale.low), abs(scale.high))) * (1 if bar.score >= 0 else -1)
    return Text(drawn, style=hexadecimal(colour(scale, strong)))


SHADES = "·░▒▓█"  # a dot for nothing, so that the edges of a map are seen
MINUS = "·:-=#"  # negative scores
TALLEST = 32  # pixels; two per line
LONGEST_LABEL = 14
NUMBER = 6  # columns of a cell with its number in it


def picture_block(mark: marks.Picture, width: int, coloured: bool) -> RenderableType:
    if not coloured:
        return Text(f"(the image, {mark.image.shape[0]} × {mark.image.shape[1]} pixels)")
    return _half_blocks(framed(picture(mark, _fitting(canvas_size(mark), width)), mark.frames))


def heat_block(mark: marks.Heat, width: int, coloured: bool) -> RenderableType:
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


def heads_block(mark: marks.HeadColours, width: int, coloured: bool) -> RenderableType:
    if coloured:
        legend = Text()
        for i, name in zip(mark.numbers, mark.names, strict=True):
            legend.append("■ ", style=head_colour(i)).append(f"{name}  ")
        return Group(_half_blocks(painted_heads(mark, _fitting(canvas_size(mark), width))), legend)
    maps = [shrunk(one, max(1, width)) for one in mark.maps_RC]
    wide = 2 if maps[0].shape[1] * 2 <= width else 1
    if len(maps) == 1:  # one head by itself: how strongly it looks, next to its highest
        scale = marks.Scale(float(maps[0].min()), float(maps[0].max()))
        shades = [Text("".join(_shade(v, scale) * wide for v in row), no_wrap=True) for row in maps[0]]
        return Group(*shades, Text(mark.names[0]))
    strongest = np.stack(maps).argmax(0)
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    lines = [Text("".join(f"{digits[v % len(digits)]:<{wide}}" for v in row), no_wrap=True) for row in strongest]
    legend = Text("strongest head per patch: " + ", ".join(f"{digits[i % 36]} {n}" for i, n in enumerate(mark.names)))
    return Group(*lines, legend)


def matrix_block(mark: marks.Matrix, width: int, coloured: bool) -> RenderableType:
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
    for i, row in enumerate(mark.coloured()):
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


def matrix_width(mark: marks.Matrix) -> int:
    """Return the width that a matrix needs."""
    if not mark.numbers:
        return min(LONGEST_LABEL, _label_width([*mark.row_labels])) + 5 + int(mark.values.shape[1])
    return _label_width(_row_names(mark)) + 1 + NUMBER * int(mark.values.shape[1])


def _label_width(labels: list[str]) -> int:
    return max((cell_len(label) for label in labels), default=0)


def _row_names(mark: marks.Matrix) -> list[str]:
    """Return row labels, with numbers if columns are labelled by number."""
    names = [set_cell_size(x, LONGEST_LABEL) if cell_len(x) > LONGEST_LABEL else x for x in mark.row_labels]
    return names if _columns_fit(mark) else [f"{name} {i:>2}" for i, name in enumerate(names)]


def _columns_fit(mark: marks.Matrix) -> bool:
    return all(cell_len(label) < NUMBER for label in mark.column_labels)


def _numbered(mark: marks.Matrix, width: int, coloured: bool) -> RenderableType:
    """Numbers on their colours; columns that do not fit beside each other go below."""
    names, by_name = _row_names(mark), _columns_fit(mark)
    label_width, columns = _label_width(names), int(mark.values.shape[1])
    step = max(1, (width - label_width - 1) // NUMBER)
    lines = [Text(f"rows: {mark.row_axis}; columns: {mark.column_axis}", style="dim")]
    for start in range(0, columns, step):
        shown = range(start, min(start + step, columns))
        named = [mark.column_labels[c] if by_name and mark.column_labels else str(c) for c in shown]
        heads = "".join(" " * (NUMBER - 1 - cell_len(name)) + f"{name} " for name in named)
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


def _shade(value: float, scale: marks.Scale) -> str:
    if np.isnan(value):
        return " "
    if not scale.signed:
        return SHADES[round(scale.position(value) * (len(SHADES) - 1))]
    length = scale.length(value)
    shades = SHADES if length >= 0 else MINUS
    return shades[round(abs(length) * (len(shades) - 1))]


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


MARKS: dict[type[marks.Mark], Callable[[Any, int, bool], RenderableType]] = {
    marks.TokenRun: run_block,
    marks.Bars: bars_block,
    marks.Picture: picture_block,
    marks.Heat: heat_block,
    marks.Matrix: matrix_block,
    marks.HeadColours: heads_block,
    marks.TableMark: table_block,
    marks.Lines: lines_block,
    marks.Scatter: scatter_block,
    marks.Reading: reading_block,
    marks.Dialogue: dialogue_block,
    marks.StepGraph: graph_block,
}
