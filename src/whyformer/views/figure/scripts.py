"""Writing on figures: words that run from right to left, and signs that no font at hand can draw."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby

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
