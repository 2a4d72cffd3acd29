"""Citations as a page: the answer with numbers behind its sentences, what they stand for, and the documents."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.parameters import checked
from whyformer.views.facts import duration
from whyformer.views.marks import Piece, Scale, Table, TokenRun
from whyformer.views.scales import scale_of
from whyformer.views.view import Fact, Page, Panel, View


@checked
def citations_page(citations: Any) -> Page:
    """The page of a Citations."""
    numbers, notes = _numbered(citations)
    scale = scale_of([np.array([c.drop for s in citations.sentences for c in s.citations] or [0.0]).clip(min=0)])
    scale = Scale(0.0, scale.high, meaning="fall of the log-probability without it")
    views = [_answer(citations, numbers), _sources(citations, notes)]
    views += [_document(citations, d, scale, numbers) for d in range(len(citations.names))]
    return Page(f"What the answer to “{citations.question}” rests on", tuple(views))


def _numbered(citations: Any) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
    """Sources that bear a sentence get numbers in the order in which the answer needs them.

    Source → number; and (number, sentence of the answer, source) for each time one is cited.
    """
    numbers: dict[int, int] = {}
    notes = []
    for row in range(len(citations.spans)):
        drops = np.nan_to_num(citations.drops[row], nan=-np.inf)
        for source in np.argsort(-drops, kind="stable")[: citations.top]:
            if drops[source] > citations.support:
                number = numbers.setdefault(int(source), len(numbers) + 1)
                notes.append((number, row, int(source)))
    return numbers, notes


def _answer(citations: Any, numbers: dict[int, int]) -> View:
    pieces, end = [], 0
    plain = Scale(0.0, 1.0)
    for row, ((start, stop), supported) in enumerate(zip(citations.spans, citations.supported, strict=True)):
        pieces.append(Piece(citations.answer[end:start]))
        drops = np.nan_to_num(citations.drops[row], nan=-np.inf)
        cited = [
            numbers[int(s)] for s in np.argsort(-drops, kind="stable")[: citations.top] if drops[s] > citations.support
        ]
        mark = "".join(f" [{n}]" for n in cited) if supported else " [no document]"
        pieces.append(Piece(citations.answer[start:stop] + mark))
        end = stop
    facts = (
        Fact("question", citations.question),
        Fact("ranked by", f"{citations.method}, {citations.model}"),
        Fact("cost", _cost(citations)),
    )
    answer = Panel((TokenRun(tuple(pieces), plain),), wide=True)
    return View("The answer", (answer,), facts, doubts=citations.warnings, words_first=True)


def _cost(citations: Any) -> str:
    cost = citations.cost
    return f"{cost.forwards:.0f} forwards, {cost.backwards:.0f} backwards, {duration(cost.seconds)}"


def _sources(citations: Any, notes: list[tuple[int, int, int]]) -> View:
    rows = []
    for number, row, source in notes:
        sentence = citations.sources[source]
        rows.append(
            (
                f"[{number}]",
                f"{citations.drops[row, source]:+.2f}",
                f"{citations.scores[row, source]:.3g}",
                str(row + 1),
                citations.names[sentence.document],
                sentence.text,
            )
        )
    table = Table(("", "drop", "score", "of sentence", "document", "source"), tuple(rows))
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
