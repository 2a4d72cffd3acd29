"""Views of what is inside a model: heads (importance, roles, circuits, pruning, value norms) and concepts."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from whyformer.parameters import Place, checked
from whyformer.results.types import Units
from whyformer.shapes import Array
from whyformer.views import marks
from whyformer.views.header import cost_of, number
from whyformer.views.marks import Line, Lines, Matrix, Points, Scale, Scatter, TableMark
from whyformer.views.view import Fact, Panel, View

MOST_NUMBERS = 144  # heads whose scores are written into the map
MOST_ROWS = 40  # of a table


def head_map(scores_LH: Array, scale: Scale) -> Matrix:
    """Layers × heads, layer 0 at the bottom as in the model; missing heads stay grey."""
    layers, heads = scores_LH.shape
    rows, columns = (tuple(str(i) for i in range(count)) for count in (layers, heads))
    numbers = layers * heads <= MOST_NUMBERS
    return Matrix(scores_LH[::-1], scale, rows[::-1], columns, "layer", "head", numbers=numbers)


def head_scale(maps: Iterable[Array], signed: bool = False, meaning: str = "score") -> Scale:
    """One scale for all maps: around zero if signed, else from zero (or what is below it) to the highest."""
    known = np.concatenate([np.asarray(m, float)[~np.isnan(m)] for m in maps])
    top = float((np.abs(known) if signed else known).max(initial=0.0)) or 1.0
    return Scale(-top if signed else min(0.0, float(known.min(initial=0.0))), top, signed, meaning)


def head_maps(maps: Sequence[tuple[str, Array]], title: str, *, signed: bool = False, meaning: str = "score") -> View:
    scale = head_scale([scores for _, scores in maps], signed, meaning)
    panels = tuple(Panel((head_map(scores, scale),), name) for name, scores in maps)
    return View(title, panels, columns=len(maps), legend=scale)


def by_part(values_L: Array, parts: Sequence[str] | None) -> list[tuple[str, Array]]:
    """The layers of each part (encoder, decoder, cross) by its name; all of them, unnamed, for one stream."""
    if parts is None:
        return [("", values_L)]
    names = dict.fromkeys(parts)
    return [(name, values_L[[i for i, part in enumerate(parts) if part == name]]) for name in names]


@checked
def importance_view(result: Any) -> View:
    """Heat map of a HeadImportance, one for each part of a model with several streams, with warnings."""
    scale = head_scale([result.scores], result.signed)
    settings = ", ".join([result.kind, *(f"{k}={v}" for k, v in result.options.items() if v is not None)])
    facts = (Fact("kind", settings), Fact("cost", cost_of(result.cost)))
    caption = "Grey: no such head." if np.isnan(result.scores).any() else ""
    maps = by_part(result.scores, result.parts)
    panels = tuple(Panel((head_map(scores, scale),), name) for name, scores in maps)
    return View(result.title, panels, facts, result.warnings, caption, columns=min(len(maps), 3), legend=scale)


@checked
def pruning_view(curve: Any, *, beside: Sequence[Any] = ()) -> View:
    """Metric against the share of heads kept; the whole model on the left, bands are 95 % confidence intervals."""
    curves = (curve, *beside)
    lines = [Line(c.name, c.values, False, c.low, c.high, 100 * c.kept / c.heads) for c in curves]
    drawn = Lines(100 * curve.kept / curve.heads, tuple(lines), "heads kept, %", curve.metric)
    panels = [Panel((drawn,), wide=bool(beside))]
    if not beside:
        rows = tuple(
            (f"{int(k)} of {curve.heads}", number(v), "" if np.isnan(a) else f"{a:.3f} – {b:.3f}")
            for k, v, a, b in zip(curve.kept, curve.values, curve.low, curve.high, strict=True)
        )
        panels.append(Panel((TableMark(("heads kept", curve.metric, "95 % CI"), rows),)))
    area = Fact("area", "; ".join(f"{c.name}: {number(c.area)}" if beside else number(c.area) for c in curves))
    title = curve.title if not beside else f"{curve.model}: {curve.metric} against heads kept"
    caption = "Area: the mean height over the share of heads kept. Bands: 95 % confidence intervals over the inputs."
    return View(title, tuple(panels), (area,), curve.warnings, caption, columns=1 if beside else 2)


@checked
def gates_view(result: Any) -> View:
    """Draw the learned gates, and the course of training."""
    scale = Scale(0.0, 1.0, meaning="gate: 0 is closed, 1 is open")
    panels = [Panel((head_map(result.gates, scale),), "gates", wide=True)]
    for name, values in result.history.items():
        steps = np.arange(len(values))
        drawn = Lines(steps, (Line(name, np.asarray(values)),), "step", name, whole_x=True)
        panels.append(Panel((drawn,), name))
    facts = (
        Fact("open", f"{result.kept} of {result.heads} heads, at a penalty of {number(result.penalty)} each"),
        Fact("training", ", ".join(f"{k}={v}" for k, v in result.options.items())),
        Fact("cost", cost_of(result.cost)),
    )
    return View(f"{result.name}: learned gates per head", tuple(panels), facts, columns=2, legend=scale)


@checked
def profile_view(result: Any) -> View:
    """One panel per curve over the layers, and the numbers."""
    panels, unknown = [], []
    for name, unit, values, low, high in result.curves():
        if np.isnan(values).all():
            unknown.append(name)
            continue
        curves = zip(*(by_part(c, result.parts) for c in (values, low, high)), strict=True)
        lines = tuple(Line(part or name, v, False, a, b, np.arange(len(v))) for (part, v), (_, a), (_, b) in curves)
        longest = max(len(line.values) for line in lines)
        drawn = Lines(np.arange(longest), lines, "layer", unit, whole_x=True, from_zero=True)
        panels.append(Panel((drawn,), name))
    panels.append(Panel((rows_table(result.rows()),), wide=True))
    why = (
        "the blocks could not be split into attention and MLP"
        if result.parts is None
        else "the model has several streams of tokens"
    )
    doubts = (*result.warnings, *(f"{name} is not available: {why}." for name in unknown))
    caption = "Means over the inputs; bands are 95 % confidence intervals."
    return View(result.title, tuple(panels), (Fact("cost", cost_of(result.cost)),), doubts, caption, columns=2)


def rows_table(rows: Sequence[dict[str, Any]]) -> TableMark:
    """A list of records as a table; the first ones of a long list."""
    columns = tuple(rows[0]) if rows else ("nothing",)
    return TableMark(columns, tuple(tuple(map(_cell, row.values())) for row in rows[:MOST_ROWS]))


def _cell(value: Any) -> str:
    if isinstance(value, (float, np.floating)):
        return "" if np.isnan(value) else f"{value:.3f}"
    return ", ".join(f"{v:+d}" for v in value) if isinstance(value, tuple) else str(value)


@checked
def roles_view(result: Any) -> View:
    """Roles of heads: a point per head, coloured by its role, and the shares behind it."""
    rows = result.rows()
    kinds: dict[str, list[dict[str, Any]]] = {"no role": []}
    for row in rows:
        role = row["role"] or "no role"
        kinds.setdefault("positional" if role.startswith("positional") else role, []).append(row)
    groups = []
    for kind, members in kinds.items():
        across = np.array([row["positional"] for row in members])
        up = np.array([float(np.nansum([row["separator"], row["first"]])) for row in members])
        tips = []
        for row in members:
            layer = f"{row['part']} layer {row['depth']}" if "part" in row else f"layer {row['layer']}"
            tips.append(f"{layer}, head {row['head']}: {row['role'] or 'no role'}")
        groups += [Points(kind, across, up, kind == "no role", tuple(tips))] if members else []
    x_axis, y_axis = "share of argmaxes at the best fixed offset", "attention on separators and the first position"
    shown = sorted(rows, key=lambda row: not row["role"])
    panels = (Panel((Scatter(tuple(groups), x_axis, y_axis),)), Panel((rows_table(shown),), wide=True))
    facts = [Fact("chance of a rare token", f"{result.rare_chance:.2f}")]
    if result.aligned is not None:
        facts.append(Fact("chance of the aligned token", f"{result.aligned_chance:.2f}"))
    left_out = f" The first {MOST_ROWS} of {len(rows)} heads are listed." if len(rows) > MOST_ROWS else ""
    caption = "A point is a head. Roles are named by thresholds: positional from 0.9, others from 0.5." + left_out
    return View(f"head roles, {result.inputs} inputs", panels, tuple(facts), caption=caption)


@checked
def induction_view(result: Any) -> View:
    """The three maps side by side, on one scale."""
    names = ("previous_token", "duplicate_token", "induction")
    maps = [(name.replace("_", " "), getattr(result, name)) for name in names]
    return head_maps(
        maps, f"{result.sequences} × {result.length} random tokens, repeated once", meaning="mean attention"
    )


@checked
def circuits_view(result: Any) -> View:
    """Copying and matching, side by side."""
    maps = [("copying (OV circuit)", result.copying), ("matching (QK circuit)", result.matching)]
    return head_maps(maps, "circuits" + ", QK at offset 0" * result.rotary, signed=True, meaning="Σλ / Σ|λ|")


@checked
def direct_view(result: Any, index: Place = 0) -> View:
    """Draw the contribution of each head to the logit of one input."""
    shares = result.shares[index]
    scale = head_scale([shares], signed=True, meaning="share of the logit")
    whole = f"{result.targets[index]} = {result.value[index]:.2f}, rest {result.rest[index]:.2f}"
    facts = [Fact("input", f"{index + 1} of {len(result.shares)}"), Fact("cost", cost_of(result.cost))]
    title = f"{result.model}: shares of the logit {whole}"
    caption = "Blue raises the logit, orange lowers it. The rest is written by the embedding, the MLPs and biases."
    return View(title, (Panel((head_map(shares, scale),)),), tuple(facts), caption=caption, legend=scale)


def token_types(units: Units) -> list[str]:
    """Special tokens by name, punctuation, and the rest ("patch" in images)."""
    rest = "patch" if units.grid is not None else "other"
    kinds = []
    for label, special in zip(units.labels, units.special, strict=True):
        bare = label.removeprefix("##").lstrip("Ġ▁ ")
        if special:
            kinds.append(label)
        elif bare and all(c in string.punctuation for c in bare):
            kinds.append("punctuation")
        else:
            kinds.append(rest)
    return kinds


def weights_by_type(inputs: Sequence[Any], layer: int | None = None) -> dict[str, tuple[Array, Array]]:
    """Per token type: attention received (mean over queries) and ‖f(x)‖, one entry per layer, head and token.

    inputs: what ``methods.value_contributions.weighed`` returns.
    """
    points: dict[str, tuple[list[Array], list[Array]]] = {}
    for one in inputs:
        kinds = np.array(token_types(one.units))
        chosen = range(len(one.norms)) if layer is None else [layer]
        for index in chosen:
            received, lengths = one.attention[index].mean(1), one.norms[index]
            for kind in dict.fromkeys(kinds):
                mine = points.setdefault(str(kind), ([], []))
                mine[0].append(received[:, kinds == kind].ravel())
                mine[1].append(lengths[:, kinds == kind].ravel())
    return {kind: (np.concatenate(x), np.concatenate(y)) for kind, (x, y) in points.items()}


LEVEL_TITLES = {
    "attn": "attention alone",
    "attn_res": "with the residual stream",
    "attn_res_ln": "and the layer norm",
    "enc": "and the norm after the MLP",
}


def scatter_view(weighed: Sequence[Any], layer: int | None = None) -> View:
    """Attention weight against ‖f(x)‖, one point per layer, head and token, coloured by token type.

    weighed: what ``methods.value_contributions.weighed`` returns.
    """
    from scipy.stats import spearmanr

    points = weights_by_type(weighed, layer)
    commonest = sorted(points, key=lambda kind: -len(points[kind][0]))  # the crowd is drawn first, below
    groups = tuple(Points(kind, *points[kind], quiet=number == 0) for number, kind in enumerate(commonest))
    both = [np.concatenate([points[kind][axis] for kind in points]) for axis in (0, 1)]
    rank = float(spearmanr(*both).statistic) if min(np.ptp(b) for b in both) > 0 else float("nan")
    where = "all layers" if layer is None else f"layer {layer}"
    mark = Scatter(groups, "attention weight α, mean over queries", "‖f(x)‖", log_x=True)
    caption = "A point is one token in one head. Lower right: high attention, small contribution."
    title = f"Attention weights against norms, {where}: rank correlation {rank:+.2f}"
    return View(title, (Panel((mark,)),), caption=caption)


def level_panels(maps: Mapping[str, Array], labels: tuple[str, ...]) -> tuple[tuple[Panel, ...], Scale]:
    """One layer's contributions at each level, as shares of rows on one scale, so that the residual's part is seen."""
    totals = [rows.sum(-1, keepdims=True) for rows in maps.values()]
    shares = [np.divide(m, t, out=np.zeros_like(m), where=t > 0) for m, t in zip(maps.values(), totals, strict=True)]
    scale = Scale(0.0, max(float(m.max()) for m in shares), meaning="share of a row")
    rows = [labels if len(share) == len(labels) else () for share in shares]
    drawn = [Matrix(share, scale, at, labels, "position", "token") for share, at in zip(shares, rows, strict=True)]
    return tuple(Panel((m,), LEVEL_TITLES.get(level, level)) for level, m in zip(maps, drawn, strict=True)), scale


def mixing_panel(ratios_LN: Array, labels: tuple[str, ...]) -> Panel:
    """The mixing ratio of each layer and position; grey where a layer computes nothing."""
    layers = tuple(str(i) for i in range(len(ratios_LN)))
    scale = Scale(0.0, 1.0, meaning="share of other positions")
    return Panel(
        (Matrix(ratios_LN[::-1], scale, layers[::-1], labels, "layer", "position"),), "mixing ratio", wide=True
    )


# Concepts: bars with limits and stars, and what a unit likes best.

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


def _bars(result: Any) -> marks.Bars:
    alpha = float(result.options.get("alpha", 0.0))
    bars = []
    for row in result.rows:
        low, high = (None if np.isnan(limit) else float(limit) for limit in (row.low, row.high))
        bars.append(marks.Bar(row.name, row.mean, False, low, high, row.scores, _mark(row, alpha), not row.significant))
    if result.random:
        bars.append(marks.Bar(_null(result), float(np.mean(result.random)), special=True, dots=tuple(result.random)))
    return marks.Bars(tuple(bars), SHARES, reference=0.5)


def _null(result: Any) -> str:
    """Return the name of the null hypothesis."""
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
    picture = Panel((marks.Picture(result.image, interpolation="nearest"),), f"reaches {result.value:.3g}")
    panels = (picture, Panel((course,), "activation per step"))
    return View(f"{result.model}: input that maximises {result.unit}", panels, tuple(facts), result.warnings, columns=2)
