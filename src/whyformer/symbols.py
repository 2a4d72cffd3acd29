"""Characters that would steer a terminal, as symbols: what is printed cannot move, hide or recolour anything.

Controls (C0, DEL, C1), marks of direction, line separators, and halves of characters that cannot be written at all.
"""

from __future__ import annotations

import re

# Newline and tab are left: layout needs them, and they can do no harm.
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff]"
)
PICTURES = 0x2400  # of the controls below a space, in their order: ␀ ␁ … ␛ …
DELETE = 0x7F


def as_symbols(text: str) -> str:
    """``text`` with ␛ for an escape, ⟨U+202E⟩ for what has no picture; everything else is as it was."""
    return CONTROLS.sub(_symbol, text.replace("\r\n", "\n"))


def escaped_json(text: str) -> str:
    """JSON with the same characters as its own escapes: it reads back as it was."""
    return CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _symbol(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < ord(" "):
        return chr(PICTURES + code)
    return "␡" if code == DELETE else f"⟨U+{code:04X}⟩"
