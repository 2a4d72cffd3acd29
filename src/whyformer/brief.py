"""A result in one line, as ``repr`` has it: its fields by name, arrays by their shape, long parts by their length."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

LONGEST = 40  # characters of one part
MOST = 8  # parts
PLAIN = (str, int, float, bool)


def brief(value: Any) -> str:
    """The name of a dataclass and what its first fields hold; what is empty is left out."""
    parts = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value) if field.repr]
    told = [f"{name}={_words(part)}" for name, part in parts if not _is_empty(part)]
    return f"{type(value).__name__}({', '.join(told[:MOST])}{', …' if len(told) > MOST else ''})"


def _is_empty(part: Any) -> bool:
    return part is None or (isinstance(part, (str, tuple, list, dict)) and not part)


def _words(part: Any) -> str:
    if isinstance(part, np.ndarray):
        return f"{part.dtype}{list(part.shape)}"
    if isinstance(part, PLAIN):
        words = f"{part:.4g}" if isinstance(part, float) else repr(part)
        return words if len(words) <= LONGEST else f"{words[:LONGEST]}…"
    if isinstance(part, (tuple, list, dict)):
        if len(repr(part)) <= LONGEST:
            return repr(part)
        return f"[{len(part)} entries]"
    return f"{type(part).__name__}(…)"
