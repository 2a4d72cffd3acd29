"""Draw on a matplotlib sheet measured in inches: text, charts and matrices."""

from __future__ import annotations

import textwrap
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from io import BytesIO
from itertools import accumulate, groupby
from typing import Any

import numpy as np
from rich.cells import cell_len as cells

from whyformer.shapes import Array
from whyformer.views import marks
from whyformer.views.header import short, whole_percent
from whyformer.views.html.charts import MOST_LABELS, SHADE, UPRIGHT, short_label
from whyformer.views.scales import axes_of, colour, colours, hexadecimal, ink_on, styles, x_of
from whyformer.views.text_marks import characters_of, wrapped

# Writing on figures: words that run from right to left, and signs that no font at hand can draw.

RIGHT_TO_LEFT = ("R", "AL")
JOINERS = "\u200d\ufe0e\ufe0f"  # between and behind the parts of one picture
SKIN_TONES = range(0x1F3FB, 0x1F400)


@cache
def direction(words: str) -> str:
    """ "R" or "L" by its first letter that has one, "" without any."""
    for char in words:
        kind = unicodedata.bidirectional(char)
        if kind in RIGHT_TO_LEFT or kind == "L":
            return "L" if kind == "L" else "R"
    return ""


def visual_order(pieces: Sequence[str], base: str) -> list[int]:
    """Pieces of one line as they stand from left to right, where the text as a whole runs towards ``base``.

    Neighbours against the base are one stretch, with what stands between them and runs neither way; a stretch keeps
    its own order. (The part of the Unicode bidirectional algorithm that orders whole words.)
    """
    against = "L" if base == "R" else "R"
    ways = [direction(piece) or base for piece in pieces]
    for i in range(1, len(pieces)):
        if not direction(pieces[i]) and ways[i - 1] == against:
            following = next((direction(later) for later in pieces[i + 1 :] if direction(later)), base)
            ways[i] = following
    stretches = [[i for i, _ in group] for _, group in groupby(enumerate(ways), key=lambda pair: pair[1])]
    if base == "R":
        return [i for part in reversed(stretches) for i in (part if ways[part[0]] == "L" else reversed(part))]
    return [i for part in stretches for i in (reversed(part) if ways[part[0]] == "R" else part)]


def spelled(words: str, drawn: Callable[[str], bool]) -> str:
    """Signs without a picture in any font by their names, :party popper:, in place of empty boxes."""
    if words.isascii():
        return words
    parts: list[str] = []
    for char in words:
        if char in JOINERS or (ord(char) in SKIN_TONES and parts and parts[-1].endswith(":")):
            continue
        known = unicodedata.name(char, "") if unicodedata.category(char) == "So" else ""
        parts.append(f":{known.lower()}:" if known and not drawn(char) else char)
    return "".join(parts)


INK, GREY, LINE = "#1b1f24", "#57606a", "#d8dde3"
DPI = 150
SANS, MONO = "DejaVu Sans", "DejaVu Sans Mono"  # both come with matplotlib
FALLBACKS = (
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans Arabic", "Noto Sans", "Arial Unicode MS"),
    *("Noto Emoji", "Segoe UI Emoji", "Symbola"),  # outlines: matplotlib draws no pictures in colours
)


def png_of(figure: Any) -> bytes:
    """Render a figure as PNG, for notebooks."""
    written = BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # shown as boxes
        figure.savefig(written, format="png")
    return written.getvalue()


class Sheet:
    """Draws text, boxes and pixels; ``finish`` cuts the paper to its height."""

    def __init__(self, width: float) -> None:
        from matplotlib.figure import Figure
        from matplotlib.font_manager import fontManager

        self.width = width
        # NOTE: no pyplot, which would keep every figure alive until it is closed.
        self.figure = Figure(figsize=(width, 1), dpi=DPI, facecolor="white")
        # Notebooks draw figures of pyplot; of others they would show the words "Figure size".
        self.figure._repr_png_ = partial(png_of, self.figure)  # type: ignore[attr-defined]
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        installed = {font.name for font in fontManager.ttflist}
        self._fallbacks = [name for name in FALLBACKS if name in installed]

    def finish(self, height: float) -> Any:
        self.figure.set_size_inches(self.width, height)
        self.axes.set_xlim(0, self.width)
        self.axes.set_ylim(height, 0)
        return self.figure

    def text(self, x: float, y: float, words: str, *, size: float = 9, mono: bool = False, **style: Any) -> None:
        """One line; ``y`` is its baseline."""
        family = [*([MONO] if mono else []), SANS, *self._fallbacks]
        style = {"color": INK, "va": "baseline", "ha": "left"} | style
        # Dollar signs in a text are no formula.
        self.axes.text(x, y, words, fontsize=size, fontfamily=family, parse_math=False, **style)

    def paragraph(self, x: float, y: float, width: float, words: str, *, size: float = 9, **style: Any) -> float:
        """Wrapped lines from ``y`` down; returns where they end."""
        for line in self._wrapped(words, width, size, style.get("weight", "normal")):
            y += size * 1.5 / 72
            self.text(x, y, line, size=size, **style)
        return y

    def _wrapped(self, words: str, width: float, size: float, weight: str) -> list[str]:
        """Lines that are no wider than ``width`` as drawn."""

        def fits(line: str) -> bool:
            return points_wide(line, size, weight) / 72 <= width

        lines: list[str] = []
        rest, letters = words.split(), max(4, int(width / letter(size)))
        while rest:
            # Looked for from the length of the line before: to measure every line that is one word longer would take
            # longer than to draw them all.
            ends = accumulate(len(word) + 1 for word in rest)
            count = max(1, next((i for i, end in enumerate(ends) if end > letters + 1), len(rest)))
            while count < len(rest) and fits(" ".join(rest[: count + 1])):
                count += 1
            while count and not fits(" ".join(rest[:count])):
                count -= 1
            if count:
                lines.append(" ".join(rest[:count]))
                letters, rest = len(lines[-1]), rest[count:]
                continue
            *pieces, last = textwrap.wrap(rest[0], max(4, int(width / letter(size) * 0.8)))  # too long for a line
            lines += pieces
            if pieces:
                rest[0] = last
            else:
                lines.append(rest.pop(0))
        return lines

    def box(self, x: float, y: float, width: float, height: float, fill: str, edge: str = "none", **style: Any) -> None:
        from matplotlib.patches import Rectangle

        style = {"linewidth": 0.6} | style
        self.axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=edge, **style))

    def pixels(self, x: float, y: float, width: float, height: float, values: Array, smooth: bool = False) -> None:
        """``smooth``: where single pixels matter, none may be drawn wider than others."""
        options: dict[str, Any] = {"aspect": "auto", "interpolation": "antialiased" if smooth else "nearest"}
        self.axes.imshow(values, extent=(x, x + width, y + height, y), origin="upper", **options)


@lru_cache(maxsize=10_000)
def points_wide(line: str, size: float, weight: str) -> float:
    """Return the width of a line in points; cached, since a figure is often shown and then saved."""
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    font = FontProperties(family=SANS, size=size, weight=weight)
    points: float = RendererAgg(1, 1, 72).get_text_width_height_descent(line, font, False)[0]
    return points


@cache
def characters_drawn() -> frozenset[int]:
    """Characters that some font of a sheet has."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

    installed = {font.name for font in fontManager.ttflist}
    fonts = [SANS, MONO, *(name for name in FALLBACKS if name in installed)]
    return frozenset().union(*(get_font(findfont(FontProperties(family=name))).get_charmap() for name in fonts))


def letter(size: float, mono: bool = False) -> float:
    """Width of a letter in inches; of an average one where they differ."""
    return size * (0.602 if mono else 0.56) / 72


TABLE_ROW, TABLE_TEXT = 0.21, 8.0
CROWD = 200  # points, beyond which they are small
DASHES: dict[str, Any] = {"": "-", "5 3": (0, (4, 2)), "2 3": (0, (1.5, 2)), "7 3 2 3": (0, (5, 2, 1.5, 2))}


def draw_table(sheet: Sheet, x: float, y: float, width: float, mark: marks.TableMark) -> float:
    """Returns where the table ends; columns shrink where the sheet is too narrow."""
    wide = column_widths(mark)
    scale = min(1.0, width / sum(wide))
    size, wide = TABLE_TEXT * scale, [w * scale for w in wide]
    ends = x + np.cumsum(wide)

    def cell(column: int, text: str, **look: Any) -> None:
        at, side = (float(ends[column]) - 0.06, "right") if column else (x, "left")
        sheet.text(at, y + TABLE_ROW * 0.7, text, size=size, ha=side, **look)

    for c, heading in enumerate(mark.columns):
        cell(c, heading, color=GREY)
    y += TABLE_ROW
    sheet.axes.plot([x, x + float(sum(wide))], [y, y], color=GREY, linewidth=0.7)
    for r, row in enumerate(mark.rows):
        quiet = r in mark.quiet
        for c, text in enumerate(row):
            shade, ink = mark.shade(r, c), GREY if quiet else INK
            if shade is not None:
                background = colour(SHADE, shade)
                ink = ink_on(background)
                sheet.box(float(ends[c]) - wide[c], y + 0.01, wide[c], TABLE_ROW - 0.02, hexadecimal(background))
            cell(c, text, color=ink, style="italic" if quiet else "normal")
        y += TABLE_ROW
    return y


def column_widths(mark: marks.TableMark) -> list[float]:
    """Inches that columns take where there is room for them."""
    return [
        max([cells(mark.columns[c]), *(cells(row[c]) for row in mark.rows)]) * letter(TABLE_TEXT) + 0.2
        for c in range(len(mark.columns))
    ]


def draw_lines(sheet: Sheet, x: float, y: float, width: float, mark: marks.Lines) -> float:
    """Curves in a frame, with their limits; names below."""
    plane = _Plane(sheet, x, y + 0.1, width, mark)
    for line, (stroke, dash) in zip(mark.lines, styles(mark.lines), strict=True):
        xs = plane.across(x_of(mark, line))
        look: dict[str, Any] = {"color": stroke, "linestyle": DASHES[dash], "linewidth": 0.7 if line.faint else 1.4}
        if line.low is not None and line.high is not None:
            sheet.axes.fill_between(xs, plane.up(line.low), plane.up(line.high), alpha=0.15, color=stroke, linewidth=0)
            look |= {"marker": "o", "markersize": 3}
        sheet.axes.plot(xs, plane.up(line.values), **look)
    if len(mark.lines) > 1:  # a single one is named by the heading
        named = [(line.name, look) for line, look in zip(mark.lines, styles(mark.lines), strict=True) if not line.faint]
        plane.keys([name for name, _ in named], [look for _, look in named], lines=True)
    return plane.end


def draw_scatter(sheet: Sheet, x: float, y: float, width: float, mark: marks.Scatter) -> float:
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

    def __init__(self, sheet: Sheet, x: float, y: float, width: float, mark: marks.Lines | marks.Scatter) -> None:
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


LARGEST_CELL, NUMBERED = 0.32, 0.46  # inches; with numbers
READABLE = 0.3  # inches that a number needs
MATRIX_TEXT = 8.0


def numbered_width(mark: marks.Matrix) -> float:
    """Inches that a matrix needs for its numbers to be drawn; 0 without numbers."""
    if not mark.numbers:
        return 0.0
    across, down = (
        max((len(short_label(x)) for x in names), default=0) for names in (mark.column_labels, mark.row_labels)
    )
    slant = across * letter(MATRIX_TEXT) * 0.6 if across > UPRIGHT else 0.05
    return 0.35 + down * letter(MATRIX_TEXT) + slant + (READABLE + 0.02) * int(mark.values.shape[1])


def draw_matrix(sheet: Sheet, x: float, y: float, width: float, mark: marks.Matrix) -> float:
    """Returns where it ends."""
    rows, columns = int(mark.values.shape[0]), int(mark.values.shape[1])
    if mark.small:
        side = min(width, 2.2)
        height = side * rows / columns
        sheet.pixels(x, y, side, height, colours(mark.scale, mark.coloured()))
        sheet.box(x, y, side, height, "none", LINE)
        return y + height
    labelled = max(rows, columns) <= MOST_LABELS
    row_labels = [short_label(label) for label in mark.row_labels] if labelled else []
    column_labels = [short_label(label) for label in mark.column_labels] if labelled else []
    left = x + (0.32 if mark.row_axis else 0.25) + max(map(len, row_labels), default=0) * letter(MATRIX_TEXT)
    longest = max(map(len, column_labels), default=0)
    overhang = longest * letter(MATRIX_TEXT) if longest > UPRIGHT else 0.08
    cell = min(NUMBERED if mark.numbers else LARGEST_CELL, (x + width - left - overhang * 0.6) / columns)
    top = y + 0.1 + overhang * 0.82
    size = min(MATRIX_TEXT, cell * 72 * 0.8)
    pixels = colours(mark.scale, mark.coloured())
    sheet.pixels(left, top, cell * columns, cell * rows, pixels)
    sheet.box(left, top, cell * columns, cell * rows, "none", LINE)
    if mark.numbers and cell >= READABLE:
        for (r, c), value in np.ndenumerate(mark.told()):
            ink = ink_on([int(part) for part in pixels[r, c]])
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
    half_across, half_down = (len(axis) * letter(MATRIX_TEXT) / 2 for axis in (mark.column_axis, mark.row_axis))
    across, down = max(left + cell * columns / 2, x + 0.25 + half_across), max(top + cell * rows / 2, y + half_down)
    end = max(top + cell * rows, down + half_down)
    if mark.row_axis:
        sheet.text(x + 0.1, down, mark.row_axis, size=MATRIX_TEXT, color=GREY, rotation=90, ha="center", va="center")
    if mark.column_axis:
        end += 0.2
        sheet.text(across, end, mark.column_axis, size=MATRIX_TEXT, color=GREY, ha="center")
    return end


MOST_TOKENS = 32  # of an answer, that are followed one by one
LONGEST_TOKEN = 18
TEXT_ROW = 0.19


def draw_run(sheet: Sheet, x: float, y: float, width: float, run: marks.TokenRun, size: float = 11) -> float:
    """Returns where it ends."""
    step, line_height = letter(size, mono=True), size * 1.75 / 72
    base = direction("".join(piece.text for piece in run.pieces)) or "L"
    for line in wrapped(characters_of(run), max(8, int(width / step))):
        at = x
        groups = [list(group) for _, group in groupby(line, key=lambda c: c.piece)]
        written = ["".join(c.char for c in group) for group in groups]
        for place in visual_order(written, base):
            characters, words = groups[place], written[place]
            ink, first, long = INK, characters[0], cells(words) * step
            if first.aside:
                ink = GREY
                sheet.box(at, y + 0.02, long, line_height - 0.05, "white", LINE, hatch="////", linewidth=0)
            elif first.tint is not None:
                background = colour(run.scale, first.tint)
                ink = ink_on(background)
                sheet.box(at, y + 0.02, long, line_height - 0.05, hexadecimal(background))
            sheet.text(at, y + line_height * 0.7, words, size=size, mono=True, color=ink)
            at += long
        y += line_height
    return y


def draw_reading(sheet: Sheet, x: float, y: float, width: float, mark: marks.Reading) -> float:
    """Voice by voice under their names; folds in one line of words, what a template put in without colours."""
    for part in mark.parts:
        if part.quiet:
            y = sheet.paragraph(x, y, width, f"{part.heading}: {part.text()}", size=7, color=GREY) + 0.03
            continue
        y = sheet.paragraph(x, y + 0.04, width, part.heading, size=8, color=GREY, weight="bold") + 0.04
        for passage in part.passages:
            if passage.folded:
                y = sheet.paragraph(x, y, width, f"{passage.folded}, not shown …", size=8, color=GREY)
            else:
                y = draw_run(sheet, x, y, width, marks.TokenRun(passage.from_its_first_word(), mark.scale), 10)
    return y


def draw_dialogue(sheet: Sheet, x: float, y: float, width: float, mark: marks.Dialogue) -> float:
    """The answer; its first tokens, each with what it came from; what was read, with the mean over the answer."""
    y = sheet.paragraph(x, y, width, "".join(mark.said).strip(), size=12) + 0.12
    step, size = letter(8.5, mono=True), 8.5
    for token in range(min(len(mark.said), MOST_TOKENS)):
        name = _cut(mark.said[token].strip() or repr(mark.said[token]), LONGEST_TOKEN)
        sources = ", ".join(f"{' '.join(t.split())} {whole_percent(s)}" for t, s in mark.sources(token, token + 1))
        sheet.text(x, y + TEXT_ROW * 0.7, name, size=size, mono=True)
        room = max(8, int(width / step) - LONGEST_TOKEN - 3)
        words = f"← {_cut(sources or 'no single source', room)}"
        sheet.text(x + (LONGEST_TOKEN + 1) * step, y + TEXT_ROW * 0.7, words, size=size, mono=True, color=GREY)
        y += TEXT_ROW
    if len(mark.said) > MOST_TOKENS:
        y = sheet.paragraph(x, y, width, f"… {len(mark.said) - MOST_TOKENS} more tokens", size=8, color=GREY)
    y = sheet.paragraph(x, y + 0.1, width, "what it read, with the mean over the answer", weight="bold") + 0.05
    return draw_reading(sheet, x, y, width, mark.reading)


def draw_graph(sheet: Sheet, x: float, y: float, width: float, mark: marks.StepGraph) -> float:
    """Each step, and below it what drove it."""
    room = max(8, int(width / letter(8.5, mono=True)) - 2)
    for step, sources in mark.told():
        for words, color in ((step, "black"), *((f"  ← {source}", GREY) for source in sources)):
            sheet.text(x, y + TEXT_ROW * 0.7, _cut(words, room), size=8.5, mono=True, color=color)
            y += TEXT_ROW
    return y


def _cut(words: str, longest: int) -> str:
    return words if cells(words) <= longest else words[: longest - 1] + "…"
