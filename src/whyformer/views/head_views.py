"""Views of what is inside a model: heads (importance, roles, circuits, pruning, value norms) and concepts."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from whyformer.errors import BadInput
from whyformer.parameters import Place, checked
from whyformer.results.types import Explanation, Units
from whyformer.shapes import Array
from whyformer.views import marks
from whyformer.views.header import cost_of, number
from whyformer.views.marks import Bar, Bars, Line, Lines, Matrix, Points, Scale, Scatter, TableMark
from whyformer.views.view import Fact, Panel, View

# Pictures of attention heads: maps of layers × heads, pruning curves, layer profiles, roles.

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
    """Draw several maps on one scale."""
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
    """Heat map of a HeadImportance, one for each part of a model with several streams, and what to doubt about it."""
    scale = head_scale([result.scores], result.signed)
    settings = ", ".join([result.kind, *(f"{k}={v}" for k, v in result.options.items() if v is not None)])
    facts = (Fact("kind", settings), Fact("cost", cost_of(result.cost)))
    caption = "Grey: no such head." if np.isnan(result.scores).any() else ""
    maps = by_part(result.scores, result.parts)
    panels = tuple(Panel((head_map(scores, scale),), name) for name, scores in maps)
    return View(result.title, panels, facts, result.warnings, caption, columns=min(len(maps), 3), legend=scale)


@checked
def pruning_view(curve: Any, *, beside: Sequence[Any] = ()) -> View:
    """Metric against the share of heads kept; the whole model on the left, bands are 95 % limits."""
    curves = (curve, *beside)
    lines = [Line(c.name, c.values, False, c.low, c.high, 100 * c.kept / c.heads) for c in curves]
    drawn = Lines(100 * curve.kept / curve.heads, tuple(lines), "heads kept, %", curve.metric)
    panels = [Panel((drawn,), wide=bool(beside))]
    if not beside:
        rows = tuple(
            (f"{int(k)} of {curve.heads}", number(v), "" if np.isnan(a) else f"{a:.3f} – {b:.3f}")
            for k, v, a, b in zip(curve.kept, curve.values, curve.low, curve.high, strict=True)
        )
        panels.append(Panel((TableMark(("heads kept", curve.metric, "95 % limits"), rows),)))
    areas = [f"{c.name}: {number(c.area)}" if beside else number(c.area) for c in curves]
    title = curve.title if not beside else f"{curve.model}: {curve.metric} against heads kept"
    caption = "Area: the mean height over the share of heads kept. Bands are 95 % limits over the inputs."
    facts = (Fact("area", "; ".join(areas)),)
    return View(title, tuple(panels), facts, curve.warnings, caption, columns=1 if beside else 2)


@checked
def gates_view(result: Any) -> View:
    """What training left open, and how it went."""
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
    return View(f"{result.name}: which heads stay open", tuple(panels), facts, columns=2, legend=scale)


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
    why = "the blocks could not be taken apart" if result.parts is None else "the model has several streams of tokens"
    doubts = (*result.warnings, *(f"{name} is not known: {why}." for name in unknown))
    caption = "Means over the inputs; bands are 95 % limits."
    return View(result.title, tuple(panels), (Fact("cost", cost_of(result.cost)),), doubts, caption, columns=2)


def rows_table(rows: Sequence[dict[str, Any]]) -> TableMark:
    """A list of records as a table; the first ones of a long list."""
    columns = tuple(rows[0]) if rows else ("nothing",)
    return TableMark(columns, tuple(tuple(map(_cell, row.values())) for row in rows[:MOST_ROWS]))


def _cell(value: Any) -> str:
    if isinstance(value, (float, np.floating)):
        return "" if np.isnan(value) else f"{value:.3f}"
    if isinstance(value, tuple):
        return ", ".join(f"{v:+d}" for v in value)
    return str(value)


@checked
def roles_view(result: Any) -> View:
    """Where heads look: a point per head, coloured by its role, and the shares behind it."""
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
    title = f"{result.sequences} × {result.length} random tokens, read twice"
    return head_maps(maps, title, meaning="mean attention")


@checked
def circuits_view(result: Any) -> View:
    """Copying and matching, side by side."""
    maps = [("copying (OV circuit)", result.copying), ("matching (QK circuit)", result.matching)]
    title = "circuits" + (", QK at offset 0" if result.rotary else "")
    return head_maps(maps, title, signed=True, meaning="Σλ / Σ|λ|")


@checked
def direct_view(result: Any, index: Place = 0) -> View:
    """What each head writes into one input's logit."""
    shares = result.shares[index]
    scale = head_scale([shares], signed=True, meaning="share of the logit")
    whole = f"{result.targets[index]} = {result.value[index]:.2f}, rest {result.rest[index]:.2f}"
    facts = [Fact("input", f"{index + 1} of {len(result.shares)}"), Fact("cost", cost_of(result.cost))]
    title = f"{result.model}: shares of the logit {whole}"
    caption = "Blue raises the logit, orange lowers it. The rest is written by the embedding, the MLPs and biases."
    return View(title, (Panel((head_map(shares, scale),)),), tuple(facts), caption=caption, legend=scale)


@checked
def syntactic_view(result: Any) -> View:
    """The best head of each relation against the best fixed offset, and how far each of them is ahead."""
    columns = ("relation", "direction", "head", "hits", "best offset", "gain", "arcs")
    rows = [
        dict(zip(columns, (a, b, f"{layer}.{head}", hits, base, hits - base, arcs), strict=True))
        for a, b, layer, head, hits, base, arcs in result.best()
    ]
    panel = Panel((rows_table(rows),), wide=True)
    left_out = f" The first {MOST_ROWS} of {len(rows)} are listed." if len(rows) > MOST_ROWS else ""
    caption = "Heads as layer.head. Best offset: what always looking at the same distance hits." + left_out
    title = f"syntactic heads, {result.sentences} sentences"
    return View(title, (panel,), doubts=result.warnings, caption=caption)


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


@checked
def norms_scatter(inputs: Any, layer: Place | None = None) -> View:
    """Attention weight against ‖f(x)‖, one point per layer, head and token, coloured by token type.

    Tokens that get much attention and little norm (lower right) are looked at, but not taken from. ``layer`` draws one
    layer only.
    """
    from scipy.stats import spearmanr

    several = list(inputs) if isinstance(inputs, Sequence) else [inputs]
    if not several:
        raise BadInput("there is nothing to draw: the list of inputs is empty.")
    points = weights_by_type(several, layer)
    commonest = sorted(points, key=lambda kind: -len(points[kind][0]))  # the crowd is drawn first, below
    groups = tuple(Points(kind, *points[kind], quiet=number == 0) for number, kind in enumerate(commonest))
    both = [np.concatenate([points[kind][axis] for kind in points]) for axis in (0, 1)]
    rank = float(spearmanr(*both).statistic) if min(np.ptp(b) for b in both) > 0 else float("nan")
    where = "all layers" if layer is None else f"layer {layer}"
    mark = Scatter(groups, "attention weight α, mean over queries", "‖f(x)‖", log_x=True)
    caption = "A point is one token in one head. Lower right: looked at, but not taken from."
    title = f"Attention weights against norms, {where}: rank correlation {rank:+.2f}"
    return View(title, (Panel((mark,)),), caption=caption)


@checked
def level_maps(explanations: Sequence[Explanation], layer: Place | None = None) -> View:
    """The maps of several explanations (value_norms at levels "attn", "attn_res", "attn_res_ln") side by side.

    Rows are shown as shares of their sum, on one colour scale, so that what the residual stream takes is seen.
    ``layer`` draws one layer (explain with ``keep_layers=True``), otherwise the map of the whole model is drawn.
    """
    if not explanations:
        raise BadInput("there is nothing to draw: the list of explanations is empty.")
    chosen = [_map(one, layer) for one in explanations]
    totals = [rows.sum(-1, keepdims=True) for rows in chosen]
    shares = [np.divide(m, t, out=np.zeros_like(m), where=t > 0) for m, t in zip(chosen, totals, strict=True)]
    scale = Scale(0.0, max(float(m.max()) for m in shares), meaning="share of a row")
    labels = explanations[0].units.labels
    panels = []
    for share, one in zip(shares, explanations, strict=True):
        rows = labels if share.shape[0] == len(labels) else ()
        mark = Matrix(share, scale, rows, labels, "position", "token")
        panels.append(Panel((mark,), str(one.options.get("level", one.method))))
    where = "whole model" if layer is None else f"layer {layer}"
    title = f"{where}: share of each position (row) that comes from each token (column)"
    return View(title, tuple(panels), columns=len(panels), legend=scale)


def _map(explanation: Explanation, layer: int | None) -> Array:
    maps = explanation.matrix if layer is None else explanation.layers
    if not isinstance(maps, np.ndarray):
        what = "a map" if layer is None else "maps per layer; explain with keep_layers=True"
        raise BadInput(f"this explanation by {explanation.method} holds no {what}.")
    if layer is not None and not -len(maps) <= layer < len(maps):
        raise BadInput(f"layer={layer}: there are {len(maps)}, numbered 0 to {len(maps) - 1}.")
    return maps if layer is None else maps[layer]


# Concepts: bars with limits and stars, and what a unit likes best.

SHARES = Scale(0.0, 1.0, meaning="share of inputs")


@checked
def scores_view(result: Any, *, title: str = "") -> View:
    """One bar per concept with 95 % limits; dots are single concept vectors, a star is a claim that holds."""
    title_of_bars = f"share of inputs whose logit of {result.target!r} rises along the concept"
    panels = (Panel((_bars(result),), title_of_bars), Panel((_table(result),), wide=True))
    claims = ", ".join(row.name for row in result.rows if row.significant) or "none of them"
    vectors = len(result.rows[0].scores) if result.rows else 0
    facts = (
        Fact("model", result.model),
        Fact("asked about", f"{result.inputs} inputs of '{result.target}', at {result.layer}"),
        Fact("concept vectors", f"{vectors} for each bar"),
        Fact("not by chance", "not tested" if all(np.isnan(row.p) for row in result.rows) else claims),
    )
    caption = "Lines are 95 % limits, dots single concept vectors, ★ a score that is not by chance."
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
        return "not known here"
    if np.isnan(row.p):
        return "not tested"
    chance = "p < 0.0001" if row.p < 1e-4 else f"p = {row.p:.2g}"
    verdict = _verdict(row, alpha)
    return f"{verdict}  {chance}" + ", too small: vectors share examples" * (verdict == "?")


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
    columns = ("concept", "score", "95 % limits", "p", "", "accuracy", "magnitude")
    return TableMark(columns, tuple(rows), quiet=(len(rows) - 1,) if result.random else ())


@checked
def maximized_view(result: Any) -> View:
    """The picture (or the tokens) that was found, beside the course of the objective."""
    liked: marks.Mark
    if result.image is not None:
        title = f"reaches {result.value:.3g}"
        liked = marks.Picture(result.image, interpolation="nearest")
    else:
        title = f"these tokens reach {result.value:.3g}"
        liked = marks.TokenRun((marks.Piece(" ".join(result.tokens)),), Scale(0.0, 1.0))
    steps = np.arange(len(result.history))
    course = Lines(steps, (Line(result.unit, np.asarray(result.history)),), "step", "activation", whole_x=True)
    start = "" if np.isnan(result.start) else f"from {number(result.start)} "
    reached = f"{start}to {number(result.value)} in {len(result.history)} steps"
    facts = [Fact("model", result.model), Fact("activation", reached)]
    if result.image is not None:
        grid = f"checkerboard {result.checkerboard:.2f} (1: no patch grid to be seen)"
        facts.append(Fact("picture", f"{' × '.join(map(str, result.image.shape[:2]))} pixels, {grid}"))
    if result.penalties:
        facts.append(Fact("penalties", ", ".join(f"{k} = {number(v)}" for k, v in result.penalties.items())))
    if result.options:
        facts.append(Fact("options", ", ".join(f"{k}={v}" for k, v in result.options.items())))
    panels = (Panel((liked,), title), Panel((course,), "step by step"))
    return View(f"{result.model}: what raises {result.unit}", panels, tuple(facts), result.warnings, columns=2)
