"""Encoder-decoders: one row per token that was written, one column per token of the source (and of the prefix)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from whyformer.errors import BadInput
from whyformer.parameters import checked
from whyformer.types import Explanation
from whyformer.views.facts import doubts, facts_about_method
from whyformer.views.view import Matrix, Panel, View, scale_of

CAPTION = "Each row is one written token; a cell says how much the token of its column counted for it."
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
        CAPTION if signed or len(prefix) == 1 else CAPTION + READOUT_NOTE,
        legend=scale,
    )
