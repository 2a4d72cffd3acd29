"""Methods side by side, and the one that is recommended: the pictures of a Comparison and of a Recommendation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from whyformer.parameters import checked
from whyformer.views.head_views import head_map, head_scale
from whyformer.views.marks import Line, Lines, Matrix, Scale, TableMark
from whyformer.views.view import Fact, Page, Panel, Terms, View

COLOURED = 6  # methods drawn in colour, beside random and greedy; the others are grey
MEASURES = {"spearman": "Spearman", "kendall": "Kendall τ-b", "top_k": "overlap of the top quarter"}
TABLE_WORDS = (
    "Means over inputs with 95 % confidence intervals (bootstrap; of fewer than 30 inputs, Student's t). ↑ higher "
    "is better, ↓ lower is better. Cell colour: from random scores or worse (none) to a greedy search (strongest). ° "
    "not significantly better than random scores."
)


@checked
def comparison_page(result: Any) -> Page:
    """Everything about a Comparison."""
    views = [table_view(result), *curves_view(result), *agreement_view(result), *_metrics_view(result)]
    before = (result.verdict, TABLE_WORDS) if result.verdict else (TABLE_WORDS,)
    return Page(result.title, tuple(views), before, reasons(result.failures, "Methods that could not be run"))


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
        Fact("baseline", str(result.replacement)),
        Fact("variants run", str(result.variants) if result.variants else "0 (all cached)"),
        Fact("seed", str(result.seed)),
    )
    table = TableMark(columns, tuple(rows), tuple(shades), tuple(quiet))
    return View("Faithfulness of the methods", (Panel((table,), wide=True),), facts, tuple(result.warnings))


def place(rank: float) -> str:
    return "" if math.isnan(rank) else f"{rank:.0f}" if rank == int(rank) else f"{rank:.1f}"


def with_limits(score: Any, baseline: str = "") -> str:
    """0.312 (0.28–0.34), with ° where it is not significantly better than random."""
    if score is None or math.isnan(score.mean):
        return "–"
    limits = "" if math.isnan(score.low) else f" ({score.low:.2f}–{score.high:.2f})"
    mark = "°" if not baseline and not math.isnan(score.gain_low) and not score.beats_random else ""
    return f"{score.mean:.3f}{limits}{mark}"


def _shade(result: Any, row: Any, metric: str) -> float | None:
    """Return the position of the mean between the floor (0) and the ceiling (1)."""
    by_kind = {r.baseline: r.scores.get(metric) for r in result.rows if r.baseline}
    floor, score = by_kind.get("floor"), row.scores.get(metric)
    ceiling = by_kind.get("ceiling") or by_kind.get("reference")
    if row.baseline or score is None or floor is None or ceiling is None or math.isnan(score.mean):
        return None
    width = ceiling.mean - floor.mean
    return min(1.0, max(0.0, (score.mean - floor.mean) / width)) if width else None


def _passes(row: Any) -> tuple[str, str]:
    """Forwards and backwards, and milliseconds."""
    passes = " + ".join(f"{round(count, 1):.4g}" for count in (row.forwards, row.backwards) if count) or "0"
    return passes, f"{row.seconds * 1000:,.0f}" if row.seconds >= 0.1 else f"{row.seconds * 1000:.3g}"


def curves_view(result: Any, shown: Sequence[str] = ()) -> list[View]:
    """Deletion and insertion curves: the best method and ``shown`` in colour, all others grey."""
    named = {
        "remove": ("Deletion: highest scores masked first", "lower is better"),
        "keep": ("Insertion: highest scores revealed first", "higher is better"),
    }
    panels = []
    for kind, (title, note) in named.items():
        curves = result.curves.get(kind)
        if not curves:
            continue
        methods = [row.name for row in result.rows if not row.baseline]
        first = list(dict.fromkeys([*methods[:1], *(name for name in shown if name in methods), *methods]))[:COLOURED]
        lines = [Line(name, np.asarray(curves[name]), faint=True) for name in methods if name not in first]
        lines += [Line(name, np.asarray(curves[name])) for name in methods if name in first]
        lines += [Line(r.name, np.asarray(curves[r.name]), quiet=True) for r in result.rows if r.baseline]
        x = 100 * np.asarray(result.fractions)
        share = "% of the features " + ("masked" if kind == "remove" else "revealed")
        drawn = Lines(x, tuple(lines), share, result.value or "probability of the target")
        panels.append(Panel((drawn,), title, note=note))
    if not panels:
        return []
    others = sum(not row.baseline for row in result.rows) - COLOURED
    caption = f"Grey without a name: the other {others} methods." if others > 0 else ""
    return [View("Output as features are masked or revealed", tuple(panels), columns=2, caption=caption)]


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
    note = "Agreement is not proof: methods can agree and be wrong. Where they disagree, at least one is wrong."
    return [View("Do the methods agree?", tuple(panels), caption=note, columns=2, legend=scale)]


def _metrics_view(result: Any) -> list[View]:
    """Return rank correlations between metrics; none for two methods, which are ranked alike or oppositely."""
    methods = sum(not row.baseline for row in result.rows)
    if methods < 3 or not result.metric_pairs():
        return []
    scale = Scale(-1.0, 1.0, signed=True, meaning="rank correlation over methods")
    names = tuple(leader.metric.replace("_", " ") for leader in result.leaders)
    values = np.nan_to_num(np.array(result.metric_agreement, dtype=float))
    note = f"Spearman over {methods} methods: small values are not significant."
    if methods < 5:
        note = f"Spearman over {methods} methods: too few for a significant value."
    matrix = Matrix(values, scale, names, names)
    return [View("Do the metrics agree?", (Panel((matrix,), "Spearman"),), caption=note, legend=scale)]


MOST = 30  # choices that are listed
AOPC = (
    "AOPC: mean drop of the prediction while features are masked, the highest scores first (higher is better). "
    "Brackets: 95 % confidence interval. ° not significant: the interval contains zero."
)
RFT = (
    "RFT (ranked truthfulness) on the inputs used to choose: drop of the prediction without each feature, weighted "
    "towards features with high scores (higher is better)."
)


@checked
def recommendation_page(result: Any) -> Page:
    """Everything about a Recommendation."""
    views = [_outcome_view(result), *_budget_view(result), _choices_view(result), *_space_view(result)]
    over = result.budgeted.over if result.budgeted is not None else {}
    outro = (*reasons(over, "Over the budget"), *reasons(result.excluded, "Excluded candidates"))
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
        Fact("baseline", result.replacement),
        Fact("variants run", str(result.variants) if result.variants else "0 (all cached)"),
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
    title = "The chosen method on held-out inputs"
    return View(title, panels, facts, tuple(result.warnings), AOPC if rows else "")


def _mean(score: Any) -> str:
    return _limits((score.mean, score.low, score.high), to="–")


def _cost_class(result: Any, name: str) -> str:
    chosen = result.budgeted is not None and any(c.cost_class == name for c in result.choices)
    return f"within {result.budgeted.limit}" if chosen else name


def _budget_view(result: Any) -> list[View]:
    """Methods within the budget: estimated cost, measured cost, and AOPC on both halves."""
    budgeted = result.budgeted
    if budgeted is None:
        return []
    seconds = not budgeted.limit.endswith("forwards")
    rows = []
    for one in budgeted.candidates:
        price = f"{one.price * 1000:,.0f} ms" if seconds else f"{one.price:.0f}"
        rows.append((one.name, price, *_passes(one), f"{one.chosen_by:.3f}", _mean(one), gain(one.over_choice)))
    columns = ("method", "estimate", "passes", "ms", "AOPC, choosing ↑", "AOPC, testing ↑", "gain over the choice")
    caption = (
        f"The chosen method comes first, then the order on the inputs used to choose. Estimates are for an input of "
        f"{budgeted.units} features; a backward counts as {budgeted.backward:.2g} forward"
        f"{'s' * (budgeted.backward != 1)}. Passes and ms are measured per input, without one-time costs of a model. "
        "° not significant: the interval contains zero."
    )
    title = f"Methods within {budgeted.limit}"
    return [View(title, (Panel((TableMark(columns, tuple(rows)),), wide=True),), caption=caption)]


def gain(limits: tuple[float, float, float]) -> str:
    """+0.120 (+0.090 to +0.150), with ° where zero is inside."""
    mean, low, high = limits
    if math.isnan(mean) or mean == low == high == 0:  # the choice itself
        return "–"
    return _limits(limits, "+") + "°" * (low <= 0 <= high)


def _choices_view(result: Any) -> View:
    rows = tuple(
        (f"{c.group}, {_cost_class(result, c.cost_class)}", c.name, f"{c.truthfulness:.3f}", str(c.inputs))
        for c in result.choices
    )
    left_out = len(rows) - MOST
    table = TableMark(("for", "chosen", "RFT ↑", "inputs"), rows[:MOST])
    caption = RFT + (f" {left_out} more choices are not shown." if left_out > 0 else "")
    return View("Chosen methods", (Panel((table,), wide=True),), caption=caption)


def _space_view(result: Any) -> list[View]:
    panels = []
    if result.leaders:
        rows = tuple((name, f"{score:.4f}") for name, score in result.leaders)
        panels.append(Panel((TableMark(("best candidates", "RFT ↑"), rows),), wide=True))
    if result.grid:
        values = np.array(result.grid, dtype=float)
        high = float(np.nanmax(np.abs(values))) or 1.0
        layers = ("mean", "product", *(f"layer {i}" for i in range(len(values) - 2)))
        heads = ("mean", *(f"head {i}" for i in range(values.shape[1] - 1)))
        matrix = Matrix(values, Scale(-high, high, signed=True, meaning="RFT"), layers, heads, "layers", "heads")
        title = f"Raw attention read by {result.grid_reading.replace('_', ' ')}: RFT of every layer and head"
        panels.append(Panel((matrix,), title, wide=True))
    return [View("Candidates", tuple(panels))] if panels else []


CAPTION = (
    "Means over held-out inputs, 95 % confidence intervals. Comprehensiveness: higher is better; sufficiency: lower "
    "is better. Ahead: paired difference in comprehensiveness - sufficiency (above 0, the learned one is better)."
)


@checked
def learned_page(result: Any) -> Page:
    """Facts, certificate, and head weights."""
    views = [_certificate(result)]
    if result.linear:
        views.append(_head_weights(result))
    return Page(result.title, tuple(views), () if result.certificate is None else (result.certificate.verdict,))


def _certificate(result: Any) -> View:
    facts = [
        Fact("learned from", f"{result.inputs} inputs ({result.kind}), {result.forwards:,} forward passes"),
        Fact("time", f"{result.seconds:.0f} s"),
        Fact("units", result.units),
    ]
    certificate = result.certificate
    if certificate is None:
        return View("Certificate", (), tuple(facts), ("There is no certificate: this method was not evaluated.",))
    if certificate.shapley_inputs:
        on = f"on {certificate.shapley_inputs} held-out inputs; 1 is best"
        facts += [
            Fact("Shapley values", f"R² {_limits(certificate.r2)}, rank {_limits(certificate.rank)} {on}"),
        ]
    columns = ("method", "passes", "comprehensiveness ↑", "sufficiency ↓", "learned is ahead by")
    rows = []
    for m in certificate.methods:
        passes = f"{m.forwards:.0f} + {m.backwards:.0f}"
        ahead = "" if math.isnan(m.ahead[0]) else _limits(m.ahead, "+")
        ahead = ahead if any(round(x, 3) for x in m.ahead) else "tied"
        rows.append((m.name, passes, _limits(m.comprehensiveness), _limits(m.sufficiency), ahead))
    table = Panel((TableMark(columns, tuple(rows)),), wide=True)
    return View(f"Certificate: {certificate.inputs} held-out inputs", (table,), tuple(facts), caption=CAPTION)


def _limits(values: tuple[float, float, float], sign: str = "", to: str = " to ") -> str:
    """0.312 (0.280 to 0.340)"""
    if math.isnan(values[0]):
        return "–"
    mean, low, high = (f"{value:{sign}.3f}" for value in values)
    return mean if math.isnan(values[1]) else f"{mean} ({low}{to}{high})"


def _head_weights(result: Any) -> View:
    """Draw the weight of each head, and the signed weight of its value × gradient."""
    weights_LHK = result.head_weights
    sizes_LH = np.sqrt((weights_LHK**2).sum(-1))
    strength = head_scale([sizes_LH], meaning="size of a head's weights, all of its features")
    signed = head_scale([weights_LHK[..., 0]], signed=True, meaning="weight of value × gradient")
    panels = (
        Panel((head_map(sizes_LH, strength),), "Weight of each head"),
        Panel((head_map(weights_LHK[..., 0], signed),), "Weight of its value × gradient"),
    )
    caption = "Weights of standardized features: how many units of the output one standard deviation of a feature adds."
    return View("Heads", panels, caption=caption, columns=2, legend=strength, second_legend=signed)
