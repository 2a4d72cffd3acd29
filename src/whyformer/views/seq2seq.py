"""Encoder-decoders: one row per token that was written, one column per token of the source (and of the prefix)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.errors import BadInput
from whyformer.types import Explanation
from whyformer.views.facts import doubts, facts_about_method
from whyformer.views.scale import scale_of
from whyformer.views.view import Matrix, Panel, View

Array = np.ndarray[Any, Any]
CAPTION = "Each row is one written token; a cell says how much the token of its column counted for it."


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
    panels = [Panel((_matrix(read, rows, names, "source", signed),), "source", wide=True)]
    longest = max(steps, key=lambda s: len(s.units))
    prefix = tuple(longest.units.labels[len(source) :])
    if len(prefix) > 1:
        written = np.zeros((len(steps), len(prefix)), np.float32)
        for i, step in enumerate(steps):
            own = step.scores[len(source) :].copy()
            # What a position gives itself is 1 and more by construction, and would leave all others white.
            own[-1] = 0 if not step.signed else own[-1]
            written[i, : len(own)] = own
        panels.append(Panel((_matrix(written, rows, prefix, "target so far", signed),), "target so far", wide=True))
    return View(
        f"{steps[0].method}: what each written token was read from",
        tuple(panels),
        facts_about_method(steps[0]),
        tuple(dict.fromkeys(d for s in steps for d in doubts(s))),
        CAPTION,
        legend=scale_of([read], signed),
    )


def _matrix(values: Array, rows: tuple[str, ...], columns: tuple[str, ...], axis: str, signed: bool) -> Matrix:
    return Matrix(values, scale_of([values], signed), rows, columns, "written token", axis)
