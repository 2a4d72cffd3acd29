"""Pictures and tables of concepts: bars with limits and stars, and pictures that a unit likes best."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from whyformer.errors import MissingExtra
from whyformer.views.view import Bar, Bars, Fact, Panel, Scale, View

Array = np.ndarray[Any, Any]

SURE, UNSURE = "#2166ac", "#b8c4d0"


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plot", "plot()") from None
    return Figure(figsize=(width, height), layout="constrained")


def _saved(figure: Any, path: str | Path | None) -> Any:
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def score_bars(result: Any, path: str | Path | None = None) -> Any:
    """One bar per concept with 95 % limits; dots are single concept vectors, a star is a claim that holds."""
    rows = list(result.rows)
    figure = _figure(6.4, 1.6 + 0.48 * (len(rows) + bool(result.random)))
    axes = figure.add_subplot()
    names = []
    for y, row in enumerate(rows):
        axes.barh(y, row.mean, color=SURE if row.significant else UNSURE, height=0.6)
        axes.plot(row.scores, np.full(len(row.scores), y), ".", color="k", alpha=0.25, markersize=4, clip_on=False)
        if not np.isnan(row.low):
            axes.plot([row.low, row.high], [y, y], color="k", linewidth=1.6)
        axes.text(1.03, y, _mark(row), va="center", fontsize=8)
        names.append(row.name)
    if result.random:
        axes.barh(len(rows), np.mean(result.random), color="0.85", height=0.6)
        axes.plot(
            result.random,
            np.full(len(result.random), len(rows)),
            ".",
            color="k",
            alpha=0.25,
            markersize=4,
            clip_on=False,
        )
        names.append("random | random")
    axes.axvline(0.5, color="0.5", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel(f"share of inputs whose logit of {result.target!r} rises along the concept", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_title(result.title, fontsize=9, loc="left", wrap=True)
    return _saved(figure, path)


def _mark(row: Any) -> str:
    if row.doubtful:
        return "not known here"
    if np.isnan(row.p):
        return "not tested"
    chance = "p < 0.0001" if row.p < 1e-4 else f"p = {row.p:.2g}"
    return f"{_verdict(row)}  {chance}"


def _verdict(row: Any) -> str:
    if row.significant:
        return "★ small" if row.small else "★"
    return "?" if row.doubtful else "n.s."


def scores_view(result: Any, title: str = "") -> View:
    """The bars as part of a page."""
    bars = [Bar(row.name, row.mean) for row in result.rows]
    if result.random:
        bars.append(Bar("random | random", float(np.mean(result.random)), special=True))
    scale = Scale(0.0, 1.0, meaning="share of inputs")
    vectors = len(result.rows[0].scores) if result.rows else 0
    facts = (
        Fact("model", result.model),
        Fact("asked about", f"{result.inputs} inputs of '{result.target}', at {result.layer}"),
        Fact("concept vectors", f"{vectors} for each bar"),
        Fact("not by chance", ", ".join(row.name for row in result.rows if row.significant) or "none of them"),
    )
    return View(title or result.title, (Panel((Bars(tuple(bars), scale),), wide=True),), facts, tuple(result.warnings))


def show_scores(result: Any) -> None:
    """A table, with what to doubt below it."""
    from rich.console import Console
    from rich.table import Table

    table = Table(show_edge=False, pad_edge=False, box=None)
    for name in ("concept", "score", "95 % limits", "p", "", "accuracy", "magnitude"):
        table.add_column(name, justify="left" if name == "concept" else "right")
    for row in result.rows:
        table.add_row(
            row.name,
            f"{row.mean:.2f}",
            "" if np.isnan(row.low) else f"{row.low:.2f} – {row.high:.2f}",
            "" if np.isnan(row.p) else f"{row.p:.2g}",
            _verdict(row),
            f"{row.accuracy:.2f}",
            f"{row.magnitude:+.3g}",
        )
    if result.random:
        size = result.random_magnitude
        spread = "" if np.isnan(size) else f"±{size:.3g}"
        table.add_row("random | random", f"{np.mean(result.random):.2f}", "", "", "", "", spread)
    console = Console()
    console.print(result.title, style="bold", highlight=False)
    console.print(table)
    _notes(console, result.warnings)


def _notes(console: Any, notes: Iterable[str]) -> None:
    for note in notes:
        console.print(f"[yellow]note:[/] {note}")


def maximized_picture(result: Any, path: str | Path | None = None) -> Any:
    """The picture (or the tokens) that was found, beside the course of the objective."""
    figure = _figure(7.0, 3.3)
    left, right = figure.subplots(1, 2)
    left.axis("off")
    if result.image is not None:
        left.imshow(result.image, interpolation="nearest")
        left.set_title(f"reaches {result.value:.3g}, checkerboard {result.checkerboard:.2f}", fontsize=9)
    else:
        left.text(0.0, 0.5, "\n".join(textwrap.wrap(" ".join(result.tokens), 28)), fontsize=10, va="center")
        left.set_title(f"these tokens reach {result.value:.3g}", fontsize=9, loc="left")
    right.plot(result.history, color=SURE, linewidth=1.3)
    right.set_xlabel("step", fontsize=8)
    right.set_ylabel("activation", fontsize=8)
    right.tick_params(labelsize=8)
    right.grid(alpha=0.25)
    figure.suptitle(f"{result.model}: what raises {result.unit}", fontsize=10, x=0.01, ha="left")
    return _saved(figure, path)
