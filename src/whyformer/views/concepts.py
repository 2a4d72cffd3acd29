"""Pictures of concepts: bars with limits and stars, and what a unit likes best."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.parameters import checked
from whyformer.views.header import number
from whyformer.views.marks import Bar, Bars, Line, Lines, Picture, Scale, TableMark
from whyformer.views.view import Fact, Panel, View

SHARES = Scale(0.0, 1.0, meaning="share of inputs")


@checked
def scores_view(result: Any, *, title: str = "") -> View:
    """One bar per concept with its 95 % confidence interval; dots: single concept vectors, star: significant."""
    title_of_bars = f"share of inputs whose logit of {result.target!r} rises along the concept"
    panels = (Panel((_bars(result),), title_of_bars), Panel((_table(result),), wide=True))
    claims = ", ".join(row.name for row in result.rows if row.significant) or "none"
    vectors = len(result.rows[0].scores) if result.rows else 0
    facts = (
        Fact("model", result.model),
        Fact("evaluated on", f"{result.inputs} inputs of '{result.target}', at {result.layer}"),
        Fact("concept vectors", f"{vectors} for each bar"),
        Fact("significant", "not tested" if all(np.isnan(row.p) for row in result.rows) else claims),
    )
    caption = "Lines: 95 % confidence intervals. Dots: single concept vectors. ★: significant."
    return View(title or result.title, panels, facts, tuple(result.warnings), caption)


def _bars(result: Any) -> Bars:
    alpha = float(result.options.get("alpha", 0.0))
    bars = []
    for row in result.rows:
        low, high = (None if np.isnan(limit) else float(limit) for limit in (row.low, row.high))
        bars.append(Bar(row.name, row.mean, False, low, high, row.scores, _mark(row, alpha), not row.significant))
    if result.random:
        bars.append(Bar(_null(result), float(np.mean(result.random)), special=True, dots=tuple(result.random)))
    return Bars(tuple(bars), SHARES, reference=0.5)


def _null(result: Any) -> str:
    """What scores are tested against."""
    return "shuffled" if result.options.get("tested_against") == "shuffled concepts" else "random | random"


def _mark(row: Any, alpha: float) -> str:
    if row.doubtful:
        return "inconclusive"
    if np.isnan(row.p):
        return "not tested"
    chance = "p < 0.0001" if row.p < 1e-4 else f"p = {row.p:.2g}"
    verdict = _verdict(row, alpha)
    return f"{verdict}  {chance}" + ", too low: vectors share examples" * (verdict == "?")


def _verdict(row: Any, alpha: float) -> str:
    if row.significant:
        return "★ small" if row.small else "★"
    if row.doubtful or row.p < alpha:  # no claim in spite of p
        return "?"
    return "not tested" if np.isnan(row.p) else "n.s."


def _table(result: Any) -> TableMark:
    alpha = float(result.options.get("alpha", 0.0))
    rows = []
    for row in result.rows:
        limits = "" if np.isnan(row.low) else f"{row.low:.2f} – {row.high:.2f}"
        chance = ("" if np.isnan(row.p) else f"{row.p:.2g}", _verdict(row, alpha))
        rows.append((row.name, f"{row.mean:.2f}", limits, *chance, f"{row.accuracy:.2f}", f"{row.magnitude:+.3g}"))
    if result.random:
        size = result.random_magnitude
        spread = "" if np.isnan(size) else f"±{size:.3g}"
        rows.append((_null(result), f"{np.mean(result.random):.2f}", "", "", "", "", spread))
    columns = ("concept", "score", "95 % CI", "p", "", "accuracy", "magnitude")
    return TableMark(columns, tuple(rows), quiet=(len(rows) - 1,) if result.random else ())


@checked
def maximized_view(result: Any) -> View:
    """Draw the image that maximises a unit, beside the course of the objective."""
    steps = np.arange(len(result.history))
    course = Lines(steps, (Line(result.unit, np.asarray(result.history)),), "step", "activation", whole_x=True)
    start = "" if np.isnan(result.start) else f"from {number(result.start)} "
    reached = f"{start}to {number(result.value)} in {len(result.history)} steps"
    pixels = " × ".join(map(str, result.image.shape[:2]))
    facts = [
        Fact("model", result.model),
        Fact("activation", reached),
        Fact("picture", f"{pixels} pixels, checkerboard {result.checkerboard:.2f} (1: no visible patch grid)"),
    ]
    if result.penalties:
        facts.append(Fact("penalties", ", ".join(f"{k} = {number(v)}" for k, v in result.penalties.items())))
    if result.options:
        facts.append(Fact("options", ", ".join(f"{k}={v}" for k, v in result.options.items())))
    picture = Panel((Picture(result.image, interpolation="nearest"),), f"reaches {result.value:.3g}")
    panels = (picture, Panel((course,), "activation per step"))
    return View(f"{result.model}: input that maximises {result.unit}", panels, tuple(facts), result.warnings, columns=2)
