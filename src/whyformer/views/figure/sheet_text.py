"""Highlighted text on a sheet, what was read voice by voice, and an answer with what its tokens came from."""

from __future__ import annotations

from itertools import groupby

from whyformer.views.color import colour, hexadecimal, ink_on
from whyformer.views.facts import whole_percent
from whyformer.views.figure.scripts import direction, visual_order
from whyformer.views.figure.sheet import GREY, INK, LINE, Sheet, cells, letter
from whyformer.views.marks import Dialogue, Reading, TokenRun
from whyformer.views.text import characters_of, wrapped

MOST_TOKENS = 32  # of an answer, that are followed one by one
LONGEST_TOKEN = 18
ROW = 0.19


def draw_run(sheet: Sheet, x: float, y: float, width: float, run: TokenRun, size: float = 11) -> float:
    """Returns where it ends."""
    step, line_height = letter(size, mono=True), size * 1.75 / 72
    base = direction("".join(piece.text for piece in run.pieces)) or "L"
    for line in wrapped(characters_of(run), max(8, int(width / step))):
        at = x
        groups = [list(group) for _, group in groupby(line, key=lambda c: c.piece)]
        written = ["".join(c.char for c in group) for group in groups]
        for place in visual_order(written, base):
            characters, words = groups[place], written[place]
            ink, first = INK, characters[0]
            if first.aside:
                ink = GREY
                sheet.box(
                    at, y + 0.02, cells(words) * step, line_height - 0.05, "white", LINE, hatch="////", linewidth=0
                )
            elif first.tint is not None:
                background = colour(run.scale, first.tint)
                ink = ink_on(background)
                sheet.box(at, y + 0.02, cells(words) * step, line_height - 0.05, hexadecimal(background))
            sheet.text(at, y + line_height * 0.7, words, size=size, mono=True, color=ink)
            at += cells(words) * step
        y += line_height
    return y


def draw_reading(sheet: Sheet, x: float, y: float, width: float, mark: Reading) -> float:
    """Voice by voice under their names; folds in one line of words, what a template put in without colours."""
    for part in mark.parts:
        if part.quiet:
            words = "".join(piece.text for passage in part.passages for piece in passage.pieces)
            y = sheet.paragraph(x, y, width, f"{part.heading}: {words}", size=7, color=GREY) + 0.03
            continue
        y = sheet.paragraph(x, y + 0.04, width, part.heading, size=8, color=GREY, weight="bold") + 0.04
        for passage in part.passages:
            if passage.folded:
                y = sheet.paragraph(x, y, width, f"{passage.folded}, not shown …", size=8, color=GREY)
            else:
                y = draw_run(sheet, x, y, width, TokenRun(passage.from_its_first_word(), mark.scale), 10)
    return y


def draw_dialogue(sheet: Sheet, x: float, y: float, width: float, mark: Dialogue) -> float:
    """The answer; its first tokens, each with what it came from; what was read, with the mean over the answer."""
    y = sheet.paragraph(x, y, width, "".join(mark.said).strip(), size=12) + 0.12
    step, size = letter(8.5, mono=True), 8.5
    for token in range(min(len(mark.said), MOST_TOKENS)):
        name = _cut(mark.said[token].strip() or repr(mark.said[token]), LONGEST_TOKEN)
        sources = ", ".join(f"{' '.join(t.split())} {whole_percent(s)}" for t, s in mark.sources(token, token + 1))
        sheet.text(x, y + ROW * 0.7, name, size=size, mono=True)
        room = max(8, int(width / step) - LONGEST_TOKEN - 3)
        words = f"← {_cut(sources or 'no word in particular', room)}"
        sheet.text(x + (LONGEST_TOKEN + 1) * step, y + ROW * 0.7, words, size=size, mono=True, color=GREY)
        y += ROW
    if len(mark.said) > MOST_TOKENS:
        y = sheet.paragraph(x, y, width, f"… {len(mark.said) - MOST_TOKENS} more tokens", size=8, color=GREY)
    y = sheet.paragraph(x, y + 0.1, width, "what it read, with the mean over the answer", weight="bold") + 0.05
    return draw_reading(sheet, x, y, width, mark.reading)


def _cut(words: str, longest: int) -> str:
    return words if cells(words) <= longest else words[: longest - 1] + "…"
