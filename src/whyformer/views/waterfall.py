"""A waterfall: from the value at the baseline to that of the row, column by column."""

from __future__ import annotations

from dataclasses import replace

from whyformer.results.types import Explanation
from whyformer.views.header import BarRow, bar_rows, column
from whyformer.views.marks import Bar, Bars
from whyformer.views.scales import headroom
from whyformer.views.table_marks import stand_in_of
from whyformer.views.text_marks import ranking

VALUE = "baseline_value"  # the check of a method whose scores need not add up (two_ended)
INTERACTIONS = "interactions", "Interactions are effects of three or more columns together"
MISSING = "not accounted for", ""
LEAST = 0.005  # of the whole change: a smaller remainder is rounding
TICK = 0.004  # width of the lines that mark both ends, as a share of the track


def start_of(explanation: Explanation) -> float | None:
    """Return the value at the baseline; None where a waterfall would have nothing to start from."""
    if explanation.base is not None:
        return explanation.base
    return explanation.checks.get(VALUE)


def has_waterfall(explanation: Explanation) -> bool:
    """Whether the opening view is a waterfall: of a row of a table, by a method whose scores have a sign."""
    of_table = set(explanation.units.stream) == {"table"}
    return of_table and explanation.signed and start_of(explanation) is not None and bool(explanation.scores.any())


def remainder_words(explanation: Explanation) -> tuple[str, str]:
    """Return the name of what is left between the sum of the scores and the value, and a sentence about it."""
    # Both ends measure single columns and pairs exactly; what is left comes from three or more columns together.
    measured = VALUE in explanation.checks and explanation.options.get("guide") is None
    return INTERACTIONS if measured else MISSING


def baseline_words(explanation: Explanation) -> str:
    """Name the baseline: mean over 5 reference rows."""
    name, _, count = stand_in_of(explanation).partition(":")
    if name == "rows":
        return f"mean over {count} reference rows" if count != "1" else "one reference row"
    return "0, and each category alike" if name == "uniform" else name


def waterfall(explanation: Explanation, most: int | None = None, specials: bool = False) -> Bars:
    """Return the steps from the baseline to the row, the largest first; hidden features are one step."""
    start = start_of(explanation)
    assert start is not None
    every = ranking(explanation, most=len(explanation.units), specials=specials)
    shown = ranking(explanation, most=most, specials=specials).bars
    bars = list(shown)
    total = float(explanation.scores.sum())
    if rest := every.bars[len(shown) :]:
        bars.append(Bar(f"{len(rest)} others", sum(bar.score for bar in rest)))
    special = total - sum(bar.score for bar in every.bars)
    change = explanation.value - start
    if abs(special) > LEAST * abs(change):
        bars.append(Bar("special tokens", special, special=True))
    missing, note = change - total, ""
    if abs(missing) > LEAST * abs(change):
        name, note = remainder_words(explanation)
        bars.append(Bar(name, missing, special=True))
    at, starts = start, [start]
    for bar in bars:
        starts.append(at)
        at += bar.score
    ends = (Bar("baseline", start, special=True), Bar("this row", explanation.value, special=True))
    return replace(
        every,
        bars=(ends[0], *bars, ends[1]),
        ranked=False,
        left_out=0,
        starts=(*starts, explanation.value),
        headroom=headroom(explanation),
        folded=" ".join(part for part in (f"{note}." * bool(note), every.folded) if part),
    )


def placed_rows(mark: Bars) -> list[BarRow]:
    """Return bars as all back ends draw them; those of a waterfall begin where the one before ends."""
    rows = bar_rows(mark)
    if not mark.starts:
        return rows
    steps = [0.0, *(bar.score for bar in mark.bars[1:-1]), 0.0]
    both = [(start, start + step) for start, step in zip(mark.starts, steps, strict=True)]
    low, high = min(map(min, both)), max(map(max, both))
    reach = ((high - low) or 1.0) * mark.headroom
    low -= (reach - (high - low)) / 2 if high > low else 0.0
    told = column([bar.score for bar in mark.bars], mark.scale)
    placed = []
    for number, (row, (start, end)) in enumerate(zip(rows, both, strict=True)):
        outer = number in (0, len(rows) - 1)
        left, width = (min(start, end) - low) / reach, abs(end - start) / reach
        left, width = (min(left, 1 - TICK), TICK) if outer else (left, width)
        words = told(row.bar.score)
        words = words if outer or row.bar.score <= 0 else f"+{words}"
        placed.append(replace(row, number=words, start=left, width=width, beyond=False, limits=None, dots=()))
    return placed
