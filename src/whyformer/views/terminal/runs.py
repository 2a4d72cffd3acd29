"""Highlighted text on a terminal: wrapped by hand, so that marks stay under (or behind) their words."""

from __future__ import annotations

from itertools import groupby

from rich.cells import cell_len
from rich.text import Text

from whyformer.views.color import colour, hexadecimal, ink_on
from whyformer.views.text import Char, characters_of, wrapped
from whyformer.views.view import Scale, TokenRun

RISING = " ▁▂▃▄▅▆▇█"
HANGING = " ▔▀█"


def run_lines(run: TokenRun, width: int, coloured: bool) -> list[Text]:
    """Lines of text with coloured backgrounds; without colours, blocks under the words (above and under if signed)."""
    lines: list[Text] = []
    for line in wrapped(characters_of(run), width):
        lines += [_highlighted(line, run.scale)] if coloured else _with_blocks(line, run.scale)
    return lines


def _highlighted(line: list[Char], scale: Scale) -> Text:
    text = Text(no_wrap=True)
    for _, group in groupby(line, key=lambda c: c.piece):
        characters = list(group)
        first, words = characters[0], "".join(c.char for c in characters)
        if first.tint is None:
            text.append(words)
            continue
        background = colour(scale, first.tint)
        style = f"{ink_on(background)} on {hexadecimal(background)}"
        text.append(words, style=f"{style} italic" if first.special else style)
    return text


def _with_blocks(line: list[Char], scale: Scale) -> list[Text]:
    words = "".join(c.char for c in line)
    above = "".join(_block(c, scale, 1) for c in line)
    below = "".join(_block(c, scale, -1) for c in line)
    if not scale.signed:
        return [Text(words, no_wrap=True), Text(above, no_wrap=True)]
    return [Text(part, no_wrap=True) for part in (above, words, below)]


def _block(char: Char, scale: Scale, sign: int) -> str:
    cells = cell_len(char.char)
    length = 0.0 if char.tint is None else (scale.length(char.tint) if scale.signed else scale.position(char.tint))
    marks = RISING if sign > 0 else HANGING
    level = round(max(0.0, length * sign) * (len(marks) - 1))
    return marks[level] * cells
