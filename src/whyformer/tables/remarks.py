"""The warnings of many rows or texts, told once per kind: in how many, and from which number to which."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

ABOUT_95 = 1.96  # standard errors
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?%?(?!\w)")


@dataclass
class Kind:
    """Warnings that differ in their numbers only."""

    words: list[str]  # what stands around the numbers
    rows: int = 0
    lowest: list[str] = field(default_factory=list)  # as they were written
    highest: list[str] = field(default_factory=list)

    def add(self, numbers: list[str]) -> None:
        self.lowest = [min(pair, key=_value) for pair in zip(self.lowest or numbers, numbers, strict=True)]
        self.highest = [max(pair, key=_value) for pair in zip(self.highest or numbers, numbers, strict=True)]

    def told(self, rows: int, of: str) -> str:
        ranges = [a if a == b else f"{a} to {b}" for a, b in zip(self.lowest, self.highest, strict=True)]
        text = "".join(w + r for w, r in zip(self.words, [*ranges, ""], strict=True))
        if self.rows == rows and self.lowest == self.highest:
            return text
        return f"{text} ({f'all {rows}' if self.rows == rows else f'{self.rows} of {rows}'} {of})"


class Remarks:
    """Collected row by row."""

    def __init__(self, of: str = "rows") -> None:
        self.of = of
        self.kinds: dict[tuple[str, ...], Kind] = {}

    def add(self, warnings: Sequence[str]) -> None:
        """Those of one row."""
        met = set()
        for warning in warnings:
            words = NUMBER.split(warning)
            kind = self.kinds.setdefault(tuple(words), Kind(words))
            kind.add(NUMBER.findall(warning))
            met.add(tuple(words))
        for words_of_kind in met:
            self.kinds[words_of_kind].rows += 1

    def told(self, rows: int) -> list[str]:
        return [kind.told(rows, self.of) for kind in self.kinds.values()]


def _value(number: str) -> float:
    return float(number.rstrip("%"))
