"""What a language model read: words under the names of who said them, the quiet middle of long texts folded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from whyformer.results.types import Explanation, Units
from whyformer.shapes import Array
from whyformer.views.header import percent
from whyformer.views.marks import Passage, Piece, Reading, Utterance
from whyformer.views.scales import FIRST_TOKEN, TEMPLATE, first_token, in_template, plain_units
from whyformer.views.text_marks import scale_for

ANSWER = "answer"  # the role of what was said
HEADINGS = {ANSWER: "the answer so far", "": "prompt"}
LONG = 160  # pieces of a part that are shown in full
# Of a longer one: at both ends, around each of the strongest, and how many those are.
ENDS, AROUND, STRONGEST = 24, 6, 12
FEWEST = 16  # that are worth folding
LONGEST_TITLE = 74  # so that it stands on one line
LONG_PIECE = 30  # letters, on average: pieces are sentences, and a fifth as many are shown


@dataclass(frozen=True)
class Group:
    """Units that are drawn as one piece, and their text."""

    members: tuple[int, ...]
    text: str
    before: str  # between it and the group before


def is_long(explanation: Explanation) -> bool:
    """Of a language model, and too long for one run of text, or by several voices."""
    roles = set(explanation.units.role or ())
    return FIRST_TOKEN in explanation.checks and (len(explanation.units) > LONG or len(roles) > 1)


def reading_of(explanation: Explanation, by: str = "word") -> Reading:
    """The text of one explanation, by voices."""
    by = "word" if len(explanation.units) > LONG else by
    scale, groups = scale_for(explanation, by), groups_of(explanation.units, by)
    scores = summed(explanation.scores, groups)
    aside = np.array([first_token(explanation) in group.members for group in groups])
    return Reading(parts_of(explanation.units, groups, scores, aside, np.abs(scores)), scale)


def summed(scores: Array, groups: Sequence[Group]) -> Array:
    """(…, U) → (…, G)"""
    return np.stack([scores[..., list(group.members)].sum(-1) for group in groups], -1)


def groups_of(units: Units, by: str) -> list[Group]:
    """Words with their pieces, or single units; no word goes on from one voice to the next."""
    members: list[list[int]] = []
    groups: list[Group] = []
    for i in range(len(units)):
        spans = units.spans
        inside = i and spans is not None and spans[i][0] < spans[i - 1][1] <= spans[i][1]  # of one character
        if i and (inside or _same_word(units, i, by)):
            members[-1].append(i)
        else:
            members.append([i])
    if units.text is None or units.spans is None:
        marked = any(label.startswith(("Ġ", "▁")) for label in units.labels)
        for m in members:  # what stands before a unit of an unknown text, from how its label is written
            label = units.labels[m[0]]
            glued = not label.startswith(("Ġ", "▁")) if marked else label.startswith("##")
            groups.append(Group(tuple(m), units.text_of(m), "" if glued or not m[0] else " "))
        return groups
    at = 0
    for m in members:
        start, end = units.spans[m[0]][0], max(units.spans[i][1] for i in m)
        text = units.text[start:end]
        space = len(text) - len(text.lstrip()) if text.strip() else 0
        shown = (text.strip() or text) if end > start else units.labels[m[0]]
        groups.append(Group(tuple(m), shown, units.text[at : start + space] if at <= start else ""))
        at = max(at, start + space + len(shown)) if end > start else at
    return groups


def _same_word(units: Units, i: int, by: str) -> bool:
    if by == "token" or units.word is None or units.word[i] < 0 or in_template(units, i):
        return False
    if units.word[i] != units.word[i - 1] or _role(units, i) != _role(units, i - 1):
        return False
    if units.text is None or units.spans is None or not units.text[slice(*units.spans[i])].strip():
        return True
    start = units.spans[i][0]  # some tokenizers number what follows a line break as the word before it
    return not units.text[max(0, start - 1) : start + 1][:1].isspace() and not units.text[start].isspace()


def _role(units: Units, i: int) -> str:
    return "" if units.role is None else units.role[i]


def parts_of(
    units: Units, groups: Sequence[Group], scores: Array, aside: Array, strength: Array
) -> tuple[Utterance, ...]:
    """Voice by voice. ``strength``: which pieces are worth seeing, where not all are shown."""
    parts = []
    for role, numbers in groupby(range(len(groups)), key=lambda g: _role(units, groups[g].members[0])):
        chosen, quiet = list(numbers), role == TEMPLATE
        pieces = [_piece(units, groups[g], float(scores[g]), bool(aside[g]), g > chosen[0], quiet) for g in chosen]
        passages = [_plain(pieces)] if quiet else _folded(pieces, [float(strength[g]) for g in chosen])
        parts.append(Utterance(HEADINGS.get(role, role), tuple(passages), quiet))
    return tuple(parts)


def _piece(units: Units, group: Group, score: float, aside: bool, follows: bool, quiet: bool) -> tuple[Piece, ...]:
    special = all(units.special[i] or in_template(units, i) for i in group.members)
    text = group.text.replace("\n", "⏎") if quiet else group.text
    piece = Piece(text or " ", score, special, aside)
    between = group.before.replace("\n", "⏎") if quiet else group.before
    return (Piece(between), piece) if follows and between else (piece,)


def _plain(pieces: Sequence[tuple[Piece, ...]]) -> Passage:
    return Passage(tuple(p for piece in pieces for p in piece))


def _folded(pieces: list[tuple[Piece, ...]], strength: list[float]) -> list[Passage]:
    """Both ends, and what stands around the strongest; the rest in folds."""
    letters = sum(len(p.text) for piece in pieces for p in piece)
    fewer = 5 if letters > LONG_PIECE * len(pieces) else 1
    if len(pieces) * fewer <= LONG:
        return [_plain(pieces)]
    ends, around = max(1, ENDS // fewer), AROUND // fewer
    shown = np.zeros(len(pieces), bool)
    shown[:ends] = shown[-ends:] = True
    for place in np.argsort(-np.asarray(strength), kind="stable")[: max(3, STRONGEST // fewer)]:
        shown[max(0, place - around) : place + around + 1] = True
    runs = [(seen, list(places)) for seen, places in groupby(range(len(pieces)), key=lambda i: bool(shown[i]))]
    passages: list[Passage] = []
    for seen, places in runs:
        passage = _plain([pieces[i] for i in places])
        if seen or len(places) * fewer < FEWEST:
            # What is too short to be folded goes on from what is before it.
            before = passages.pop() if passages and not passages[-1].folded else Passage(())
            passages.append(Passage((*before.pieces, *passage.pieces)))
        else:
            passages.append(Passage(passage.pieces, f"… {len(places)} {'words' if fewer == 1 else 'sentences'}"))
    return passages


def in_full_colour(explanation: Explanation) -> Explanation:
    """The same, as if its first token had taken nothing: it is drawn like any other."""
    return explanation.replace(checks=explanation.checks | {FIRST_TOKEN: 0.0})


def shortened_question(explanation: Explanation) -> str:
    """The end of what a user (or the prompt) asked last: its last sentences, as many as fit."""
    units = explanation.units
    asked = [i for i in plain_units(units) if _role(units, i) != ANSWER]
    groups = [g for g in groups_of(units, "token") if g.members[0] in asked]
    last = [list(parts) for _, parts in groupby(groups, key=lambda g: _role(units, g.members[0]))][-1:]
    question = " ".join("".join(g.before + g.text for g in part) for part in last)
    sentences = re.split(r"(?<=[.?!])\s+", " ".join(question.split()))
    fitting = [i for i in range(len(sentences)) if len(" ".join(sentences[i:])) <= LONGEST_TITLE]
    words = " ".join(sentences[fitting[0] :]) if fitting else sentences[-1][: LONGEST_TITLE - 1] + "…"
    return words if fitting[:1] in ([], [0]) else f"… {words}"


def apart_words(steps: Sequence[Explanation]) -> str:
    """What is not on the scale of the words, and what it took."""
    shares = []
    for e in steps:
        inside = [i for i in range(1, len(e.units)) if in_template(e.units, i)]  # the first token aside
        total = float(np.abs(e.scores).sum())
        shares.append(float(np.abs(e.scores[inside]).sum()) / total if total else 0.0)
    template = float(np.mean(shares))
    words = f" What the chat template put in took {percent(template)} and is not coloured." if template else ""
    return first_token_words(steps) + words


def first_token_words(steps: Sequence[Explanation], coloured: bool = False) -> str:
    """What the first token took, and that it is not on the scale; by method where there are several."""
    apart = [e for e in steps if first_token(e) is not None]
    if not apart:
        return ""
    shares: dict[str, list[float]] = {}
    for e in apart:
        shares.setdefault(e.method, []).append(e.checks[FIRST_TOKEN])
    means = {name: percent(float(np.mean(values))) for name, values in shares.items()}
    took = next(iter(means.values())) if len(means) == 1 else ", ".join(f"{v} of {k}" for k, v in means.items())
    words = "." if coloured else " and is hatched, not coloured: language models often park attention there."
    return f" The first token took {took} of all scores{words}"
