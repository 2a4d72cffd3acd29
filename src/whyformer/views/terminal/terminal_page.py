"""Views on a terminal: coloured where colours are shown, block characters where they are not (pipes, NO_COLOR)."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from whyformer.brief import as_symbols
from whyformer.views import marks
from whyformer.views.header import UNVALIDATED, legend_words
from whyformer.views.scales import colour, hexadecimal
from whyformer.views.terminal.blocks import MARKS, MINUS, SHADES, cut, matrix_width, narrowest_lines
from whyformer.views.view import STRIPED, Fact, Page, Panel, Terms, View, captions, in_symbols, rows_of

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult

NARROWEST = 36  # a panel that would be narrower goes below instead of beside
NARROWEST_PATCHES = 24  # the same of pictures, with a list of their patches
NARROWEST_PAIRS = 56  # the same where columns stand with their values
ARROWED = ("The bar (» or «)", "The bars (» or «)")
ORDERED = ("256", "truecolor")  # with sixteen colours, a scale would not keep its order: blocks do
ALONE = ("method", UNVALIDATED[0])  # details on lines of their own
RAMP = 16  # cells of a legend
RAISES = "A block above a word (a bar to the right)"
# What captions say of colours: of blocks above words, of bars alone, and of shades.
WITHOUT_COLOURS = {
    "The stronger the colour": ("The taller the block", "The longer the bar", "The denser the block"),
    "Blue raises": (f"{RAISES} raises", "A bar to the right raises", "Blocks (░▒▓█) raise"),
    "orange lowers": ("one below it (to the left) lowers", "one to the left lowers", "signs (:-=#) lower"),
    "Blue supports": (f"{RAISES} supports", "A bar to the right supports", "Blocks (░▒▓█) support"),
    "orange supports": ("one below it (to the left) supports", "one to the left supports", "signs (:-=#) support"),
    "Bars and colours": ("Bars and blocks", "Bars", "Bars and blocks"),
    "Bars, colours": ("Bars, blocks", "Bars", "Bars, blocks"),
    "Lengths and colours": ("Lengths and blocks", "Lengths", "Lengths and blocks"),
}
OF_SHADES = {
    "Colours: from": "Blocks: from",
    "Colour: attention": "Shade: attention",
    "Colour: score": "Shade: score",
    "Colours are": "Shades are",
    "Colour: the head. Strength of the colour:": "All heads: the number of the strongest. Density of the blocks:",
}


def show(page: Page) -> None:
    put(PageOnTerminal(page))


def text(page: Page, width: int = 80) -> str:
    """A page as plain text."""
    return plain(PageOnTerminal(page), width)


def put(renderable: RenderableType) -> None:
    """Print; without colour codes and trailing spaces where the output is no terminal."""
    console = Console(highlight=False, emoji=False)
    if console.is_dumb_terminal:  # rich takes all of those for 80 columns wide
        console = Console(highlight=False, emoji=False, width=shutil.get_terminal_size().columns, height=25)
    if console.is_terminal:
        console.print(_Harmless(renderable))
    else:
        console.file.write(plain(renderable, console.width))


def plain(renderable: RenderableType, width: int = 80) -> str:
    """Plain text, no colour codes, no trailing spaces."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, color_system=None, force_terminal=False, highlight=False, emoji=False)
    console.print(_Harmless(renderable))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


class _Harmless:
    """A renderable of rich with control characters replaced by symbols."""

    def __init__(self, renderable: RenderableType) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.renderable, options):
            yield segment if segment.control else Segment(as_symbols(segment.text), segment.style)


class PageOnTerminal:
    """A page that rich can print; it asks the console for width and colours."""

    def __init__(self, page: Page) -> None:
        self.page: Page = in_symbols(page)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        draw = _Draw(options.max_width, console.color_system in ORDERED and not console.no_color)
        page = self.page
        if page.title:
            yield Text(page.title, style="bold")
            yield ""
        yield from draw.words(page.lead)
        for view, caption in zip(page.views, captions(page.views), strict=True):
            yield from draw.view(view, caption)
        yield from draw.words(page.outro)


class _Draw:
    """Turns views into rich renderables for a width, with or without colours."""

    def __init__(self, width: int, coloured: bool) -> None:
        self.width, self.coloured = width, coloured

    def words(self, blocks: Sequence[str | Terms]) -> list[RenderableType]:
        parts: list[RenderableType] = []
        for block in blocks:
            if isinstance(block, str):
                parts += [Text(block), ""]
                continue
            if block.title:
                parts.append(Text(block.title, style="bold"))
            parts += [Padding(self.facts(block.facts, "cyan" if block.code else "bold"), (0, 0, 0, 2)), ""]
        return parts

    def view(self, view: View, caption: str) -> list[RenderableType]:
        parts: list[RenderableType] = [
            Rule(Text(cut(view.title, self.width - 6), style="bold"), align="left", style="dim")
        ]
        # With details, the facts are the answer, which the rest is about.
        header: list[RenderableType] = [self.facts(view.facts, bold=bool(view.details)), ""] if view.facts else []
        parts += [] if view.words_first else header
        fitting = max(1, min(view.columns, (self.width + 2) // (self.narrowest(view) + 2)))
        for row in rows_of(self.worth_drawing(view.panels), fitting):
            parts += [self.row(row, 1 if row[0].wide else fitting), ""]
        if view.legends and any(isinstance(mark, marks.Matrix) and not mark.numbers for mark in view.marks):
            parts += [*map(self.legend, view.legends), ""]
        if caption:
            for striped, arrowed in zip(STRIPED[::-1], ARROWED[::-1], strict=True):
                caption = caption.replace(striped, arrowed)
            words = caption if self.coloured else _without_colours(caption, view)
            parts += [Text(words, style="dim"), ""]
        parts += header if view.words_first else []
        if view.details:
            parts += [*self.details(view.details), ""]
        if view.doubts:
            parts.append(Text("Warnings", style="bold yellow" if self.coloured else ""))
            parts += [*(Padding(Text(f"- {doubt}"), (0, 0, 0, 2)) for doubt in view.doubts), ""]
        return parts

    def legend(self, scale: marks.Scale) -> Text:
        """Draw the legend of maps; texts and bars have numbers beside them."""
        words = f" {legend_words(scale, '  ')}"
        if not self.coloured:
            return Text((MINUS[:0:-1] if scale.signed else "") + SHADES + words, style="dim")
        line = Text()
        for place in np.linspace(scale.low, scale.high, RAMP):
            line.append(" ", style=f"on {hexadecimal(colour(scale, float(place)))}")
        return line.append(words, style="dim")

    def worth_drawing(self, panels: Sequence[Panel]) -> list[Panel]:
        """Return the panels without doubles: smooth heat looks like the grid here, and pictures need colours."""

        def repeats(mark: marks.Mark) -> bool:
            if isinstance(mark, marks.Picture):
                return not self.coloured
            return isinstance(mark, marks.Heat) and mark.interpolation == "nearest" and not mark.fine

        return [p for p in panels if not p.marks or not all(repeats(m) for m in p.marks)]

    def narrowest(self, view: View) -> int:
        beside = [m for p in view.panels for m in p.marks if not p.wide]
        curves = [narrowest_lines(m) for m in beside if isinstance(m, marks.Lines)]
        if curves:
            return max(curves)
        if all(isinstance(m, marks.Matrix) and m.small for m in beside):
            return 8
        maps = [matrix_width(m) for m in beside if isinstance(m, marks.Matrix) and not m.small]
        if maps:
            return min(self.width, max(24, *maps))
        if any(isinstance(m, marks.Heat) for m in beside):
            return NARROWEST_PATCHES
        bars = [b for m in beside if isinstance(m, marks.Bars) for b in m.bars]
        if any(marks.PAIR in b.label for b in bars):
            return NARROWEST_PAIRS
        return NARROWEST if bars or any(isinstance(m, marks.TokenRun) for m in beside) else 24

    def facts(self, facts: Sequence[Fact], style: str = "dim", bold: bool = False) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style=style, overflow="fold")
        table.add_column(style="bold" if bold else "", overflow="fold")
        for fact in facts:
            table.add_row(Text(fact.name), Text(fact.value))
        return table

    def details(self, details: Sequence[Fact]) -> list[RenderableType]:
        """The method, all else in one paragraph, and the note on validation: few lines, read last."""
        alone = [fact for fact in details if fact.name in ALONE]
        rest = " · ".join(f"{fact.name} {fact.value}" for fact in details if fact.name not in ALONE)
        lines = [f"{fact.name}: {fact.value}" for fact in alone]
        return [Text(line, style="dim") for line in (*lines[:1], rest, *lines[1:]) if line]

    def row(self, panels: list[Panel], columns: int) -> RenderableType:
        width = (self.width - 2 * (columns - 1)) // columns
        if columns == 1:
            return self.panel(panels[0], self.width)
        table = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(columns):
            table.add_column(width=width, no_wrap=False)
        table.add_row(*(self.panel(p, width) for p in panels), *[""] * (columns - len(panels)))
        return table

    def panel(self, panel: Panel, width: int) -> Group:
        parts: list[RenderableType] = []
        if panel.title:
            parts.append(Text(panel.title, style="bold" if self.coloured else ""))
        small = [panel.note, *(f.value for f in panel.facts if f.name in {"options", "cost"})]
        parts += [Text(line, style="dim") for line in small if line]
        parts += [MARKS[type(mark)](mark, width, self.coloured) for mark in panel.marks]
        parts += [Text(f"! {doubt}", style="yellow" if self.coloured else "") for doubt in panel.doubts]
        return Group(*parts)


def _without_colours(caption: str, view: View) -> str:
    """Rewrite a caption about colours for output without colours."""
    kinds = {type(mark) for mark in view.marks}
    shaded = kinds & {marks.Heat, marks.Matrix, marks.HeadColours} and marks.Dialogue not in kinds
    column = 2 if shaded else 0 if kinds & {marks.TokenRun, marks.Reading, marks.Dialogue} else 1
    words = {colours: others[column] for colours, others in WITHOUT_COLOURS.items()} | (OF_SHADES if shaded else {})
    for colours, others in words.items():
        caption = caption.replace(colours, others)
    return caption
