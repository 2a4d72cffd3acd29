"""Breaking highlighted text into lines, character by character, for backends that have no layout of their own."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len

from whyformer.views.view import TokenRun


@dataclass(frozen=True)
class Char:
    """One character, the piece it belongs to, and what is coloured."""

    char: str
    piece: int
    tint: float | None
    special: bool


def characters_of(run: TokenRun) -> list[Char]:
    return [
        Char(char if char in "\n" or char.isprintable() else " ", i, piece.colour, piece.special)
        for i, piece in enumerate(run.pieces)
        for char in piece.text.replace("\r\n", "\n").replace("\t", "    ")
    ]


def wrapped(characters: list[Char], width: int) -> list[list[Char]]:
    """Break at spaces, else where the line is full; newlines of the text are kept."""
    lines: list[list[Char]] = []
    line: list[Char] = []
    used = 0
    for char in characters:
        if char.char == "\n":
            lines.append(line)
            line, used = [], 0
            continue
        cells = cell_len(char.char)
        if used + cells > width:
            space = max((i for i, c in enumerate(line) if c.char == " "), default=-1)
            rest = line[space + 1 :] if space >= 0 and char.char != " " else []
            lines.append(line[: len(line) - len(rest)])
            line = rest
            used = sum(cell_len(c.char) for c in line)
            if char.char == " " and not line:
                continue
        line.append(char)
        used += cells
    lines.append(line)
    return [li for li in lines if li] or [[]]
