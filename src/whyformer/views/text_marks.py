"""Text with its tokens highlighted, a bar per token or word, the ranked list, and the waterfall."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from rich.cells import cell_len

from whyformer.evidence import ABOUT_95
from whyformer.parameters import OneOf
from whyformer.results.types import Explanation, Units, word_pieces
from whyformer.views import scales
from whyformer.views.header import column, percent
from whyformer.views.marks import PLAIN, Bar, Bars, MarkSettings, Piece, Scale, TokenRun
from whyformer.views.table_marks import stand_in_of, untried

By = Annotated[str, OneOf("token", "word")]
MOST_NAMED = 3
PARKED = ". Language models often put attention there"


def folded_units(explanation: Explanation) -> list[int]:
    """Return the units without a bar: special tokens, often with far higher scores; [] if no unit is left."""
    plain = set(scales.plain_units(explanation.units)) - scales.aside_of(explanation)
    return [i for i in range(len(explanation.units)) if i not in plain] if plain else []


def folded_words(explanation: Explanation, members: Sequence[int] | None = None) -> str:
    """Special tokens [CLS], [SEP] received 81.2 % of the total |score| and are hidden (show(specials=True))."""
    kinds: dict[str, list[int]] = {}
    for i in folded_units(explanation):
        if members is None or i in members:
            kinds.setdefault(_kind(explanation, i), []).append(i)
    return " ".join(_sentence(explanation, kind, group) for kind, group in kinds.items())


def _kind(explanation: Explanation, index: int) -> str:
    if index == scales.first_token(explanation):
        return "first"
    if index == scales.outshining(explanation):
        return "read"
    return "template" if scales.in_template(explanation.units, index) else "special"


def _sentence(explanation: Explanation, kind: str, group: list[int]) -> str:
    units, scores = explanation.units, np.abs(explanation.scores)
    names = list(
        dict.fromkeys(units.labels[i] if units.special[i] else repr(units.labels[i].lstrip("Ġ▁")) for i in group)
    )
    listed = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
    many = kind == "special" and len(group) > 1
    who = {
        "first": f"The first token, {listed},",
        "read": f"{listed}, where the output is read,",
        "template": "The chat template",
        "special": f"Special token{'s' * many} {listed}",
    }[kind]
    total, held = float(scores.sum()), float(scores[group].sum())
    share = f"{percent(held / total)} of the total |score|" if held else "no score"
    hidden = f"{'are' if many else 'is'} hidden (show(specials=True))"
    return f"{who} received {share} and {hidden}{PARKED if kind == 'first' and held else ''}."


UNCHANGED = "no effect"  # beside the zero of a column whose masking changed nothing
FEW, MOST = 10, 8  # a list of few entries is shown whole, of a longer one the first; .ranked() has them all
NOWHERE = (0, 0)  # the span of what is not in the string


@dataclass(frozen=True)
class _Entry:
    """A token, or a word with its pieces summed."""

    label: str
    score: float
    special: bool
    span: tuple[int, int] | None
    aside: bool = False
    error: float | None = None
    note: str = ""
    members: tuple[int, ...] = ()


def token_run(explanation: Explanation, look: MarkSettings = PLAIN, members: Sequence[int] | None = None) -> TokenRun:
    """Return highlights on the original string, or on the joined tokens."""
    chosen = _entries(explanation, look.by, members)
    scale, text = look.scale or scale_for(explanation, look.by), explanation.units.text
    if text is None or all(e.span in (None, NOWHERE) for e in chosen):  # or the string is another stream's
        return TokenRun(tuple(_joined(chosen, look.times)), scale)
    pieces: list[Piece] = []
    at, (first, last) = 0, placed(explanation.units)
    for entry in _by_place(chosen):
        start, end = entry.span or NOWHERE
        # Spaces that a tokenizer counts to a word are not part of what is read.
        start += len(text[start:end]) - len(text[start:end].lstrip())
        if start > at:
            pieces.append(Piece(_unscored(text[:start], "before the first") if start <= first else text[at:start]))
        if end > start:
            pieces.append(Piece(text[start:end], entry.score * look.times, entry.special, entry.aside))
        at = max(at, end)
    if at < len(text):
        pieces.append(Piece(_unscored(text[at:], "after the last") if at >= last else text[at:]))
    return TokenRun(tuple(pieces), scale)


def placed(units: Units) -> tuple[int, int]:
    """Return the start of the first unit and the end of the last one, without spaces before a word."""
    spans = [(start, end) for start, end in units.spans or () if end > start]
    if units.text is None or not spans:
        return NOWHERE
    start, end = min(spans)
    word = units.text[start:end]
    return start + len(word) - len(word.lstrip()), max(end for _, end in spans)


def _unscored(text: str, where: str) -> str:
    """Replace text outside of all units by its length: drawn as it is, it would look like zeros.

    Why it has no unit is in the warnings, or was asked for: the model's maximum length, chosen ranges, an earlier
    output position, characters that the tokenizer drops.
    """
    if not any(is_visible(char) for char in text):
        return text
    note = f"[{len(text.strip())} character{'s' * (len(text.strip()) > 1)} {where} scored token]"
    return f" … {note}" if where.startswith("after") else f"{note} … "


def is_visible(char: str) -> bool:
    """Return False for spaces, control characters, and marks that change the character before them."""
    return char.isprintable() and not char.isspace() and not unicodedata.category(char).startswith("M")


def _by_place(entries: list[_Entry]) -> list[_Entry]:
    """Return entries in the order of the string; pieces of one character (bytes) are merged, with summed scores."""
    merged: list[_Entry] = []
    for entry in sorted(entries, key=lambda e: e.span or NOWHERE):
        start, end = entry.span or NOWHERE
        if end <= start:
            continue
        before = merged[-1] if merged else None
        if before is None or before.span is None or start >= before.span[1]:
            merged.append(entry)
            continue
        span = (before.span[0], max(end, before.span[1]))
        special = before.special and entry.special
        merged[-1] = _Entry(before.label, before.score + entry.score, special, span, before.aside or entry.aside)
    return merged


def _joined(entries: list[_Entry], times: float) -> list[Piece]:
    pieces: list[Piece] = []
    marked = any(e.label.startswith(("Ġ", "▁")) for e in entries)  # spaces of byte-level and SentencePiece tokenizers
    for i, entry in enumerate(entries):
        glued = not entry.label.startswith(("Ġ", "▁")) and not entry.special if marked else entry.label.startswith("##")
        if i and not glued:
            pieces.append(Piece(" "))
        text = entry.label.removeprefix("##").lstrip("Ġ▁") or " "
        pieces.append(Piece(text, entry.score * times, entry.special, entry.aside))
    return pieces


def bars(explanation: Explanation, look: MarkSettings = PLAIN, members: Sequence[int] | None = None) -> Bars:
    """Return one bar per unit, in reading order."""
    chosen, folded = _listed(explanation, replace(look, by="token"), members)
    drawn = tuple(_bar(explanation, entry, look.times) for entry in chosen)
    return Bars(drawn, look.scale or scale_for(explanation), folded=folded)


def ranking(explanation: Explanation, look: MarkSettings = PLAIN) -> Bars:
    """Return the ranked list: the highest first, by size where scores have a sign; columns without effect last."""
    chosen, folded = _listed(explanation, look)
    size: Callable[[float], float] = abs if explanation.signed else float
    order = sorted(chosen, key=lambda entry: (bool(entry.note), -size(entry.score)))
    most = look.most
    if most is None:  # as on the page
        most = len(order) if len(order) <= FEW else MOST
    shown = tuple(_bar(explanation, entry, look.times) for entry in order[:most])
    scale = look.scale or scale_for(explanation, look.by)
    return Bars(shown, scale, folded=folded, ranked=True, left_out=len(order) - len(shown))


def _listed(
    explanation: Explanation, look: MarkSettings, members: Sequence[int] | None = None
) -> tuple[list[_Entry], str]:
    """Return the entries that have a bar, and a line about those that have none."""
    entries = _entries(explanation, look.by, members)
    if look.specials:
        return entries, ""
    folded = set(folded_units(explanation))
    return [e for e in entries if not folded & set(e.members)], folded_words(explanation, members)


def _bar(explanation: Explanation, entry: _Entry, times: float) -> Bar:
    label = entry.label
    if scales.FIRST_TOKEN in explanation.checks:  # as it is read, not as byte-level tokenizers write spaces
        label = label.replace("Ċ", "⏎").lstrip("Ġ▁") or "␣"
    low = high = None
    if entry.error:  # 95 % limits as they are drawn: not where nothing was estimated
        low, high = ((entry.score + sign * ABOUT_95 * entry.error) * times for sign in (-1, 1))
    return Bar(label, entry.score * times, entry.special, low, high, note=entry.note, quiet=entry.aside)


def scale_for(explanation: Explanation, by: str = "token") -> Scale:
    """The scale of an explanation alone; words, and characters of several bytes, can exceed their pieces."""
    units, left_out = explanation.units, scales.aside_of(explanation)
    members = [i for i in range(len(units)) if i not in left_out and not scales.in_template(units, i)]
    entries = _entries(explanation, by, members)
    words = np.array([e.score for e in (*entries, *_by_place(entries)) if not e.special])
    scale = scales.scale_of([scales.ordinary(explanation), words], explanation.signed)
    return scales.widened(scale, scales.headroom(explanation))


def _entries(explanation: Explanation, by: str, members: Sequence[int] | None) -> list[_Entry]:
    units = explanation.units
    members = range(len(units)) if members is None else members
    sink, unmoved, errors = scales.first_token(explanation), untried(explanation), explanation.errors
    single = by == "token" or units.word is None
    return [
        _Entry(
            units.labels[group[0]] if single else units.text_of(group),
            float(explanation.scores[group[0]] if single else explanation.scores[group].sum()),
            single and units.special[group[0]],
            None if units.spans is None else (units.spans[group[0]][0], units.spans[group[-1]][1]),
            sink in group,
            None if errors is None else float(errors[group].sum()),  # of a word, no larger than of its pieces together
            UNCHANGED if single and group[0] in unmoved else "",
            tuple(group),
        )
        for group in ([[i] for i in members] if single else word_pieces(units, members))
    ]


@dataclass(frozen=True)
class Char:
    """One character, the piece it belongs to, and what is coloured."""

    char: str
    piece: int
    tint: float | None
    special: bool
    aside: bool = False


def characters_of(run: TokenRun) -> list[Char]:
    return [
        Char(char if char in "\n" or char.isprintable() else " ", i, piece.score, piece.special, piece.aside)
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


@dataclass(frozen=True)
class BarRow:
    """A bar as all back ends draw it. Places and widths are shares of its track."""

    rank: int  # 0 in lists that are not ranked
    bar: Bar
    number: str
    error: str  # half the distance of its limits
    start: float
    width: float
    beyond: bool  # cut off at the end of the scale, and hatched
    limits: tuple[float, float] | None
    dots: tuple[float, ...]


def placed_rows(mark: Bars) -> list[BarRow]:
    """Return bars as all back ends draw them; those of a waterfall begin where the one before ends."""
    scale = mark.scale
    told = column([bar.score for bar in mark.bars], scale)
    rows = []
    for rank, bar in enumerate(mark.bars, 1):
        error, limits, zero = "", None, 0.5 if scale.signed else 0.0
        if bar.low is not None and bar.high is not None:
            error, limits = f" ± {told((bar.high - bar.low) / 2)}", (scale.place(bar.low), scale.place(bar.high))
        width = abs(scale.length(bar.score)) * (0.5 if scale.signed else 1.0)
        start, dots = min(zero, scale.place(bar.score)), tuple(map(scale.place, bar.dots))
        beyond = scale.exceeded(bar.score)
        rows.append(BarRow(rank * mark.ranked, bar, told(bar.score), error, start, width, beyond, limits, dots))
    return _in_steps(mark, rows) if mark.starts else rows


# A waterfall: from the value at the baseline to that of the row, column by column.

VALUE = "baseline_value"  # the check of a method whose scores need not add up (two_ended)
INTERACTIONS = "interactions", "Interactions are effects of three or more columns together"
MISSING = "not accounted for", ""
LEAST = 0.005  # of the whole change: a smaller remainder is rounding
TICK = 0.004  # width of the lines that mark both ends, as a share of the track


def start_of(explanation: Explanation) -> float | None:
    """Return the value at the baseline; None where a waterfall would have nothing to start from."""
    return explanation.checks.get(VALUE) if explanation.base is None else explanation.base


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


def waterfall(explanation: Explanation, look: MarkSettings = PLAIN) -> Bars:
    """Return the steps from the baseline to the row, the largest first; hidden features are one step."""
    start = start_of(explanation)
    assert start is not None
    every = ranking(explanation, replace(look, most=len(explanation.units)))
    shown = ranking(explanation, look).bars
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
        headroom=scales.headroom(explanation),
        folded=" ".join(part for part in (f"{note}." * bool(note), every.folded) if part),
    )


def _in_steps(mark: Bars, rows: list[BarRow]) -> list[BarRow]:
    """Return the bars of a waterfall, each from where the one before ends."""
    steps = [0.0, *(bar.score for bar in mark.bars[1:-1]), 0.0]
    both = [(start, start + step) for start, step in zip(mark.starts, steps, strict=True)]
    low, high = min(map(min, both)), max(map(max, both))
    reach = ((high - low) or 1.0) * mark.headroom
    low -= (reach - (high - low)) / 2 if high > low else 0.0
    placed = []
    for number, (row, (start, end)) in enumerate(zip(rows, both, strict=True)):
        outer = number in (0, len(rows) - 1)
        left, width = (min(start, end) - low) / reach, abs(end - start) / reach
        left, width = (min(left, 1 - TICK), TICK) if outer else (left, width)
        words = row.number if outer or row.bar.score <= 0 else f"+{row.number}"
        placed.append(replace(row, number=words, start=left, width=width, beyond=False, limits=None, dots=()))
    return placed
