"""Highlighted text on a terminal: wrapped by hand, so that marks stay under (or behind) their words. And an answer,
with what each of its tokens came from, over what was read."""

from __future__ import annotations

from itertools import groupby

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from whyformer.views.color import colour, hexadecimal, ink_on
from whyformer.views.facts import whole_percent
from whyformer.views.marks import Dialogue, Piece, Reading, Scale, TokenRun
from whyformer.views.text import Char, characters_of, wrapped

HATCH = "╱"
MOST_TOKENS = 24  # of an answer, that are followed one by one
LONGEST_TOKEN = 18
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
        if first.aside:
            text.append(words, style="dim strike")
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
    if char.aside:
        return (HATCH if sign > 0 else " ") * cells
    length = 0.0 if char.tint is None else (scale.length(char.tint) if scale.signed else scale.position(char.tint))
    marks = RISING if sign > 0 else HANGING
    level = round(max(0.0, length * sign) * (len(marks) - 1))
    return marks[level] * cells


def reading_lines(mark: Reading, width: int, coloured: bool) -> list[Text]:
    """Voice by voice under their names; folds in one line of words, what a template put in without colours."""
    lines: list[Text] = []
    for part in mark.parts:
        if part.quiet:
            words = "".join(piece.text for passage in part.passages for piece in passage.pieces)
            lines += [Text(line, style="dim") for line in _cut(f"{part.heading}: {words}", width)]
            continue
        lines.append(Text(part.heading, style="bold" if coloured else "", no_wrap=True))
        for passage in part.passages:
            if passage.folded:
                lines.append(Text(f"{passage.folded}, not shown …", style="dim"))
            else:
                lines += run_lines(TokenRun(passage.from_its_first_word(), mark.scale), width, coloured)
    return lines


def dialogue_lines(mark: Dialogue, width: int, coloured: bool) -> list[Text]:
    """The answer; its sentences and its first tokens, each with what it came from; what was read, and the mean."""
    lines = [Text("".join(c.char for c in line), style="bold") for line in _plainly("".join(mark.said).strip(), width)]
    lines.append(Text())
    if len(mark.sentences) > 1:
        for first, end in mark.sentences:
            lines += _came_from("".join(mark.said[first:end]).strip(), mark, first, end, width, LONGEST_TOKEN * 2)
        lines.append(Text())
    for token in range(min(len(mark.said), MOST_TOKENS)):
        lines += _came_from(mark.said[token].strip() or repr(mark.said[token]), mark, token, token + 1, width)
    if len(mark.said) > MOST_TOKENS:
        lines.append(Text(f"… {len(mark.said) - MOST_TOKENS} more tokens", style="dim"))
    lines += [Text(), Text("what it read, with the mean over the answer", style="dim")]
    return lines + reading_lines(mark.reading, width, coloured)


def _came_from(name: str, mark: Dialogue, first: int, end: int, width: int, room: int = LONGEST_TOKEN) -> list[Text]:
    sources = mark.sources(first, end)
    longest = max(LONGEST_TOKEN, width // 3)
    words = ", ".join(f"{_cut(' '.join(text.split()), longest)[0]} {whole_percent(share)}" for text, share in sources)
    words = words or "no word in particular"
    room = min(room, width // 3)
    shown = set_cell_size(_cut(" ".join(name.split()), room)[0], room)
    text = Text(f"{shown} ← ", no_wrap=True)
    return [text.append(_cut(words, width - cell_len(text.plain))[0])]


def _cut(words: str, width: int) -> list[str]:
    """At most one line."""
    return [words if cell_len(words) <= width else set_cell_size(words, max(1, width - 1)).rstrip() + "…"]


def _plainly(words: str, width: int) -> list[list[Char]]:
    return wrapped(characters_of(TokenRun((Piece(words),), Scale(0.0, 1.0))), width)
