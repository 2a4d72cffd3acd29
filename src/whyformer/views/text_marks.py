"""Text: the original string with its tokens highlighted, a bar per token or word, and the ranked list."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from rich.cells import cell_len

from whyformer.evidence import ABOUT_95
from whyformer.parameters import OneOf
from whyformer.results.types import Explanation, Units
from whyformer.views import scales
from whyformer.views.header import percent
from whyformer.views.marks import Bar, Bars, Piece, Scale, TokenRun
from whyformer.views.table_marks import untried

By = Annotated[str, OneOf("token", "word")]
MOST_NAMED = 3
PARKED = ". Language models often put attention there"


def folded_units(explanation: Explanation) -> list[int]:
    """What [CLS] gets is often tens of times what any word gets, and no word's doing. None where nothing is left."""
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
    several = kind == "special" and len(group) > 1
    who = {
        "first": f"The first token, {listed},",
        "read": f"{listed}, where the output is read,",
        "template": "The chat template",
        "special": f"Special token{'s' * several} {listed}",
    }[kind]
    total, held = float(scores.sum()), float(scores[group].sum())
    share = f"{percent(held / total)} of the total |score|" if held else "no score"
    hidden = f"{'are' if several else 'is'} hidden (show(specials=True))"
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


def token_run(
    explanation: Explanation,
    *,
    by: str = "token",
    scale: Scale | None = None,
    times: float = 1.0,
    members: Sequence[int] | None = None,
) -> TokenRun:
    """Highlights on the original string, or on the joined tokens; ``times``: what turns scores into shares."""
    chosen = _entries(explanation, by, members)
    scale = scale or scale_for(explanation, by)
    text = explanation.units.text
    if text is None or all(e.span in (None, NOWHERE) for e in chosen):  # or the string is another stream's
        return TokenRun(tuple(_joined(chosen, times)), scale)
    pieces: list[Piece] = []
    at, (first, last) = 0, placed(explanation.units)
    for entry in _by_place(chosen):
        start, end = entry.span or NOWHERE
        # Spaces that a tokenizer counts to a word are not part of what is read.
        start += len(text[start:end]) - len(text[start:end].lstrip())
        if start > at:
            pieces.append(Piece(_unscored(text[:start], "before the first") if start <= first else text[at:start]))
        if end > start:
            pieces.append(Piece(text[start:end], entry.score * times, entry.special, entry.aside))
        at = max(at, end)
    if at < len(text):
        pieces.append(Piece(_unscored(text[at:], "after the last") if at >= last else text[at:]))
    return TokenRun(tuple(pieces), scale)


def placed(units: Units) -> tuple[int, int]:
    """Where the first unit of the text begins and the last one ends; spaces before a word are not counted."""
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
    """What stands in the string, from left to right. Pieces of one character (bytes) are one, their scores summed."""
    places: list[_Entry] = []
    for entry in sorted(entries, key=lambda e: e.span or NOWHERE):
        start, end = entry.span or NOWHERE
        if end <= start:
            continue
        before = places[-1] if places else None
        if before is None or before.span is None or start >= before.span[1]:
            places.append(entry)
            continue
        span = (before.span[0], max(end, before.span[1]))
        special = before.special and entry.special
        places[-1] = _Entry(before.label, before.score + entry.score, special, span, before.aside or entry.aside)
    return places


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


def bars(
    explanation: Explanation,
    *,
    scale: Scale | None = None,
    times: float = 1.0,
    members: Sequence[int] | None = None,
    specials: bool = False,
) -> Bars:
    """One bar per unit, in reading order; special tokens are hidden unless ``specials``."""
    chosen, folded = listed(explanation, "token", members, specials)
    return Bars(tuple(_bar(explanation, e, times) for e in chosen), scale or scale_for(explanation), folded=folded)


def ranking(
    explanation: Explanation,
    *,
    by: str = "token",
    scale: Scale | None = None,
    times: float = 1.0,
    most: int | None = None,
    specials: bool = False,
) -> Bars:
    """The ranked list: the highest first, or the strongest where scores have a sign; what was not tried out last."""
    chosen, folded = listed(explanation, by, None, specials)
    size: Callable[[float], float] = abs if explanation.signed else float
    order = sorted(chosen, key=lambda entry: (bool(entry.note), -size(entry.score)))
    if most is None:  # as on the page
        most = len(order) if len(order) <= FEW else MOST
    shown = tuple(_bar(explanation, entry, times) for entry in order[:most])
    scale = scale or scale_for(explanation, by)
    return Bars(shown, scale, folded=folded, ranked=True, left_out=len(order) - len(shown))


def listed(
    explanation: Explanation, by: str, members: Sequence[int] | None, specials: bool
) -> tuple[list[_Entry], str]:
    """What has a bar, and a line about what has none."""
    entries = _entries(explanation, by, members)
    if specials:
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
    groups: dict[int, list[int]] = {}
    single = by == "token" or units.word is None
    for i in members:
        word = i if single or units.word is None else units.word[i]
        if word >= 0:
            groups.setdefault(word, []).append(i)
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
        for group in groups.values()
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
