"""Two streams in one picture: what a source gave a target, and two texts that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from whyformer.errors import BadInput
from whyformer.parameters import checked
from whyformer.types import Explanation
from whyformer.views.explained import explanation_view
from whyformer.views.facts import answer, details, doubts, facts_about_method, number
from whyformer.views.marks import Bar, Bars, Matrix
from whyformer.views.scales import scale_of
from whyformer.views.view import Panel, View

CAPTION_OF_SOURCE = "Each row is one written token; a cell says how much the token of its column counted for it."
READOUT_NOTE = (
    " The last coloured cell of a row of the target is the position where the answer is read. Much of its score is "
    "what it keeps of itself: the scale leaves it out."
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
    panels = [Panel((Matrix(read, scale, rows, names, "written token", "source"),), "source", wide=True)]
    if len(prefix) > 1:
        written = np.zeros((len(steps), len(prefix)), np.float32)
        for i, scores in enumerate(prefixes):
            written[i, : len(scores)] = scores
        mark = Matrix(written, scale, rows, prefix, "written token", "target so far")
        panels.append(Panel((mark,), "target so far", wide=True))
    return View(
        f"{steps[0].method}: what each written token was read from",
        tuple(panels),
        tuple(replace(f, value=steps[0].readout) if f.name == "read from" else f for f in facts_about_method(steps[0])),
        tuple(dict.fromkeys(d for s in steps for d in doubts(s))),
        CAPTION_OF_SOURCE if signed or len(prefix) == 1 else CAPTION_OF_SOURCE + READOUT_NOTE,
        legend=scale,
    )


# Two texts and how close they are: what each pair of their tokens adds, and each token by itself.


Array = np.ndarray[Any, Any]
CAPTION_OF_PAIRS = (
    "A cell is what a pair of tokens adds to the cosine; all cells add up to it. Bars are the sums of rows and "
    "columns. Blue brings the texts together, orange sets them apart."
)


@checked
def similarity_view(explanation: Explanation, *, title: str = "") -> View:
    """Token × token heat map of two compared texts; the usual picture where pairs are not known (other pooling)."""
    maps = explanation.matrix if isinstance(explanation.matrix, dict) else {}
    if ("a", "b") not in maps:
        return explanation_view(explanation, title=title)
    pairs = maps["a", "b"]
    labels = {s: _labels(explanation, s) for s in ("a", "b")}
    scale = scale_of([pairs], True)
    both = scale_of([pairs.sum(1), pairs.sum(0)], True)
    matrix = Matrix(pairs, scale, labels["a"], labels["b"], "first text", "second text")
    panels = [Panel((matrix,), "pairs of tokens", wide=True)]
    for stream, sums in (("a", pairs.sum(1)), ("b", pairs.sum(0))):
        bars = tuple(Bar(label, float(v)) for label, v in zip(labels[stream], sums, strict=True))
        panels.append(Panel((Bars(bars, both),), {"a": "first text", "b": "second text"}[stream]))
    return View(
        title or f"similarity {number(explanation.value)}",
        tuple(panels),
        (answer(explanation),),
        doubts(explanation),
        CAPTION_OF_PAIRS,
        legend=scale,
        details=details(explanation),
    )


def _labels(explanation: Explanation, stream: str) -> tuple[str, ...]:
    units = explanation.units
    return tuple(label for label, s in zip(units.labels, units.stream, strict=True) if s == stream)
