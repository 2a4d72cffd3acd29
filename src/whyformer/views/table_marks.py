"""Marks for tables: columns, rows, and the training rows of in-context models."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from whyformer.errors import BadInput
from whyformer.parameters import checked
from whyformer.results.types import Explanation, scalar_name
from whyformer.shapes import Array
from whyformer.views.header import STAND_INS, doubts, duration, facts, number
from whyformer.views.marks import Bar, Bars, Matrix, Points, Scale, Scatter, TableMark
from whyformer.views.scales import scale_of
from whyformer.views.view import Fact, Panel, View

if TYPE_CHECKING:
    from collections.abc import Sequence


MOST_ROWS = 24  # of a heat map over rows
MOST_WORDS = 20  # at either end
CONTEXT = 22  # characters on either side of a word
MEANT = "Bars: means. Lines: 95 % confidence intervals."


def with_values(explanation: Explanation) -> Explanation:
    """Labels of a table's units with what stood in the column: age = 39. Backends give " = " more room than others."""
    units = explanation.units
    if units.values is None:
        return explanation
    labels = tuple(
        f"{label} = {value}" if value else label for label, value in zip(units.labels, units.values, strict=True)
    )
    return explanation.replace(units=replace(units, labels=labels, values=None))


def unseen_panel(columns: Sequence[str]) -> list[Panel]:
    """Columns that the model does not attend to: named, never drawn as zero."""
    if not columns:
        return []
    return [Panel((), "columns outside attention, not explained", wide=True, note=", ".join(columns))]


def stand_in_of(explanation: Explanation) -> str:
    """Return the baseline of masked columns, such as "mean" or "zero"; "" if the method masks nothing."""
    chosen = next((value for name in STAND_INS if (value := explanation.options.get(name)) is not None), "")
    return str(chosen) if isinstance(chosen, (str, int)) else "the given numbers"


def untried(explanation: Explanation) -> list[int]:
    """Columns with a score of exactly 0: they equal the baseline, or the model does not use them."""
    units = explanation.units
    columns = [i for i, stream in enumerate(units.stream) if stream == "table" and not units.special[i]]
    zero = [i for i in columns if explanation.scores[i] == 0]
    return zero if stand_in_of(explanation) and len(zero) < len(units) else []


def unmoved_words(chosen: Sequence[Explanation]) -> str:
    """Name the columns whose masking changed nothing, and the two reasons that there can be."""
    for explanation in chosen:
        stand_in = stand_in_of(explanation)
        labels = [explanation.units.labels[i].split(" = ")[0] for i in untried(explanation)]
        if labels:
            return f" No effect (equal to the baseline, {stand_in}, or not used by the model): {', '.join(labels)}."
    return ""


@checked
def permutation_view(result: Any) -> View:
    """The picture of a FeaturePermutation."""
    scale = scale_of([result.mean, *_known(result.low, result.high)], meaning=f"drop of {result.metric}")
    order = np.argsort(-result.mean, kind="stable")
    bars = _bars(result.labels, (False,) * len(order), result.mean, result.low, result.high, order, scale)
    facts = [
        Fact("metric", f"{result.metric} = {number(result.score)} on {result.rows} rows"),
        Fact("shuffled", f"{result.drops.shape[1]} times"),
        Fact("model", result.model),
    ]
    groups = [Fact(name, ", ".join(members)) for name, members in result.groups.items()]
    panel = Panel((bars,), f"drop of {result.metric} when a column is shuffled (higher: more important)", wide=True)
    caption = MEANT
    return View("Feature permutation", (panel,), (*facts, *groups), result.warnings, caption)


@checked
def agreement_view(result: Any) -> View:
    """The picture of an Agreement: a point per column, and the correlation of each class."""
    points = Points("columns", result.importance, result.scores, labels=result.labels)
    other = f"fall of {result.metric} when the column is shuffled" if result.metric else "scores passed"
    mark = Scatter((points,), other, f"mean |score|, {result.method}")
    ranks_of = [np.argsort(np.argsort(-x, kind="stable")) + 1 for x in (result.scores, result.importance)]
    order = np.argsort(ranks_of[1], kind="stable")[:MOST_ROWS]
    ranks = tuple((result.labels[i], str(ranks_of[1][i]), str(ranks_of[0][i])) for i in order)
    panels = [
        Panel((mark,), wide=True),
        Panel((TableMark(("column", "rank by permutation" if result.metric else other, result.method), ranks),)),
    ]
    rows = tuple((name, f"{value:+.2f}") for name, value in result.classes.items())
    if result.per_row is not None and np.isfinite(result.per_row).any():
        rows += (("single rows, mean", f"{np.nanmean(result.per_row):+.2f}"),)
    if rows:
        panels.append(Panel((TableMark(("rows predicted as", "rank correlation"), rows),)))
    limits = "" if np.isnan(result.low) else f" (95 % confidence interval {result.low:+.2f} to {result.high:+.2f})"
    facts = (
        Fact("rank correlation", f"{result.spearman:+.2f}{limits}"),
        Fact("rows", str(result.rows)),
        Fact("method", result.method),
        Fact("model", result.model),
    )
    caption = "Spearman correlation over columns: 1 is the same order, −1 the opposite order."
    title = "Agreement with permutation importance" if result.metric else "Agreement with scores passed"
    return View(title, tuple(panels), facts, result.warnings, caption)


@checked
def global_view(result: Any) -> View:
    """The picture of a GlobalExplanation."""
    plain = [i for i, special in enumerate(result.special) if not special]
    low, high = (result.size_low, result.size_high) if result.signed else (result.low, result.high)
    what = "mean size" if result.signed else "mean score"
    reached = [result.importance[plain], *_known(low[plain], high[plain])]
    scale = scale_of([np.clip(x, 0, None) if result.signed else x for x in reached], meaning=what)
    order = [int(i) for i in np.argsort(-result.importance, kind="stable") if int(i) in set(plain)]
    order += [i for i, special in enumerate(result.special) if special]
    panels = [Panel((_bars(result.labels, result.special, result.importance, low, high, order, scale),), what)]
    if result.signed:
        limits = _known(result.low[plain], result.high[plain])
        both_ways = scale_of([result.mean[plain], *limits], True, meaning="mean")
        bars = _bars(result.labels, result.special, result.mean, result.low, result.high, order, both_ways)
        panels.append(Panel((bars,), "mean"))
    panels += unseen_panel(result.unseen)
    if result.matrix is not None and min(result.matrix.shape) > 1:
        panels.append(
            Panel(
                (column_map(result.matrix, result.labels, result.special),),
                "column-to-column attention, mean over rows",
            )
        )
    if result.samples is not None and len(result.samples) > 1:
        panels.append(Panel((row_map(result, plain),), f"{min(MOST_ROWS, len(result.samples))} of the rows", wide=True))
    facts = [Fact("rows", f"{result.rows}, {duration(result.seconds)}"), *_asked(result), Fact("model", result.model)]
    caption = f"{MEANT} Colours of maps are scaled without special tokens."
    return View("Columns over many rows", tuple(panels), tuple(facts), result.warnings, caption, columns=2)


@checked
def corpus_view(result: Any) -> View:
    """The picture of a CorpusExplanation: the words that count most, and where each weighed most."""
    order = np.argsort(-result.mean, kind="stable").tolist()
    panels = []
    ends: list[tuple[str, list[int]]] = [("mean score", order[:MOST_WORDS])]
    if result.signed:
        ends = [("supports the target", [i for i in order[:MOST_WORDS] if result.mean[i] > 0])]
        ends.append(("opposes the target", [i for i in order[::-1][:MOST_WORDS] if result.mean[i] < 0]))
    shown = [i for _, members in ends for i in members]
    drawn = [x[shown] for x in (result.mean, result.low, result.high)]
    scale = scale_of(_known(*drawn), result.signed, meaning="mean score")
    plain = (False,) * len(result.words)
    for title, members in ends:
        if members:
            bars = _bars(result.words, plain, result.mean, result.low, result.high, members, scale)
            panels.append(Panel((bars,), title))
    rows = tuple(
        (_around(result.words[i], result.examples[i]), result.words[i], str(result.counts[i]), number(result.mean[i]))
        for i in shown[:MOST_ROWS]
    )
    panels.append(Panel((TableMark(("text with the highest score", "word", "count", "mean score"), rows),), wide=True))
    facts = [
        Fact("texts", f"{result.texts}, {duration(result.seconds)}"),
        *_asked(result),
        Fact("words", f"{len(result.words)}; {result.left_out} more occur fewer than least={result.least or 2} times"),
        Fact("model", result.model),
    ]
    return View("Words over many texts", tuple(panels), tuple(facts), result.warnings, MEANT, columns=2)


def _around(word: str, text: str) -> str:
    """The words around a word, in one short line."""
    at = max(text.casefold().find(word), 0)
    start, end = max(0, at - CONTEXT), min(len(text), at + len(word) + CONTEXT)
    return ("…" if start else "") + text[start:end].strip() + ("…" if end < len(text) else "")


@checked
def row_attention_view(result: Any) -> View:
    """Which rows a row looked at: on average, and layer by layer."""
    ranked = result.ranked()
    scale = scale_of([np.array([share for _, share in ranked])], meaning="attention")
    bars = Bars(tuple(Bar(label, share, label == result.labels[0]) for label, share in ranked[:MOST_ROWS]), scale)
    per_layer = result.weights_LHR.mean(1)
    layers = tuple(str(layer) for layer in range(len(per_layer)))
    shade = scale_of([per_layer], meaning="attention, mean over heads")
    across = Matrix(per_layer, shade, layers, tuple(result.labels), "layer", "attended row")
    more = len(ranked) - MOST_ROWS
    left_out = f" {more} rows with less attention are not shown as bars." if more > 0 else ""
    panels = (Panel((bars,), "mean over layers and heads", wide=True), Panel((across,), "layer by layer", wide=True))
    facts = (Fact("reference", result.reference), Fact("layers", ", ".join(result.paths)))
    caption = f"Attention is not importance: use wf.explain for scores of columns.{left_out}"
    return View("Attention from this row to other rows", panels, facts, caption=caption, legend=shade)


def _asked(result: Any, value: str = "") -> tuple[Fact, Fact]:
    settings = ", ".join(f"{k}={v}" for k, v in result.options.items())
    explained = f"{scalar_name(result.scalar)} of {result.target}{value}"
    return Fact("explained", explained), Fact("method", result.method + (f" ({settings})" if settings else ""))


def _known(*limits: Array) -> list[Array]:
    return [x[~np.isnan(x)] for x in limits]


def _bars(
    labels: Sequence[str], special: Sequence[bool], mean: Array, low: Array, high: Array, order: Any, scale: Scale
) -> Bars:
    def limit(value: float) -> float | None:
        return None if np.isnan(value) else float(value)

    drawn = [Bar(labels[i], float(mean[i]), special[i], limit(low[i]), limit(high[i])) for i in order]
    return Bars(tuple(drawn), scale)


def column_map(values: Array, labels: Sequence[str], special: Sequence[bool], signed: bool = False) -> Matrix:
    """A map between columns, as in the SAINT paper: queries down, keys across."""
    inner = [i for i, s in enumerate(special) if not s] or list(range(len(labels)))
    shown = values[np.ix_(inner, inner)].copy()
    if not signed and len(inner) > 1:
        np.fill_diagonal(shown, np.nan)
    scale = scale_of([shown[~np.isnan(shown)]], signed, from_zero=False, meaning="score")
    names = tuple(labels)
    return Matrix(values, scale, names, names, "query column", "key column")


ROW_MAP_AXES = ("table rows, sorted by the first column", "table columns, sorted by importance")


def row_map(result: Any, plain: list[int]) -> Matrix:
    """Rows down, columns across by importance; rows are sorted by the score of the most important column."""
    order = sorted(plain, key=lambda i: -float(result.importance[i]))
    rows = result.samples[np.argsort(-result.samples[:, order[0]], kind="stable")]
    if len(rows) > MOST_ROWS:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_ROWS).round().astype(int)]
    values = rows[:, order]
    low, high = np.quantile(values, [0.01, 0.99])  # a single row must not leave all others white
    reach = float(max(abs(low), abs(high))) or 1.0
    scale = Scale(-reach, reach, True, "score") if result.signed else Scale(float(low), float(high), False, "score")
    names = tuple(result.labels[i] for i in order)
    return Matrix(values, scale, (), names, *ROW_MAP_AXES)


@checked
def table_map(explanation: Explanation) -> View:
    """The map between the columns of one row, with their values."""
    if not isinstance(explanation.matrix, np.ndarray):
        raise BadInput(
            f"{explanation.method} returned no map between columns: pass an explanation whose matrix is one."
        )
    shown = with_values(explanation)
    values = explanation.matrix
    if values.shape[0] == 1:
        scale = scale_of([values[:, ~np.array(explanation.units.special)]], meaning="score")
        mark = Matrix(values, scale, ("output",), shown.units.labels, "", "key column")
    else:
        between = column_map(values, shown.units.labels, shown.units.special, explanation.signed)
        mark = replace(between, column_labels=explanation.units.labels)
    panels = (Panel((mark,), wide=True), *unseen_panel(explanation.units.unseen))
    words = "Rows: columns that attend (queries). Columns: what they attend to (keys). Colour: score."
    return View("Map between columns", panels, facts(explanation), doubts(explanation), words, legend=mark.scale)


MOST_BARS, MOST_CONTEXT_ROWS = 24, 12  # training rows, the strongest first


@checked
def context_view(result: Any) -> View:
    """The picture of a ContextExplanation: two panels of bars, and the cells of the training rows that count most."""
    panels = []
    order = _strongest(result.row_scores)[:MOST_BARS]
    names = [f"row {i} = {answer}" for i, answer in enumerate(result.answers)]
    if np.isfinite(result.scores).all():
        scale = scale_of([result.scores], result.signed, meaning="score")
        bars = tuple(
            Bar(f"{result.columns[i]} = {result.values[i]}", float(result.scores[i]), False)
            for i in _strongest(result.scores)
        )
        panels.append(Panel((Bars(bars, scale),), "columns of this row"))
    row_scale = scale_of([result.row_scores], result.rows_signed, meaning="score")
    rows = tuple(Bar(names[i], float(result.row_scores[i]), False) for i in order)
    panels.append(Panel((Bars(rows, row_scale),), "training rows and their labels"))
    if np.isfinite(result.cells).all():
        first = order[:MOST_CONTEXT_ROWS]
        shade = scale_of([result.cells[first]], result.signed, meaning="score")
        labels = tuple(names[i] for i in first)
        mark = Matrix(result.cells[first], shade, labels, result.columns, "training row", "column")
        panels.append(Panel((mark,), f"cells of the first {len(first)} of these training rows", wide=True))
    facts = (
        *_asked(result, f" = {number(result.value)}"),
        Fact("cost", f"{result.forwards} forward, {result.backwards} backward"),
        Fact("model", result.model),
    )
    more = len(result.row_scores) - len(order)
    caption = f"{more} training rows with smaller scores are not shown." if more > 0 else ""
    return View(
        "Scores of this row and of its training rows", tuple(panels), facts, result.warnings, caption, columns=2
    )


def _strongest(scores: Any) -> list[int]:
    return [int(i) for i in np.argsort(-np.abs(scores), kind="stable")]
