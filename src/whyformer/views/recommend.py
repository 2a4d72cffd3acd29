"""Pictures of a recommendation: what was chosen, how it did elsewhere, and the space it was chosen from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from whyformer.parameters import checked
from whyformer.views.view import Fact, Matrix, Page, Panel, Scale, Table, Terms, View

MOST = 30  # choices that are listed


@checked
def recommendation_page(result: Any) -> Page:
    """Everything about a Recommendation."""
    views = [_outcome_view(result), _choices_view(result), *_space_view(result)]
    outro: tuple[str | Terms, ...] = ()
    if result.excluded:
        facts = tuple(Fact(name, reason) for name, reason in result.excluded.items())
        outro = (Terms(facts, "Not among the candidates", code=True),)
    return Page(result.title, tuple(views), (result.verdict,), outro)


def _outcome_view(result: Any) -> View:
    split = f"{result.chosen_on} inputs chose by RFT, {result.reported_on} tested by AOPC"
    facts = (
        Fact("candidates", str(result.candidates)),
        Fact("inputs", split),
        Fact("absent parts", result.replacement),
        Fact("variants run", str(result.variants) if result.variants else "none: all were in the cache"),
        Fact("seed", str(result.seed)),
    )
    classes = {c.cost_class for c in result.choices}
    rows, quiet = [], []
    for number, outcome in enumerate(result.outcomes):
        picked = outcome.cost_class in classes
        if not picked:
            quiet.append(number)
        mean = f"{outcome.mean:.3f}" + ("" if math.isnan(outcome.low) else f" ({outcome.low:.3f}–{outcome.high:.3f})")
        gains = (gain(outcome.over_random), gain(outcome.over_attention))
        rows.append((outcome.cost_class, outcome.name if picked else "", mean, *gains))
    columns = ("", "chosen", "AOPC ↑", "gain over random", "gain over last-layer attention")
    table = Table(columns, tuple(rows), quiet=tuple(quiet))
    panels = (Panel((table,), wide=True),) if rows else ()
    return View("How the choice did on inputs that did not choose it", panels, facts, tuple(result.warnings))


def gain(limits: tuple[float, float, float]) -> str:
    """+0.120 (+0.090 to +0.150), with ° where zero is inside."""
    mean, low, high = limits
    if math.isnan(mean) or mean == low == high == 0:  # the one it is held against
        return "–"
    if math.isnan(low):
        return f"{mean:+.3f}"
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f}){'°' if low <= 0 <= high else ''}"


def _choices_view(result: Any) -> View:
    rows = tuple((f"{c.group}, {c.cost_class}", c.name, f"{c.truthfulness:.3f}", str(c.inputs)) for c in result.choices)
    left_out = len(rows) - MOST
    table = Table(("for", "chosen", "RFT ↑", "inputs"), rows[:MOST])
    caption = "RFT, ranked truthfulness, of the inputs that chose. ° zero is within the interval."
    caption += f" {left_out} more choices are not shown." if left_out > 0 else ""
    return View("What was chosen", (Panel((table,), wide=True),), caption=caption)


def _space_view(result: Any) -> list[View]:
    panels = []
    if result.leaders:
        rows = tuple((name, f"{score:.4f}") for name, score in result.leaders)
        panels.append(Panel((Table(("the first of all candidates", "RFT ↑"), rows),), wide=True))
    if result.grid:
        values = np.array(result.grid, dtype=float)
        high = float(np.nanmax(np.abs(values))) or 1.0
        layers = ("mean", "product", *(f"layer {i}" for i in range(len(values) - 2)))
        heads = ("mean", *(f"head {i}" for i in range(values.shape[1] - 1)))
        matrix = Matrix(values, Scale(-high, high, signed=True, meaning="RFT"), layers, heads, "layers", "heads")
        title = f"Raw attention read by {result.grid_reading.replace('_', ' ')}: RFT of every layer and head"
        panels.append(Panel((matrix,), title, wide=True))
    return [View("The space it was chosen from", tuple(panels))] if panels else []
