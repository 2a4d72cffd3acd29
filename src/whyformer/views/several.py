"""Lists and dicts of explanations: several inputs below each other, several methods beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from whyformer.errors import BadInput
from whyformer.files import pixels_of_uri
from whyformer.parameters import checked
from whyformer.results.result import Retired
from whyformer.results.types import ByMethod, Explanation, Explanations, Generation
from whyformer.shapes import Array
from whyformer.views import header, marks, scales
from whyformer.views.explained import explanation_view, page, side_by_side, title_of
from whyformer.views.generation import folded_passages
from whyformer.views.image_marks import box_words, frames_of
from whyformer.views.marks import Bar, Bars, Matrix, Passage, Picture, Piece, Reading, StepGraph, TableMark, Utterance
from whyformer.views.scales import scale_of
from whyformer.views.view import Fact, Page, Panel, TableRows, View, view_of

CAPTION_OF_SOURCE = "Each row is a generated token; a cell is the score of the column's token for it."
READOUT_NOTE = (
    " The last coloured cell of a row of the target is the output position. Much of its score is its relevance to "
    "itself, so it is left out of the scale."
)


@checked
def steps_view(steps: Sequence[Explanation]) -> View:
    """Source × target and prefix × target heat maps of the explanations of one input's written tokens."""
    if not steps or any("source" not in s.units.stream or "target" not in s.units.stream for s in steps):
        raise BadInput("steps_view takes the list that explain() gives for one input of an encoder-decoder.")
    source = [i for i, s in enumerate(steps[0].units.stream) if s == "source"]
    names = tuple(steps[0].units.labels[i] for i in source)
    if any(tuple(s.units.labels[: len(source)]) != names for s in steps):
        raise BadInput("steps_view is for the tokens written for one input: these have different sources.")
    rows = tuple(s.target.label or str(s.target.index) for s in steps)
    signed = any(s.signed for s in steps)
    read = np.stack([s.scores[: len(source)] for s in steps])
    prefixes = [s.scores[len(source) :] for s in steps]
    longest = max(steps, key=lambda s: len(s.units))
    prefix = tuple(longest.units.labels[len(source) :])
    # What a position gives itself would leave all others white.
    others = prefixes if signed else [scores[:-1] for scores in prefixes]
    scale = scale_of([read, *others], signed)
    panels = [Panel((Matrix(read, scale, rows, names, "generated token", "source"),), "source", wide=True)]
    if len(prefix) > 1:
        written = np.zeros((len(steps), len(prefix)), np.float32)
        for i, scores in enumerate(prefixes):
            written[i, : len(scores)] = scores
        mark = Matrix(written, scale, rows, prefix, "generated token", "target so far")
        panels.append(Panel((mark,), "target so far", wide=True))
    first, every = steps[0], dict.fromkeys(d for s in steps for d in header.doubts(s))
    facts = header.facts_about_method(first)
    told = (replace(f, value=first.readout) if f.name == "output position" else f for f in facts)
    title = f"{first.method}: sources of each generated token"
    caption = CAPTION_OF_SOURCE if signed or len(prefix) == 1 else CAPTION_OF_SOURCE + READOUT_NOTE
    return View(title, tuple(panels), tuple(told), tuple(every), caption, legend=scale)


CAPTION_OF_PAIRS = (
    "A cell is the contribution of a pair of tokens to the cosine; all cells add up to it. Bars are sums of rows and "
    "columns. Blue raises the similarity, orange lowers it."
)


@checked
def similarity_view(explanation: Explanation, *, title: str = "") -> View:
    """Token × token heat map of two compared texts; the usual picture where pairs are not known (other pooling)."""
    maps = explanation.matrix if isinstance(explanation.matrix, dict) else {}
    if ("a", "b") not in maps:
        return explanation_view(explanation, title=title)
    pairs = maps["a", "b"]
    scale, both = scale_of([pairs], True), scale_of([pairs.sum(1), pairs.sum(0)], True)
    units, names, labels, panels = explanation.units, ("first text", "second text"), [], []
    for side, name, sums in zip(("a", "b"), names, (pairs.sum(1), pairs.sum(0)), strict=True):
        labels.append(tuple(label for label, stream in zip(units.labels, units.stream, strict=True) if stream == side))
        bars = tuple(Bar(label, float(v)) for label, v in zip(labels[-1], sums, strict=True))
        panels.append(Panel((Bars(bars, both),), name))
    matrix = Panel((Matrix(pairs, scale, labels[0], labels[1], *names),), "pairs of tokens", wide=True)
    return View(
        title or f"similarity {header.number(explanation.value)}",
        (matrix, *panels),
        (header.answer(explanation),),
        header.doubts(explanation),
        CAPTION_OF_PAIRS,
        legend=scale,
        details=header.details(explanation),
    )


MOST = 20  # inputs that are drawn; more are said to be there
FEWEST_ROWS = 2
LONGEST_FIELD = 80  # characters


@view_of.register(Explanations)
def list_page(explanations: Sequence[Any], title: str = "", **options: Any) -> Page:
    """One view per input; rows of one table begin with all of them together."""
    together = [rows_view(explanations)] if are_rows(explanations) else _detections(explanations)
    views = [view for item in explanations[:MOST] for view in _views(item, options)]
    if are_rows(explanations):
        views = [replace(v, title=title_of(e, i)) for i, (v, e) in enumerate(zip(views, explanations, strict=False))]
    count = sum(map(_count, explanations))
    told = f"{count} explanation{'s' * (count != 1)}"
    if count > len(explanations):  # detections of an image, tokens of an answer
        told += f" of {len(explanations)} input{'s' * (len(explanations) != 1)}"
    drawn = sum(min(_count(item), MOST) for item in explanations[:MOST])
    return Page(title or told, (*together, *views), _left_out(count, drawn))


@view_of.register(ByMethod)
def methods_page(explanations: Mapping[str, Any], title: str = "", **options: Any) -> Any:
    """Methods beside each other, input by input; answers of several tokens below each other."""
    first = next(iter(explanations.values()))
    if isinstance(first, Explanation):
        return side_by_side(explanations, title=title, **options)
    if isinstance(first, list) and not isinstance(first, Generation) and isinstance(first[0], Explanation):
        inputs = list(zip(*explanations.values(), strict=True))
        views = [side_by_side(list(each), **options) for each in inputs[:MOST]]
        told = f"{len(inputs)} inputs, {len(explanations)} methods"
        return Page(title or told, tuple(views), _left_out(len(inputs), len(views)))
    views = [view for item in explanations.values() for view in _views(item, options)]
    return Page(title or f"{len(explanations)} methods", tuple(views))


def _views(item: Any, options: dict[str, Any]) -> list[View]:
    if isinstance(item, (Explanation, Generation)) or not isinstance(item, list):
        return list(page([view_of(item, **options)]).views)
    return [*_detections(item), *(view for each in item[:MOST] for view in _views(each, options))]


def _detections(explanations: Sequence[Any]) -> list[View]:
    """Draw all explained objects of one image on the picture, if there are several."""
    if len(explanations) < 2 or not all(isinstance(e, Explanation) and frames_of(e) for e in explanations):
        return []
    first: Explanation = explanations[0]
    if any(e.picture != first.picture for e in explanations):
        return []
    pixels = None if first.picture is None else pixels_of_uri(first.picture)
    if pixels is None:
        return []
    frames = tuple(replace(f, label=f"{f.label} {e.target.position}") for e in explanations for f in frames_of(e))
    rows = tuple(
        (str(e.target.position), str(e.target), header.explained(e), box_words(f))
        for e in explanations
        for f in frames_of(e)
    )
    table = TableMark(("query", "object", "explained", "place"), rows)  # boxes that coincide are listed separately here
    panels = (Panel((Picture(pixels, frames),)), Panel((table,)))
    facts = (Fact("model", first.model), Fact("numbers", "the query that found the object"))
    return [View(f"{len(explanations)} detections", panels, facts, columns=2)]


def _count(item: Any) -> int:
    """Pictures that an item of a list has; what a language model wrote is one."""
    return sum(map(_count, item)) if isinstance(item, list) and not isinstance(item, Generation) else 1


def _left_out(count: int, drawn: int) -> tuple[str, ...]:
    return (f"The first {drawn} of {count} are shown one by one.",) if count > drawn else ()


def are_rows(explanations: Sequence[Any]) -> bool:
    """Rows of one table under one method."""
    if len(explanations) < FEWEST_ROWS or not all(isinstance(e, Explanation) for e in explanations):
        return False
    one = {(e.method, e.units.labels) for e in explanations}
    return len(one) == 1 and set(explanations[0].units.stream) == {"table"}


def rows_view(explanations: Sequence[Explanation]) -> View:
    """Draw the mean |score| of each column over all rows; live pages show a dot per row."""
    first, sizes = explanations[0], np.abs(np.stack([e.scores for e in explanations])).mean(0)
    units, order = first.units, np.argsort(-sizes, kind="stable").tolist()
    scale = scale_of([sizes[[i for i in order if not units.special[i]]]], meaning="mean |score|")
    bars = Bars(tuple(Bar(units.labels[i], float(sizes[i]), units.special[i]) for i in order), scale)
    model = [fact for fact in header.facts_about_input(first) if fact.name == "model"]
    told = [fact for fact in header.facts_about_method(first) if fact.name in ("method", "options")]
    return View(
        f"All {len(explanations)} rows",
        (Panel((bars,), "mean |score| per column", wide=True),),
        (*model, *told),
        caption="Each row is explained for its own predicted class.",
        explained=TableRows(list(explanations)),
    )


@view_of.register
def retired_view(result: Retired) -> View:
    """The fields of a result of a kind that is no longer made, each in one line."""
    rows = tuple((name, marks.shortened(str(value), LONGEST_FIELD)) for name, value in result.content.items())
    return View(f"{result.kind}, no longer made", (Panel((TableMark(("field", "value"), rows),)),))


LONGEST_LABEL = 34
CAPTION = (
    "Percentages: share of what drove the step, among all that was read or written before it; of origins, shares of "
    "steps are handed on to what drove these. Without a source: change of the log-probability of the message up to the "
    "step (1.1 is a factor of 3)."
)


@checked
def trace_view(trace: Any) -> View:
    """The picture of a Trace."""
    facts = (
        Fact("explained", f"{len(trace.steps)} steps, {len(trace.sources) - len(trace.steps)} sources that were read"),
        *_cause(trace),
        Fact("ranked by", f"{trace.method}, {trace.model}"),
        Fact("cost", header.cost_of(trace.cost)),
    )
    panels = (
        Panel((_graph(trace),), "What drove each step", wide=True),
        Panel((_map(trace),), "Shares by message", wide=True),
    )
    return View("Trace of an agent's run", panels, facts, trace.warnings, CAPTION)


def _cause(trace: Any) -> tuple[Fact, ...]:
    """The cause of the last tool call in one line."""
    if not trace.calls or not trace.why(trace.calls[-1], origins=True):
        return ()
    cause = trace.cause()
    words = f"“{' '.join(cause.text.split())}” ({cause.drivers[0].share:.0%})"
    if not np.isnan(cause.drop):
        words += f"; without it, the call is {cause.factor:.2g} times as likely"
    return (Fact(f"cause of call {cause.step}", words),)


def source_name(trace: Any, number: int) -> str:
    source = trace.sources[number]
    if source.step is not None:
        return f"step {source.step}, {source.role}"
    tool = f" {source.name}" if source.name else ""
    return f"{source.role}{tool}" if source.message < 0 else f"message {source.message}, {source.role}{tool}"


def _graph(trace: Any) -> StepGraph:
    names = tuple(source_name(trace, number) for number in range(len(trace.sources)))
    shares, parts = trace.shares, list[Utterance]()
    last, strength = shares[-1], shares.max(0)
    for name, group in groupby(range(len(names)), key=names.__getitem__):
        members = list(group)
        pieces: list[tuple[Piece, ...]] = []
        for place in members:
            source = trace.sources[place]
            follows = place > members[0]
            gap = "\n\n" if follows and source.document != trace.sources[place - 1].document else " "
            piece = Piece(source.text, float(last[place]))
            pieces.append((Piece(gap), piece) if follows else (piece,))
        step = trace.sources[members[0]].step is not None
        passages = [Passage(pieces[0])] if step else folded_passages(pieces, [float(strength[i]) for i in members])
        parts.append(Utterance(name, tuple(passages)))
    scale = marks.Scale(0.0, float(last.max(initial=0.0)), meaning="share")
    steps = tuple(step.source for step in trace.steps)
    calls = tuple(source.call for source in trace.sources)
    return StepGraph(Reading(tuple(parts), scale), names, steps, shares, trace.origins, trace.drops, calls)


def _map(trace: Any) -> Matrix:
    """(T, M) shares by message, and by step for what the model wrote."""
    names = list(dict.fromkeys(source_name(trace, i) for i in range(len(trace.sources))))
    columns = [names.index(source_name(trace, i)) for i in range(len(trace.sources))]
    values: Array = np.zeros((len(trace.steps), len(names)))
    np.add.at(values.T, columns, trace.shares.T)
    read = np.zeros(values.shape, bool)
    np.logical_or.at(read.T, columns, ~np.isnan(trace.scores.T))
    values[~read] = np.nan
    steps = [source_name(trace, step.source) for step in trace.steps]
    scale = scales.scale_of([values], False, meaning="share of a row (grey: not before the step)")
    rows = tuple(
        marks.shortened(f"{n}: {' '.join(s.text.split())}", LONGEST_LABEL)
        for n, s in zip(steps, trace.steps, strict=True)
    )
    return Matrix(values, scale, rows, tuple(names), "step", "source")
