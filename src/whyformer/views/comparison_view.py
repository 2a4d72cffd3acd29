"""Methods side by side, and the one that is recommended: the pictures of a Comparison and of a Recommendation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from whyformer.parameters import checked
from whyformer.views.marks import Line, Lines, Matrix, Scale, TableMark
from whyformer.views.view import Fact, Page, Panel, Terms, View

CURVES = 6  # methods drawn: the first of the ranking
MEASURES = {"spearman": "Spearman", "kendall": "Kendall τ-b", "top_k": "overlap of the top quarter"}
LEAD = (
    "Means over inputs with 95 % limits (bootstrap over inputs). ↑ higher is better, ↓ lower is better; the stronger a "
    "cell's colour, the closer to what a greedy search reaches; none is random or worse. ° cannot be told from random "
    "scores."
)


@checked
def comparison_page(result: Any) -> Page:
    """Everything about a Comparison."""
    views = [table_view(result), *curves_view(result), *agreement_view(result), *_metrics_view(result)]
    lead = (result.verdict, LEAD) if result.verdict else (LEAD,)
    return Page(result.title, tuple(views), lead, reasons(result.failures, "Could not be run here"))


def reasons(by_name: Mapping[str, str], title: str) -> tuple[Terms, ...]:
    facts = tuple(Fact(name, reason) for name, reason in by_name.items())
    return (Terms(facts, title, code=True),) if facts else ()


def table_view(result: Any) -> View:
    arrows = {name: f"{name.replace('_', ' ')} {'↑' if up else '↓'}" for name, up in result.higher_is_better.items()}
    columns = ("method", "rank", *(arrows[m] for m in result.metrics), "passes", "ms", "MB")
    rows, shades, quiet = [], [], []
    for number, row in enumerate(result.rows):
        if row.baseline:
            quiet.append(number)
        scores = [row.scores.get(m) for m in result.metrics]
        memory = "" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.3g}"
        costs = ("", "", "") if math.isnan(row.forwards) else (*_passes(row), memory)
        name = f"{row.name} ({row.baseline})" if row.baseline else str(row.name)
        rows.append((name, place(row.rank), *(with_limits(s, row.baseline) for s in scores), *costs))
        shades.append((None, None, *(_shade(result, row, m) for m in result.metrics), None, None, None))
    facts = (
        Fact("inputs", str(result.inputs)),
        Fact("absent parts", str(result.replacement)),
        Fact("variants run", str(result.variants) if result.variants else "none: all were in the cache"),
        Fact("seed", str(result.seed)),
    )
    table = TableMark(columns, tuple(rows), tuple(shades), tuple(quiet))
    return View("Methods", (Panel((table,), wide=True),), facts, tuple(result.warnings))


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
    floor, score = by_kind.get("floor"), row.scores.get(metric)
    ceiling = by_kind.get("ceiling") or by_kind.get("reference")
    if row.baseline or score is None or floor is None or ceiling is None or math.isnan(score.mean):
        return None
    width = ceiling.mean - floor.mean
    return min(1.0, max(0.0, (score.mean - floor.mean) / width)) if width else None


def _passes(row: Any) -> tuple[str, str]:
    """Forwards and backwards, and milliseconds."""
    passes = f"{row.forwards:.4g} + {row.backwards:.4g}" if row.backwards else f"{row.forwards:.4g}"
    return passes, f"{row.seconds * 1000:,.0f}" if row.seconds >= 0.1 else f"{row.seconds * 1000:.3g}"


def curves_view(result: Any) -> list[View]:
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
        drawn = Lines(x, tuple(lines), share, result.value or "probability of the target")
        panels.append(Panel((drawn,), title, note=note))
    if not panels:
        return []
    left_out = sum(not row.baseline for row in result.rows) - CURVES
    caption = f"The first {CURVES} of the ranking; {left_out} more are not drawn." if left_out > 0 else ""
    return [View("What the model says as parts go and come", tuple(panels), columns=2, caption=caption)]


def agreement_view(result: Any) -> list[View]:
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


def _metrics_view(result: Any) -> list[View]:
    """How far metrics rank the methods alike; not of two methods, whose rankings are the same or opposite."""
    methods = sum(not row.baseline for row in result.rows)
    if methods < 3 or not result.metric_pairs():
        return []
    scale = Scale(-1.0, 1.0, signed=True, meaning="rank correlation over methods")
    names = tuple(leader.metric.replace("_", " ") for leader in result.leaders)
    values = np.nan_to_num(np.array(result.metric_agreement, dtype=float))
    note = f"Spearman over {methods} methods, which are few: chance alone gives values of some size."
    if methods < 5:
        note = f"Spearman over {methods} methods: with so few, no value can be told from chance."
    matrix = Matrix(values, scale, names, names)
    return [View("Do the metrics agree?", (Panel((matrix,), "Spearman"),), caption=note, legend=scale)]


# Pictures of a recommendation: what was chosen, how it did elsewhere, and the space it was chosen from.


MOST = 30  # choices that are listed
AOPC = (
    "AOPC: how far the prediction falls on average while parts are taken away, the highest scores first; the further, "
    "the better the scores. Brackets: 95 % limits. ° zero is within them: it could be chance."
)
RFT = (
    "RFT (ranked truthfulness) on the inputs used to choose: how far the prediction falls without each feature, "
    "features with high scores counting most (higher is better)."
)


@checked
def recommendation_page(result: Any) -> Page:
    """Everything about a Recommendation."""
    views = [_outcome_view(result), *_budget_view(result), _choices_view(result), *_space_view(result)]
    over = result.budgeted.over if result.budgeted is not None else {}
    outro = (*reasons(over, "Over the budget"), *reasons(result.excluded, "Not among the candidates"))
    return Page(result.title, tuple(views), (result.verdict,), outro)


def _outcome_view(result: Any) -> View:
    if result.budgeted is not None:
        split = f"{result.chosen_on} to choose by AOPC, {result.reported_on} to test by AOPC"
    elif result.scope == "instance":
        split = f"{result.chosen_on}, chosen by RFT and tested by AOPC"
    else:
        tested = "each half tested by AOPC with the choice of the other" if result.reported_on else "not tested"
        split = f"{result.chosen_on}, chosen by the mean rank over the metrics of compare, {tested}"
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
        gains = (gain(outcome.over_random), gain(outcome.over_attention))
        name = outcome.name if picked else ""
        rows.append((_cost_class(result, outcome.cost_class), name, _mean(outcome), *gains))
    columns = ("", "chosen", "AOPC ↑", "gain over random", "gain over last-layer attention")
    table = TableMark(columns, tuple(rows), quiet=tuple(quiet))
    panels = (Panel((table,), wide=True),) if rows else ()
    title = "How the choice did on inputs that did not choose it"
    return View(title, panels, facts, tuple(result.warnings), AOPC if rows else "")


def _mean(score: Any) -> str:
    mean = "–" if math.isnan(score.mean) else f"{score.mean:.3f}"
    return mean + ("" if math.isnan(score.low) else f" ({score.low:.3f}–{score.high:.3f})")


def _cost_class(result: Any, name: str) -> str:
    chosen = result.budgeted is not None and any(c.cost_class == name for c in result.choices)
    return f"within {result.budgeted.limit}" if chosen else name


def _budget_view(result: Any) -> list[View]:
    """Everyone who fitted: what it was said to cost, what it cost, and how it did on both halves."""
    budgeted = result.budgeted
    if budgeted is None:
        return []
    seconds = not budgeted.limit.endswith("forwards")
    rows = []
    for one in budgeted.candidates:
        price = f"{one.price * 1000:,.0f} ms" if seconds else f"{one.price:.0f}"
        rows.append((one.name, price, *_passes(one), f"{one.chosen_by:.3f}", _mean(one), gain(one.over_choice)))
    columns = ("method", "said to cost", "passes", "ms", "AOPC, choosing ↑", "AOPC, testing ↑", "ahead of the choice")
    caption = (
        f"The choice comes first, then the order of the inputs that chose. Prices are for an input of {budgeted.units} "
        f"units, a backward counts as {budgeted.backward:.2g} forwards; passes are counted and ms measured, per input, "
        "without what is found out about a model once. ° zero is within the interval."
    )
    title = f"Who fits into {budgeted.limit}"
    return [View(title, (Panel((TableMark(columns, tuple(rows)),), wide=True),), caption=caption)]


def gain(limits: tuple[float, float, float]) -> str:
    """+0.120 (+0.090 to +0.150), with ° where zero is inside."""
    mean, low, high = limits
    if math.isnan(mean) or mean == low == high == 0:  # the one it is held against
        return "–"
    if math.isnan(low):
        return f"{mean:+.3f}"
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f}){'°' if low <= 0 <= high else ''}"


def _choices_view(result: Any) -> View:
    rows = tuple(
        (f"{c.group}, {_cost_class(result, c.cost_class)}", c.name, f"{c.truthfulness:.3f}", str(c.inputs))
        for c in result.choices
    )
    left_out = len(rows) - MOST
    table = TableMark(("for", "chosen", "RFT ↑", "inputs"), rows[:MOST])
    caption = RFT + (f" {left_out} more choices are not shown." if left_out > 0 else "")
    return View("What was chosen", (Panel((table,), wide=True),), caption=caption)


def _space_view(result: Any) -> list[View]:
    panels = []
    if result.leaders:
        rows = tuple((name, f"{score:.4f}") for name, score in result.leaders)
        panels.append(Panel((TableMark(("the first of all candidates", "RFT ↑"), rows),), wide=True))
    if result.grid:
        values = np.array(result.grid, dtype=float)
        high = float(np.nanmax(np.abs(values))) or 1.0
        layers = ("mean", "product", *(f"layer {i}" for i in range(len(values) - 2)))
        heads = ("mean", *(f"head {i}" for i in range(values.shape[1] - 1)))
        matrix = Matrix(values, Scale(-high, high, signed=True, meaning="RFT"), layers, heads, "layers", "heads")
        title = f"Raw attention read by {result.grid_reading.replace('_', ' ')}: RFT of every layer and head"
        panels.append(Panel((matrix,), title, wide=True))
    return [View("The space it was chosen from", tuple(panels))] if panels else []
