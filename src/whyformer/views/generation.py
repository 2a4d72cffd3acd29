"""Views of a language model's answer by token, and of citations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from whyformer.parameters import Count, checked
from whyformer.results.types import Cost, Explanation, Generation
from whyformer.views import reading
from whyformer.views.explained import SIGNED, UNSIGNED, By
from whyformer.views.header import cost_of, doubts, duration, facts_about_method, named, percent
from whyformer.views.marks import LEAST, Dialogue, Matrix, Piece, Reading, Scale, TableMark, TokenRun, shortened
from whyformer.views.scales import aside_of, first_token, plain_units, scale_of, share
from whyformer.views.view import Fact, Page, Panel, View, view_of

# Citations as a page: the answer with numbers behind its sentences, what they stand for, and the documents.


@checked
def citations_page(citations: Any) -> Page:
    """The page of a Citations."""
    numbers, notes = _numbered(citations)
    scale = scale_of([np.array([c.drop for s in citations.sentences for c in s.citations] or [0.0]).clip(min=0)])
    scale = Scale(0.0, scale.high, meaning="fall of the log-probability without it")
    views = [_answer(citations, notes), _sources(citations, notes)]
    views += [_document(citations, d, scale, numbers) for d in range(len(citations.names))]
    return Page(f"What the answer to “{citations.question}” rests on", tuple(views))


def _numbered(citations: Any) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
    """Source → number, in the order of the answer; and (number, sentence, source) for each time one is cited."""
    numbers: dict[int, int] = {}
    notes = []
    for row in range(len(citations.spans)):
        drops = np.nan_to_num(citations.drops[row], nan=-np.inf)
        for source in np.argsort(-drops, kind="stable")[: citations.top].tolist():
            if drops[source] > citations.support:
                notes.append((numbers.setdefault(source, len(numbers) + 1), row, source))
    return numbers, notes


def _answer(citations: Any, notes: list[tuple[int, int, int]]) -> View:
    pieces, end = [], 0
    plain = Scale(0.0, 1.0)
    for row, ((start, stop), supported) in enumerate(zip(citations.spans, citations.supported, strict=True)):
        pieces.append(Piece(citations.answer[end:start]))
        mark = "".join(f" [{n}]" for n, sentence, _ in notes if sentence == row) if supported else " [no document]"
        pieces.append(Piece(citations.answer[start:stop] + mark))
        end = stop
    cost = citations.cost
    facts = (
        Fact("question", citations.question),
        Fact("ranked by", f"{citations.method}, {citations.model}"),
        Fact("cost", f"{cost.forwards:.0f} forwards, {cost.backwards:.0f} backwards, {duration(cost.seconds)}"),
    )
    answer = Panel((TokenRun(tuple(pieces), plain),), wide=True)
    return View("The answer", (answer,), facts, doubts=citations.warnings, words_first=True)


def _sources(citations: Any, notes: list[tuple[int, int, int]]) -> View:
    rows = []
    for number, row, source in notes:
        sentence = citations.sources[source]
        numbers = (f"[{number}]", f"{citations.drops[row, source]:+.2f}", f"{citations.scores[row, source]:.3g}")
        rows.append((*numbers, str(row + 1), citations.names[sentence.document], sentence.text))
    table = TableMark(("", "drop", "score", "of sentence", "document", "source"), tuple(rows))
    caption = (
        "drop: how much the log-probability of that sentence of the answer falls without the source; 1.1 is a factor "
        "of 3."
    )
    return View("Sources", (Panel((table,), wide=True),), caption=caption)


def _document(citations: Any, number: int, scale: Scale, numbers: dict[int, int]) -> View:
    text, pieces, end = citations.texts[number], [], 0
    for index, source in enumerate(citations.sources):
        if source.document != number:
            continue
        start, stop = source.span
        drops = citations.drops[:, index]
        known = float(np.nanmax(drops)) if not np.isnan(drops).all() else None
        mark = f" [{numbers[index]}]" if index in numbers else ""
        pieces += [Piece(text[end:start]), Piece(text[start:stop] + mark, None if known is None else max(known, 0.0))]
        end = stop
    pieces.append(Piece(text[end:]))
    drop = citations.documents[number].drop
    moves = "falls" if drop >= 0 else "rises"
    facts = (Fact("without it", f"the answer's log-probability {moves} by {abs(drop):.2f}"),)
    legend = scale if any(piece.score is not None for piece in pieces) else None
    return View(citations.names[number], (Panel((TokenRun(tuple(pieces), scale),), wide=True),), facts, legend=legend)


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
    steps = [reading.in_full_colour(e) for e in generation.tokens] if colour_first_token else generation.tokens
    dialogue, texts = dialogue_of(generation, steps, by)
    heat = _heat(dialogue, texts, most)
    caption = f"{SIGNED if any(e.signed for e in steps) else UNSIGNED}.{SHARES}{reading.apart_words(steps)}"
    caption += READ_AT if any(aside_of(e) - {first_token(e)} for e in steps) else ""
    caption += reading.first_token_words(generation.tokens, coloured=True) if colour_first_token else ""
    named = f"each token of the answer, and {_columns(dialogue, heat)}"
    panels = (Panel((dialogue,), "the answer", wide=True), Panel((heat,), named, wide=True))
    title, told = title or reading.shortened_question(steps[-1]), _certainty(generation)
    return View(title, panels, told, doubts(*steps), caption, legend=heat.scale, details=_facts(steps))


def dialogue_of(generation: Generation, steps: Sequence[Explanation], by: str = "word") -> tuple[Dialogue, list[str]]:
    """Shares of the pieces of all that was read, per token of the answer; and the text of each piece."""
    units = steps[-1].units
    groups = reading.groups_of(units, by)
    apart = np.zeros((len(steps), len(units)), bool)
    shares = np.full(apart.shape, np.nan)
    for row, step in enumerate(steps):
        shares[row, : len(step.scores)] = step.scores * share(step)
        apart[row, list(aside_of(step))] = True
    plain = set(plain_units(units))
    ordinary = np.array([bool(plain & set(group.members)) for group in groups])
    # A word is apart where one of its pieces is, and there once its first piece is.
    aside = np.stack([apart[:, list(group.members)].any(1) for group in groups], 1)
    known = reading.summed(np.nan_to_num(shares), groups)
    known[np.stack([np.isnan(shares[:, group.members[0]]) for group in groups], 1)] = np.nan
    said, signed = texts_of(generation), any(e.signed for e in steps)
    bare = Dialogue(said, generation.sentences or ((0, len(said)),), Reading((), scale_of([])), known, aside, ordinary)
    mean, nowhere = bare.over(0, len(said))
    strength = np.nanmax(np.where(aside, 0.0, np.abs(known)), 0, initial=0.0)
    parts = reading.parts_of(units, groups, mean, nowhere, np.where(ordinary, strength, 0.0))
    reach = float(np.abs(mean[ordinary & ~nowhere]).max(initial=0.0))  # of what is coloured
    scale = Scale(-reach if signed else 0.0, reach, signed, "share")
    return replace(bare, reading=Reading(parts, scale)), [group.text for group in groups]


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
    columns = tuple(shortened(" ".join(labels[i].split()), LONGEST_LABEL) for i in chosen)
    return Matrix(values, scale, rows, columns, "token of the answer", "came from")


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
    words = f"{mean} per token on average; least sure of {named(step.target)} ({percent(lowest)}){rest}"
    return (Fact("probability", words),)


def _likely(step: Explanation) -> float | None:
    """The probability of the token that was said, where it is among those that are known."""
    said, index = step.prediction, step.target.index
    if said.index == index:
        return said.probability
    return next((choice.probability for choice in said.next or () if choice.index == index), None)


def _facts(steps: Sequence[Explanation]) -> tuple[Fact, ...]:
    first, spent = steps[0], Cost.of_all([e.cost for e in steps])
    spent = replace(spent, forwards=round(spent.forwards, 2), backwards=round(spent.backwards, 2))
    left_out = {"read from", "checked", "cost"}
    entries = [fact for fact in facts_about_method(first) if fact.name not in left_out]
    entries.append(Fact("cost", cost_of(spent)))
    scalar = first.scalar.replace("_", "-")
    entries.append(Fact("explained", f"{scalar} of each token of the answer, {len(steps)} in all"))
    return (*entries, Fact("model", first.model)) if first.model else tuple(entries)
