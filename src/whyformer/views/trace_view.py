"""Traces of agents: the run as a graph of steps, what drove each of them, and shares by message."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from whyformer.parameters import checked
from whyformer.shapes import Array
from whyformer.views import marks, scales
from whyformer.views.generation import folded_passages
from whyformer.views.header import cost_of
from whyformer.views.marks import Matrix, Passage, Piece, Reading, StepGraph, Utterance
from whyformer.views.view import Fact, Panel, View

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
        Fact("cost", cost_of(trace.cost)),
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
    """Return where a source is."""
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
        for number in members:
            source = trace.sources[number]
            follows = number > members[0]
            gap = "\n\n" if follows and source.document != trace.sources[number - 1].document else " "
            piece = Piece(source.text, float(last[number]))
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
