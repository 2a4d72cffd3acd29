"""Traces of agents: the run step by step, what drove each step, and shares by message."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.parameters import checked
from whyformer.shapes import Array
from whyformer.views import marks, scales
from whyformer.views.header import cost_of
from whyformer.views.marks import Matrix, TableMark
from whyformer.views.view import Fact, Panel, View

LONGEST = 90  # characters of a text in a table
LONGEST_LABEL = 34
CAPTION = (
    "share: of what drove the step, in the run before it. origin: shares of steps handed on to what drove these. drop: "
    "fall of the log-probability of the message up to the step without the source (1.1 is a factor of 3)."
)


@checked
def trace_view(trace: Any) -> View:
    """The picture of a Trace."""
    facts = (
        Fact("explained", f"{len(trace.steps)} steps, {len(trace.sources) - len(trace.steps)} sources that were read"),
        Fact("ranked by", f"{trace.method}, {trace.model}"),
        Fact("cost", cost_of(trace.cost)),
    )
    panels = (
        Panel((_table(trace),), "What drove each step", wide=True),
        Panel((_map(trace),), "Shares by message", wide=True),
    )
    return View("Trace of an agent's run", panels, facts, trace.warnings, CAPTION)


def label(kind: str, number: int, text: str, longest: int = LONGEST) -> str:
    """Return a step in one line."""
    return marks.shortened(f"{number} {kind}: {' '.join(text.split())}", longest)


def _table(trace: Any) -> TableMark:
    rows = []
    for number, step in enumerate(trace.steps):
        origins = {driver.source: driver for driver in trace.why(number, origins=True)}
        rows.append((label(step.kind, number, step.text), "", "", "", ""))
        for driver in trace.why(number)[:3]:
            known = origins.get(driver.source)
            drop = "" if np.isnan(driver.drop) else f"{driver.drop:+.2f}"
            words = marks.shortened(" ".join(driver.text.split()), LONGEST)
            own = "" if known is None else f"{known.share:.0%}"
            rows.append(("", f"{driver.share:.0%}", own, drop, f"{source_name(trace, driver.source)}: {words}"))
    return TableMark(("step", "share", "origin", "drop", "source"), tuple(rows))


def source_name(trace: Any, number: int) -> str:
    """Return where a source is."""
    source = trace.sources[number]
    if source.step is not None:
        return f"step {source.step}, {source.role}"
    return source.role if source.message < 0 else f"message {source.message}, {source.name or source.role}"


def _map(trace: Any) -> Matrix:
    """(T, M) shares by message, and by step for what the model wrote."""
    names = list(dict.fromkeys(source_name(trace, i) for i in range(len(trace.sources))))
    columns = [names.index(source_name(trace, i)) for i in range(len(trace.sources))]
    values: Array = np.zeros((len(trace.steps), len(names)))
    np.add.at(values.T, columns, trace.shares.T)
    unread = np.full_like(values, -np.inf)
    np.maximum.at(unread.T, columns, np.where(np.isnan(trace.scores), -np.inf, 0.0).T)
    values[np.isneginf(unread)] = np.nan
    rows = tuple(label(step.kind, i, step.text, LONGEST_LABEL) for i, step in enumerate(trace.steps))
    scale = scales.scale_of([values], False, meaning="share of a row (grey: not before the step)")
    return Matrix(values, scale, rows, tuple(names), "step", "source")
