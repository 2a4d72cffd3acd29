"""What a language model said and what each token of it came from: the answer over its prompt, and token × token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.parameters import Count, checked
from whyformer.types import Cost, Explanation, Generation
from whyformer.views.explained import SIGNED, UNSIGNED, By
from whyformer.views.facts import cost_of, doubts_of_all, facts_about_method, named, percent
from whyformer.views.marks import LEAST, Dialogue, Matrix, Reading
from whyformer.views.reading import (
    Group,
    apart_words,
    first_token_words,
    groups_of,
    in_full_colour,
    parts_of,
    scale_of_row,
    shortened_question,
    summed,
)
from whyformer.views.scales import aside_of, first_token, plain_units, scale_of, share
from whyformer.views.view import Fact, Panel, View, view_of

Array = np.ndarray[Any, Any]
MOST_COLUMNS = 40  # of the heat map: labels stay readable
MOST_ROWS = 48
FEWEST_COLUMNS = 12
LONGEST_LABEL = 28
SHARES = " Numbers are shares: of what all words got for a token of the answer."
READ_AT = " Hatched words are where a token was read; most of such a score is what the position keeps of itself."


@view_of.register(Generation)
@checked
def generation_view(
    generation: Generation,
    by: By = "word",
    *,
    colour_first_token: bool = False,
    most: Count = MOST_COLUMNS,
    title: str = "",
) -> View:
    """The answer over its prompt, and which units (``most`` of them) each of its tokens came from.

    ``colour_first_token``: the first token takes part in the colours, too.
    """
    steps = [in_full_colour(e) for e in generation.tokens] if colour_first_token else generation.tokens
    dialogue, groups = dialogue_of(generation, steps, by)
    heat = _heat(dialogue, [group.text for group in groups], most)
    last = steps[-1]
    return View(
        title or shortened_question(last),
        (
            Panel((dialogue,), "the answer", wide=True),
            Panel((heat,), f"each token of the answer, and {_columns(dialogue, heat)}", wide=True),
        ),
        _certainty(generation),
        doubts_of_all(steps),
        _caption(steps) + (first_token_words(generation.tokens, coloured=True) if colour_first_token else ""),
        legend=heat.scale,
        details=_facts(steps),
    )


def dialogue_of(generation: Generation, steps: Sequence[Explanation], by: str = "word") -> tuple[Dialogue, list[Group]]:
    """Shares of the pieces of all that was read, per token of the answer."""
    units = steps[-1].units
    groups = groups_of(units, by)
    apart = np.zeros((len(steps), len(units)), bool)
    shares = np.full(apart.shape, np.nan)
    for row, step in enumerate(steps):
        shares[row, : len(step.scores)] = step.scores * share(step)
        apart[row, list(aside_of(step))] = True
    plain = set(plain_units(units))
    ordinary = np.array([bool(plain & set(group.members)) for group in groups])
    # A word is apart where one of its pieces is, and there once its first piece is.
    aside = np.stack([apart[:, list(group.members)].any(1) for group in groups], 1)
    known = summed(np.nan_to_num(shares), groups)
    known[np.stack([np.isnan(shares[:, group.members[0]]) for group in groups], 1)] = np.nan
    said, signed = texts_of(generation), any(e.signed for e in steps)
    bare = Dialogue(said, generation.sentences or ((0, len(said)),), Reading((), scale_of([])), known, aside, ordinary)
    mean, nowhere = bare.over(0, len(said))
    strength = np.nanmax(np.where(aside, 0.0, np.abs(known)), 0, initial=0.0)
    parts = parts_of(units, groups, mean, nowhere, np.where(ordinary, strength, 0.0))
    reading = Reading(parts, scale_of_row(mean, ordinary, nowhere, signed))
    return Dialogue(said, bare.sentences, reading, known, aside, ordinary), groups


def texts_of(generation: Generation) -> tuple[str, ...]:
    """The answer cut into its tokens; some tokenizers drop the space before a token that is read alone."""
    texts, at = [], 0
    for step in generation.tokens:
        label = step.target.label
        place = generation.text.find(label, at) if label else -1
        if place < 0 or generation.text[at:place].strip():  # half a character, or a token without a text
            texts.append(label)
            continue
        texts.append(generation.text[at : place + len(label)])
        at = place + len(label)
    return tuple(texts)


def _heat(dialogue: Dialogue, labels: Sequence[str], most: int) -> Matrix:
    """Rows are tokens of the answer; of many columns, those that count most for one of them."""
    shares = np.where(dialogue.aside, np.nan, dialogue.shares)
    highest = np.where(dialogue.ordinary, np.nanmax(np.abs(np.nan_to_num(shares)), 0, initial=0.0), -1.0)
    strong = max(FEWEST_COLUMNS, int((highest >= LEAST).sum()))
    count = min(most, strong, int(dialogue.ordinary.sum())) or len(labels)
    chosen = sorted(np.argsort(-highest, kind="stable")[:count].tolist())
    values = shares[:MOST_ROWS, chosen]
    meaning = "share of a row (empty: not yet there, or not on the scale)"
    scale = scale_of([values], dialogue.reading.scale.signed, meaning=meaning)
    rows = tuple(text.strip() or repr(text) for text in dialogue.said[:MOST_ROWS])
    return Matrix(values, scale, rows, tuple(_cut(labels[i]) for i in chosen), "token of the answer", "came from")


def _cut(label: str) -> str:
    words = " ".join(label.split())
    return words if len(words) <= LONGEST_LABEL else words[: LONGEST_LABEL - 1] + "…"


def _columns(dialogue: Dialogue, heat: Matrix) -> str:
    shown, there = heat.values.shape[1], int(dialogue.ordinary.sum())
    noun = "sentences" if sum(map(len, heat.column_labels)) > shown * LONGEST_LABEL // 2 else "words"
    columns = "what it came from" if shown >= there else f"the {shown} of {there} {noun} that count most"
    rows = "" if len(heat.values) == len(dialogue.said) else f" (the first {len(heat.values)} tokens)"
    return columns + rows


def _certainty(generation: Generation) -> tuple[Fact, ...]:
    """How likely the model found what it said, and what else it would have said where it was least sure."""
    told = [(likely, step) for step in generation.tokens if (likely := _likely(step)) is not None]
    if not told:
        return ()
    lowest, step = min(told, key=lambda each: each[0])
    said = step.prediction
    other = next((c for c in (said.next or ()) if c.index != step.target.index), None)
    if said.index != step.target.index:
        rest = f", where {named(said)} came first ({percent(said.probability or 0.0)})"
    else:
        rest = "" if other is None else f", next {named(other)} ({percent(other.probability)})"
    mean = percent(float(np.mean([likely for likely, _ in told])))
    return (
        Fact(
            "probability", f"{mean} per token on average; least sure of {named(step.target)} ({percent(lowest)}){rest}"
        ),
    )


def _likely(step: Explanation) -> float | None:
    """The probability of the token that was said, where it is among those that are known."""
    said, index = step.prediction, step.target.index
    if said.index == index:
        return said.probability
    return next((choice.probability for choice in said.next or () if choice.index == index), None)


def _facts(steps: Sequence[Explanation]) -> tuple[Fact, ...]:
    first, costs = steps[0], [e.cost for e in steps]
    spent = Cost(
        round(sum(c.forwards for c in costs), 2),
        round(sum(c.backwards for c in costs), 2),
        sum(c.seconds for c in costs),
    )
    left_out = {"read from", "checked", "cost"}
    entries = [fact for fact in facts_about_method(first) if fact.name not in left_out]
    entries.append(Fact("cost", cost_of(spent)))
    scalar = first.scalar.replace("_", "-")
    entries.append(Fact("explained", f"{scalar} of each token of the answer, {len(steps)} in all"))
    return (*entries, Fact("model", first.model)) if first.model else tuple(entries)


def _caption(steps: Sequence[Explanation]) -> str:
    text = f"{SIGNED if any(e.signed for e in steps) else UNSIGNED}." + SHARES
    text += apart_words(steps)
    if any(aside_of(e) - {first_token(e)} for e in steps):
        text += READ_AT
    return text
