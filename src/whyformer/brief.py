"""Represent objects in a few lines, with control characters replaced by symbols."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

# What is printed must not move, hide or recolour anything: controls (C0, DEL, C1), marks of direction, line separators,
# and halves of characters become symbols. Newline and tab stay: layout needs them, and they can do no harm.
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff]"
)
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # those that move or recolour; browsers show them as nothing
PICTURES = 0x2400  # of the controls below a space, in their order: ␀ ␁ … ␛ …
DELETE = 0x7F


def writable(text: str) -> str:
    """Replace halves of surrogate pairs, which can neither be printed nor written to a file."""
    return text.encode("utf-8", "replace").decode()


def as_symbols(text: str, which: re.Pattern[str] = CONTROLS) -> str:
    """``text`` with ␛ for an escape, ⟨U+202E⟩ for what has no picture; everything else is as it was."""

    def symbol(match: re.Match[str]) -> str:
        code = ord(match[0])
        if code < ord(" "):
            return chr(PICTURES + code)
        return "␡" if code == DELETE else f"⟨U+{code:04X}⟩"

    return which.sub(symbol, text.replace("\r\n", "\n"))


def escaped_json(text: str) -> str:
    """Return JSON with control characters as escapes, so that it is read back unchanged."""
    return CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


LONGEST = 40  # characters of one part
WIDEST = 100  # of a line
MOST = 8  # parts
MOST_LINES = 20  # entries of a list
PLAIN = (str, int, float, bool)


def brief(value: Any) -> str:
    """Return the name of a dataclass with its first values; empty values and defaults are left out."""
    told = []
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        empty = part is None or (isinstance(part, (str, tuple, list, dict)) and not part)
        default = isinstance(part, PLAIN) and field.default is not dataclasses.MISSING and part == field.default
        if field.repr and not (empty or default):
            told.append(f"{field.name}={_words(part)}")
    return called(type(value).__name__, [*told[:MOST], *(["…"] if len(told) > MOST else [])])


def called(name: str, parts: list[str]) -> str:
    """Return "name(part, part)" on one line if it fits, else a line for each part."""
    line = f"{name}({', '.join(parts)})"
    if len(line) <= WIDEST:
        return line
    return f"{name}(\n" + "".join(f"    {cut(part, WIDEST - 5)},\n" for part in parts) + ")"


def several(kind: str, entries: Iterable[str]) -> str:
    """Return a list by its first entries, a line for each."""
    lines = list(entries)
    if not lines:
        return f"{kind}: empty"
    rest = [f"… {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
    count = f"{len(lines)} entr{'y' if len(lines) == 1 else 'ies'}"
    return "\n".join([f"{kind}, {count}:", *(f"  {cut(line, WIDEST - 2)}" for line in [*lines[:MOST_LINES], *rest])])


def cut(words: str, longest: int) -> str:
    """Return the text on one line, cut at ``longest`` characters, with symbols for controls."""
    line = as_symbols(" ".join(words.split()) if "\n" in words else words)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _words(part: Any) -> str:
    shape, kind = getattr(part, "shape", None), getattr(part, "dtype", None)
    if shape is not None and kind is not None and len(shape):  # of numpy or torch
        return f"{str(kind).removeprefix('torch.')}{list(shape)}"
    part = part.item() if kind is not None and callable(getattr(part, "item", None)) else part
    if isinstance(part, PLAIN):
        words = f"{part:.4g}" if isinstance(part, float) else repr(part)
        return words if len(words) <= LONGEST else f"{words[:LONGEST]}…"
    if isinstance(part, (tuple, list, dict, set, frozenset)):
        # Long ones are not written out to be measured: a map of a long text has millions of numbers.
        plain = len(part) <= LONGEST and all(isinstance(entry, PLAIN) for entry in part)
        if plain and len(repr(part)) <= LONGEST:
            return repr(part)
        return f"[{len(part)} entries]"
    return f"{type(part).__name__}(…)"
