"""Axes of curves and points: ranges, round ticks and colours, the same in every backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whyformer.views.color import GREY
from whyformer.views.marks import Line, Lines, Points, Scatter

Array = np.ndarray[Any, Any]
# Okabe and Ito's colours without yellow, which white paper swallows; then Tol's muted ones.
INKS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#332288", "#882255")
DASHES = ("", "5 3", "2 3", "7 3 2 3")  # colours repeat with another dash
ROOM = 0.05  # beyond the outermost values, as a share of their distance


@dataclass(frozen=True)
class Axis:
    """From ``start`` to ``end``, which may lie below it (all heads on the left, none on the right)."""

    start: float
    end: float
    log: bool = False
    whole: bool = False  # ticks at whole numbers only

    def shares(self, values: Any) -> Array:
        """Where values lie: 0 at the start, 1 at the end; NaN where they cannot be drawn."""
        ends = np.array([self.start, self.end], float)
        at = np.asarray(values, float)
        if self.log:
            ends, at = np.log10(ends), np.log10(np.where(at > 0, at, np.nan))
        if ends[0] == ends[1]:
            return np.where(np.isnan(at), np.nan, 0.5)
        placed: Array = (at - ends[0]) / (ends[1] - ends[0])
        return placed

    def ticks(self) -> list[float]:
        low, high = sorted((self.start, self.end))
        if low == high:
            return [low]
        if not self.log:
            return ticks(low, high, 1.0 if self.whole else 0.0)
        powers = [10.0**p for p in range(int(np.ceil(np.log10(low))), int(np.floor(np.log10(high))) + 1)]
        return powers if len(powers) > 1 else [t for t in ticks(low, high) if t > 0]


def ticks(low: float, high: float, smallest: float = 0.0) -> list[float]:
    """Round numbers (steps of 1, 2 or 5) within a range, about five of them."""
    rough = max((high - low) / 5, smallest)
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first = int(np.ceil(low / step - 1e-9))
    return [float(i * step) for i in range(first, int(np.floor(high / step + 1e-9)) + 1)]


def axes_of(mark: Lines | Scatter) -> tuple[Axis, Axis]:
    """Across and up."""
    if isinstance(mark, Scatter):
        across, up = ([getattr(group, name) for group in mark.groups] for name in ("x", "y"))
        low, high = _ends([x[x > 0] for x in map(np.asarray, across)] if mark.log_x else across)
        if mark.log_x:
            room = (high / low) ** ROOM
            return Axis(low / room, high * room, log=True), _with_room(*_ends(up))
        return _with_room(low, high), _with_room(*_ends(up))
    low, high = _ends(x_of(mark, line) for line in mark.lines)
    first = x_of(mark, mark.lines[0])
    if len(first) > 1 and first[0] > first[-1]:
        low, high = high, low
    return Axis(low, high, whole=mark.whole_x), Axis(*limits(mark))


def x_of(mark: Lines, line: Line) -> Array:
    return np.asarray(mark.x if line.x is None else line.x)


def limits(mark: Lines) -> tuple[float, float]:
    """The range of the curves and their bands, with a little room."""
    parts = [part for line in mark.lines for part in (line.values, line.low, line.high) if part is not None]
    low, high = _ends([*parts, np.zeros(1)] if mark.from_zero else parts)
    up = _with_room(low, high)
    return (0.0 if mark.from_zero and low >= 0 else up.start), up.end


def _ends(parts: Iterable[Any]) -> tuple[float, float]:
    values = np.concatenate([np.asarray(part, float).ravel() for part in parts] or [np.zeros(1)])
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)


def _with_room(low: float, high: float) -> Axis:
    room = (high - low or 1.0) * ROOM
    return Axis(low - room, high + room)


def styles(named: Sequence[Line | Points]) -> list[tuple[str, str]]:
    """(colour, dash) of each curve or group; quiet ones are grey and dashed."""
    pairs, loud, quiet = [], 0, 0
    for one in named:
        if one.quiet:
            pairs.append((GREY, DASHES[1 + quiet % 3]))
            quiet += 1
        else:
            pairs.append((INKS[loud % len(INKS)], DASHES[loud // len(INKS) % len(DASHES)]))
            loud += 1
    return pairs
