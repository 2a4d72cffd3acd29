"""Views as matplotlib figures."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from rich.cells import cell_len as cells

from whyformer.shapes import Array
from whyformer.views import marks
from whyformer.views.figure import sheet as drawing
from whyformer.views.figure.sheet import GREY, INK, LINE, Sheet, letter
from whyformer.views.header import legend_words
from whyformer.views.image_marks import canvas_size, painted, painted_heads, picture
from whyformer.views.scales import anchors_of, bar_colour, head_colour, ramp
from whyformer.views.text_marks import BarRow, placed_rows
from whyformer.views.view import Fact, Page, Panel, Terms, View, captions, in_symbols, rows_of

MARGIN, GAP = 0.3, 0.35
UNDATED: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
PIXELS = 384  # of a picture's longer side
ROW = 0.2  # height of a bar's line


def figure(page: Page) -> Any:
    page = in_symbols(page)
    sheet = Sheet(max((_width(view) for view in page.views), default=7.0))
    known = drawing.characters_drawn()
    page = in_symbols(page, lambda words: drawing.spelled(words, lambda char: ord(char) in known))
    inner = sheet.width - 2 * MARGIN
    y = MARGIN
    if page.title:
        y = sheet.paragraph(MARGIN, y, inner, page.title, size=15, weight="bold") + 0.15
    y = _words(sheet, y, inner, page.lead)
    for view, caption in zip(page.views, captions(page.views), strict=True):
        y = _view(sheet, y, inner, view, caption) + GAP
    y = _words(sheet, y, inner, page.outro)
    return sheet.finish(y - GAP + MARGIN if page.views else y)


def figure_bytes(page: Page, ending: str) -> bytes:
    """Render a page; equal pages give equal bytes: no date inside, and ids in SVG from a fixed salt."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "whyformer"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # shown as boxes
        figure(page).savefig(written := BytesIO(), format=ending[1:], metadata=UNDATED.get(ending))
    return written.getvalue()


def _width(view: View) -> float:
    every = view.marks
    if every and all(isinstance(m, marks.Matrix) and m.small for m in every):
        return max(6.0, 1.05 * view.columns + 2 * MARGIN)
    placed = [(1 if panel.wide else view.columns, mark) for panel in view.panels for mark in panel.marks]
    matrices = [drawing.numbered_width(m) * count for count, m in placed if isinstance(m, marks.Matrix)]
    numbered = max(matrices, default=0.0)
    if numbered:  # numbers that were asked for are to be read
        numbered += 2 * MARGIN + GAP * (view.columns - 1)
    if len(every) == 1 and isinstance(every[0], marks.Matrix):
        return max(numbered, 8.0 if max(every[0].values.shape) > 16 else 6.5)
    plain = max(numbered, {1: 8.0, 2: 9.0, 3: 10.5}.get(view.columns, 13.5))
    tables = [sum(drawing.column_widths(mark)) * count for count, mark in placed if isinstance(mark, marks.TableMark)]
    return min(11.0, max(plain, max(tables) + 2 * MARGIN)) if tables else plain


def _words(sheet: Sheet, y: float, width: float, blocks: Sequence[str | Terms]) -> float:
    for block in blocks:
        if isinstance(block, str):
            y = sheet.paragraph(MARGIN, y, min(width, 8), block) + 0.15
            continue
        if block.title:
            y = sheet.paragraph(MARGIN, y, width, block.title, weight="bold") + 0.05
        offset = max(cells(f.name) for f in block.facts) * letter(9, mono=True) + 0.3
        for fact in block.facts:
            sheet.text(MARGIN, y + 0.19, fact.name, mono=True)
            y = sheet.paragraph(MARGIN + offset, y, width - offset, fact.value)
        y += 0.15
    return y


def _view(sheet: Sheet, y: float, width: float, view: View, caption: str) -> float:
    y = sheet.paragraph(MARGIN, y, width, view.title, size=12, weight="bold") + 0.06
    y = y if view.words_first else _header(sheet, y, width, view.facts, bold=bool(view.details)) + 0.15
    for row in rows_of(view.panels, view.columns):
        columns = 1 if row[0].wide else view.columns
        gap = 0.08 if _small(row[0]) else GAP
        each = (width - gap * (columns - 1)) / columns
        lowest = max(_panel(sheet, MARGIN + i * (each + gap), y, each, panel) for i, panel in enumerate(row))
        y = lowest + gap / 2 + 0.05
    over_images = any(isinstance(m, marks.Heat) for m in view.marks)
    for scale in view.legends:
        y = _legend(sheet, y, scale, over_images)
    if caption:
        y = sheet.paragraph(MARGIN, y, width, caption, size=8, color=GREY)
    y = _header(sheet, y + 0.1, width, view.facts) if view.words_first else y
    y = _header(sheet, y + 0.1, width, view.details) if view.details else y
    return _doubts(sheet, MARGIN, y, width, view.doubts)


def _header(sheet: Sheet, y: float, width: float, facts: Sequence[Fact], bold: bool = False) -> float:
    offset = max([0.95, *(cells(fact.name) * letter(9) + 0.1 for fact in facts)])
    weight: dict[str, Any] = {"weight": "bold"} if bold else {}
    for fact in facts:
        sheet.text(MARGIN, y + 0.19, fact.name, color=GREY)
        y = sheet.paragraph(MARGIN + offset, y, width - offset, fact.value, **weight)
    return y


def _small(panel: Panel) -> bool:
    return any(isinstance(m, marks.Matrix) and m.small for m in panel.marks)


def _doubts(sheet: Sheet, x: float, y: float, width: float, doubts: Sequence[str]) -> float:
    if doubts:
        y = sheet.paragraph(x, y + 0.08, width, "Warnings", weight="bold", color="#8a4a05")
    for doubt in doubts:
        y = sheet.paragraph(x, y, width, f"– {doubt}", size=8.5)
    return y


def _panel(sheet: Sheet, x: float, y: float, width: float, panel: Panel) -> float:
    small = _small(panel)
    if panel.title:
        style: dict[str, Any] = {"size": 7, "color": GREY} if small else {"size": 10, "weight": "bold"}
        y = sheet.paragraph(x, y, width, panel.title, **style) + (0.03 if small else 0.08)
    if panel.note:
        y = sheet.paragraph(x, y, width, panel.note, size=8, color=GREY) + 0.05
    for mark in panel.marks:
        y = MARKS[type(mark)](sheet, x, y, width, mark) + (0 if small else 0.1)
    if panel.small_print():
        y = sheet.paragraph(x, y, width, " · ".join(panel.small_print()), size=7.5, color=GREY)
    return _doubts(sheet, x, y, width, panel.doubts)


def _picture(sheet: Sheet, x: float, y: float, width: float, mark: marks.Picture) -> float:
    return _image(sheet, x, y, width, picture(mark, canvas_size(mark, PIXELS)), mark.frames)


def _heat(sheet: Sheet, x: float, y: float, width: float, mark: marks.Heat) -> float:
    return _image(sheet, x, y, width, painted(mark, canvas_size(mark, PIXELS)), mark.frames, smooth=mark.fine)


def _bars(sheet: Sheet, x: float, y: float, width: float, mark: marks.Bars) -> float:
    rows, more, scale, ranked = placed_rows(mark), mark.more, mark.scale, mark.ranked
    if rows or more:  # else all units are folded away
        size = 8.5
        step = letter(size, mono=True)
        longest = min(34, max(18, int((width - 1.0) / step) - (14 if ranked else 9)))  # for columns with their values
        names = [_short(row.bar.label, longest if marks.PAIR in row.bar.label else 18) for row in rows]
        labels = [f"{row.rank:>2}. {name}" if ranked else name for row, name in zip(rows, names, strict=True)]
        number_at = x + (max(map(cells, [*labels, more])) + 2 + max((len(r.number) for r in rows), default=0)) * step
        notes = max((cells(row.bar.note) for row in rows), default=0) * letter(8)
        track_at, track = number_at + 0.1, min(3.6, max(0.3, x + width - number_at - 0.1 - notes))
        top = y
        quiet: dict[str, Any] = {"size": size, "mono": True, "color": GREY, "style": "italic"}
        for row, label in zip(rows, labels, strict=True):
            look = quiet if row.bar.special else quiet | {"color": INK, "style": "normal"}
            # A mark without a width: the number of a word that runs from right to left stays in front of it.
            before = "\u200e" if ranked and drawing.direction(label) == "R" else ""
            sheet.text(x, y + ROW * 0.7, before + label, **look)
            sheet.text(number_at, y + ROW * 0.7, row.number, ha="right", **look)
            _bar(sheet, track_at, y + ROW * 0.15, track, ROW * 0.7, row, scale)
            sheet.text(track_at + track + 0.1, y + ROW * 0.7, row.bar.note, size=8, color=GREY)
            y += ROW
        if more:
            sheet.text(x, y + ROW * 0.7, more, **quiet)
            y += ROW
        if scale.signed and not mark.starts:
            sheet.box(track_at + track / 2, top, 0.005, y - top, GREY)
        if mark.reference is not None:
            at = [track_at + track * scale.place(mark.reference)] * 2
            sheet.axes.plot(at, [top, y], color=GREY, linewidth=0.8, linestyle=":")
    return sheet.paragraph(x, y + 0.04, width, mark.folded, size=8, color=GREY) if mark.folded else y


def _bar(sheet: Sheet, x: float, y: float, width: float, height: float, row: BarRow, scale: marks.Scale) -> None:
    style: dict[str, Any] = {"hatch": "////", "edge": "white", "linewidth": 0} if row.beyond else {}
    sheet.box(x + width * row.start, y, width * row.width, height, bar_colour(row.bar, scale), **style)
    if row.limits is not None:
        left, right = (x + width * limit for limit in row.limits)
        sheet.box(left, y + height / 2 - 0.006, right - left, 0.012, INK)
    if row.dots:
        at = [x + width * dot for dot in row.dots]
        sheet.axes.scatter(at, [y + height / 2] * len(at), s=5, color="black", alpha=0.25, linewidths=0)


def _image(
    sheet: Sheet, x: float, y: float, width: float, pixels: Array, frames: Sequence[Any] = (), smooth: bool = False
) -> float:
    high, wide = pixels.shape[:2]
    drawn = min(width, 3.2 * wide / max(high, wide))
    height = drawn * high / wide
    sheet.pixels(x, y, drawn, height, pixels, smooth)
    for frame in frames:
        _frame(sheet, x, y, drawn, height, frame)
    return y + height


def _frame(sheet: Sheet, x: float, y: float, width: float, height: float, frame: marks.Frame) -> None:
    """A box on a picture: white on a dark line, its name above it, or inside where there is no room."""
    left, top, right, bottom = (e * full for e, full in zip(frame.box, (width, height, width, height), strict=True))
    for edge, thick in (("black", 3.0), ("white", 1.4)):
        sheet.box(x + left, y + top, right - left, bottom - top, "none", edge, linewidth=thick, zorder=2)
    label = _short(frame.label, max(4, int(width / letter(8))))
    long, high = cells(label) * letter(8) + 0.08, 0.16
    at_x, at_y = x + max(0.0, min(left, width - long)), y + (top - high if top >= high else top)
    sheet.box(at_x, at_y, long, high, "black", zorder=3)
    sheet.text(at_x + 0.04, at_y + high - 0.045, label, size=8, color="white", zorder=4)


def _heads(sheet: Sheet, x: float, y: float, width: float, mark: marks.HeadColours) -> float:
    y = _image(sheet, x, y, width, painted_heads(mark, canvas_size(mark, PIXELS)))
    at = x
    y += 0.22
    for i, name in zip(mark.numbers, mark.names, strict=True):
        needed = 0.3 + cells(name) * letter(8)
        if at + needed > x + width and at > x:
            at, y = x, y + 0.2
        sheet.box(at, y - 0.1, 0.11, 0.11, head_colour(i))
        sheet.text(at + 0.16, y, name, size=8)
        at += needed
    return y


def _legend(sheet: Sheet, y: float, scale: marks.Scale, over_images: bool) -> float:
    y += 0.05
    sheet.pixels(MARGIN, y, 1.8, 0.1, ramp(anchors_of(scale, over_images), np.linspace(0, 1, 256)[None]))
    sheet.box(MARGIN, y, 1.8, 0.1, "none", LINE)
    sheet.text(MARGIN + 1.95, y + 0.1, legend_words(scale, "   "), size=8, color=GREY)
    return y + 0.15


def _short(label: str, longest: int) -> str:
    return marks.shortened(" ".join(label.split()) if "\n" in label else label, longest)


Draw = Callable[[Sheet, float, float, float, Any], float]  # x, y of the upper left corner and width → where it ends
MARKS: dict[type[marks.Mark], Draw] = {
    marks.TokenRun: drawing.draw_run,
    marks.Bars: _bars,
    marks.Picture: _picture,
    marks.Heat: _heat,
    marks.Matrix: drawing.draw_matrix,
    marks.HeadColours: _heads,
    marks.TableMark: drawing.draw_table,
    marks.Lines: drawing.draw_lines,
    marks.Scatter: drawing.draw_scatter,
    marks.Reading: drawing.draw_reading,
    marks.Dialogue: drawing.draw_dialogue,
    marks.StepGraph: drawing.draw_graph,
}
