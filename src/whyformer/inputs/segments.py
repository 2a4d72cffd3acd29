"""Stretches of a text that are scored as one: its words, its sentences, or ranges of characters that someone chose."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from whyformer.errors import BadInput

Span = tuple[int, int]  # first character, and the one after the last

SIZES = ("token", "word", "sentence", "role")
# A sentence ends at its mark, with what closes it, where a space or the end follows; CJK marks need no space.
_END = re.compile(r"[.!?…]+[\"'”’)\]»]*(?=\s|$)|[。！？]+[”’」』）]*|\n+")
# What is followed by a full stop without ending anything: titles, initials, enumerations, common abbreviations.
_NO_END = re.compile(
    r"(?:\b(?:(?i:mr|mrs|ms|dr|prof|st|sr|jr|vs|etc|e\.g|i\.e|cf|fig|eq|approx|pp?|ch|sec|vol|inc|ltd|co|u\.s|u\.k)|No)"
    r"|(?:^|\s)[A-Z]|(?:^|\n)\s*\d+)\.$"
)
_LETTER = re.compile(r"\w")
_WORD = re.compile(r"\w+(?:['’.-]\w+)*|[^\w\s]")


def words(text: str) -> list[Span]:
    """Words and punctuation marks; spaces belong to none."""
    return [match.span() for match in _WORD.finditer(text)]


def sentences(text: str) -> list[Span]:
    """Sentences without the space around them; a line break ends one, too."""
    spans, start, marks = [], 0, list(_END.finditer(text))
    # A small letter continues a sentence only if sentences of this text begin with capital ones.
    firsts = [_LETTER.search(text, place) for place in (0, *(mark.end() for mark in marks))]
    capitals = any(first.group().isupper() for first in firsts if first is not None)
    for mark in marks:
        after = text[mark.end() :].lstrip()
        goes_on = (capitals and after[:1].islower()) or (after and _NO_END.search(text[start : mark.end()]))
        if goes_on and not mark.group().startswith("\n"):
            continue
        spans.append((start, mark.end()))
        start = mark.end()
    spans.append((start, len(text)))
    return [span for span in (_stripped(text, *span) for span in spans) if span[0] < span[1]]


def token_sentences(text: str, ends: Sequence[int]) -> tuple[Span, ...]:
    """The tokens of each sentence, from where in the text all tokens but the last end; together they are all."""
    bounds = [0, *ends, len(text)]
    groups = members(list(pairwise(bounds)), sentences(text))
    firsts = [0, *sorted(group[0] for group in groups if group)[1:], len(ends) + 1]
    return tuple(pairwise(firsts))


def _stripped(text: str, start: int, end: int) -> Span:
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())


def spans_of(text: str, units: str | Sequence[Any]) -> list[Span]:
    """The stretches of a text that ``units`` names: "word", "sentence", or ranges of characters, checked."""
    if units == "role":  # who says what does not stand in the text
        return []
    if isinstance(units, str):
        return words(text) if units == "word" else sentences(text)
    spans: list[Span] = []
    for number, pair in enumerate(units):
        start, end = pair
        if not 0 <= start < end <= len(text):
            raise BadInput(
                f"units[{number}] = ({start}, {end}): the text has {len(text)} characters, and a stretch of it is "
                "(start, end) with 0 <= start < end."
            )
        spans.append((int(start), int(end)))
    for a, b in zip(sorted(spans), sorted(spans)[1:], strict=False):
        if b[0] < a[1]:
            raise BadInput(f"units {a} and {b} overlap: a character belongs to one unit only.")
    return spans


def members(tokens: Sequence[Span], spans: Sequence[Span]) -> list[list[int]]:
    """Per stretch, the tokens in it: each token goes where most of its characters are, the first of equals."""
    groups: list[list[int]] = [[] for _ in spans]
    if not spans:
        return groups
    starts, ends = np.array(spans).T
    for token, (start, end) in enumerate(tokens):
        shared = np.minimum(ends, end) - np.maximum(starts, start)
        best = int(shared.argmax())
        if shared[best] > 0:
            groups[best].append(token)
    return groups
