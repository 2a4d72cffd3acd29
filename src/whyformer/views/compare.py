"""Pictures of a comparison: the table of methods, curves as parts go and come, and how far methods agree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from whyformer.parameters import checked
from whyformer.views.view import Fact, Line, Lines, Matrix, Page, Panel, Scale, Table, Terms, View

CURVES = 6  # methods drawn: the first of the ranking
MEASURES = {"spearman": "Spearman", "kendall": "Kendall τ-b", "top_k": "overlap of the top quarter"}
LEAD = (
    "Means over inputs with 95 % limits (bootstrap over inputs). ↑ higher is better, ↓ lower is better; the darker a "
    "cell, the closer to what a greedy search reaches, white is random or worse. ° cannot be told from random scores."
)


@checked
def comparison_page(result: Any) -> Page:
    """Everything about a Comparison."""
    views = [_table_view(result), *_curves_view(result), *_agreement_view(result)]
    outro: tuple[str | Terms, ...] = ()
    if result.failures:
        facts = tuple(Fact(name, reason) for name, reason in result.failures.items())
        outro = (Terms(facts, "Could not be run here", code=True),)
    return Page(result.title, tuple(views), (LEAD,), outro)


def _table_view(result: Any) -> View:
    arrows = {name: f"{name.replace('_', ' ')} {'↑' if up else '↓'}" for name, up in result.higher_is_better.items()}
    columns = ("method", "rank", *(arrows[m] for m in result.metrics), "passes", "ms", "MB")
    rows, shades, quiet = [], [], []
    for number, row in enumerate(result.rows):
        if row.baseline:
            quiet.append(number)
        scores = [row.scores.get(m) for m in result.metrics]
        rows.append((_name(row), place(row.rank), *(with_limits(s, row.baseline) for s in scores), *_costs(row)))
        shades.append((None, None, *(_shade(result, row, m) for m in result.metrics), None, None, None))
    facts = (
        Fact("inputs", str(result.inputs)),
        Fact("absent parts", str(result.replacement)),
        Fact("variants run", str(result.variants) if result.variants else "none: all were in the cache"),
        Fact("seed", str(result.seed)),
    )
    table = Table(columns, tuple(rows), tuple(shades), tuple(quiet))
    return View("Methods", (Panel((table,), wide=True),), facts, tuple(result.warnings))


def _name(row: Any) -> str:
    return f"{row.name} ({row.baseline})" if row.baseline else str(row.name)


def place(rank: float) -> str:
    return "" if math.isnan(rank) else f"{rank:.0f}" if rank == int(rank) else f"{rank:.1f}"


def with_limits(score: Any, baseline: str = "") -> str:
    """0.312 (0.28–0.34), with ° where it cannot be told from random."""
    if score is None or math.isnan(score.mean):
        return "–"
    limits = "" if math.isnan(score.low) else f" ({score.low:.2f}–{score.high:.2f})"
    doubt = "°" if not baseline and not math.isnan(score.gain_low) and not score.beats_random else ""
    return f"{score.mean:.3f}{limits}{doubt}"


def _shade(result: Any, row: Any, metric: str) -> float | None:
    """Where the mean lies between floor and ceiling."""
    by_kind = {r.baseline: r.scores.get(metric) for r in result.rows if r.baseline}
    floor, ceiling, score = by_kind.get("floor"), by_kind.get("ceiling"), row.scores.get(metric)
    if row.baseline or score is None or floor is None or ceiling is None or math.isnan(score.mean):
        return None
    width = ceiling.mean - floor.mean
    return min(1.0, max(0.0, (score.mean - floor.mean) / width)) if width else None


def _costs(row: Any) -> tuple[str, str, str]:
    if math.isnan(row.forwards):
        return "", "", ""
    passes = f"{row.forwards:.4g} + {row.backwards:.4g}" if row.backwards else f"{row.forwards:.4g}"
    return passes, _milliseconds(row.seconds), "" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.3g}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f}" if seconds >= 0.1 else f"{seconds * 1000:.3g}"


def _curves_view(result: Any) -> list[View]:
    named = {
        "remove": ("Taken away, highest scores first", "a low curve is good"),
        "keep": ("Put in, highest scores first", "a high curve is good"),
    }
    panels = []
    for kind, (title, note) in named.items():
        curves = result.curves.get(kind)
        if not curves:
            continue
        first = [row.name for row in result.rows if not row.baseline][:CURVES]
        lines = [Line(name, np.asarray(curves[name])) for name in first]
        lines += [Line(r.name, np.asarray(curves[r.name]), quiet=True) for r in result.rows if r.baseline]
        x = 100 * np.asarray(result.fractions)
        share = "% of the parts " + ("taken away" if kind == "remove" else "put in")
        panels.append(Panel((Lines(x, tuple(lines), share, "probability of the target"),), title, note=note))
    if not panels:
        return []
    left_out = sum(not row.baseline for row in result.rows) - CURVES
    caption = f"The first {CURVES} of the ranking; {left_out} more are not drawn." if left_out > 0 else ""
    return [View("What the model says as parts go and come", tuple(panels), columns=2, caption=caption)]


def _agreement_view(result: Any) -> list[View]:
    if len(result.agreeing) < 2:
        return []
    scale = Scale(-1.0, 1.0, signed=True, meaning="agreement, mean over inputs")
    order = [result.agreeing.index(r.name) for r in result.rows if not r.baseline]
    names = tuple(result.agreeing[i] for i in order)
    panels = []
    for measure, title in MEASURES.items():
        values = np.array(result.agreement[measure], dtype=float)[np.ix_(order, order)]
        panels.append(Panel((Matrix(np.nan_to_num(values), scale, names, names),), title))
    note = "Methods that agree may be wrong together; methods that disagree cannot all be right."
    return [View("Do the methods agree?", tuple(panels), caption=note, columns=2, legend=scale)]
