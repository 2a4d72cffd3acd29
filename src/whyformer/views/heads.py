"""Pictures and tables of attention heads: heat maps of layers × heads, pruning curves, layer profiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whyformer.errors import MissingExtra
from whyformer.views.color import DIVERGING, SEQUENTIAL

Array = np.ndarray[Any, Any]
Line = tuple[str, Array, Array, Array, Array]  # name, x, y, low, high
Panel = tuple[str, str, Array, Array, Array]  # name, unit, y, low, high

COLOURS = ("#2166ac", "#d55e00", "#009e73", "#cc79a7", "#999999", "#e69f00", "#332288", "#882255")


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


def grid(scores_LH: Array, title: str, *, signed: bool = False, path: str | Path | None = None) -> Any:
    """One heat map, layer 0 at the bottom as in the model; missing heads stay grey."""
    layers, heads = scores_LH.shape
    figure = _figure(max(4.5, 0.62 * heads + 1.9), max(2.8, 0.46 * layers + 1.5))
    axes = figure.add_subplot()
    image = _heat(axes, scores_LH, signed, _limit(scores_LH, signed))
    figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02).ax.tick_params(labelsize=7)
    axes.set_title(title, fontsize=9, loc="left", wrap=True)
    return _saved(figure, path)


def grids(
    maps: Sequence[tuple[str, Array]], title: str, *, signed: bool = False, path: str | Path | None = None
) -> Any:
    """Several heat maps on one scale."""
    layers, heads = maps[0][1].shape
    figure = _figure(len(maps) * max(2.6, 0.5 * heads + 0.7) + 0.8, max(2.8, 0.46 * layers + 1.5))
    limit = max(_limit(m, signed) for _, m in maps)
    all_axes = figure.subplots(1, len(maps), squeeze=False)[0]
    for axes, (name, scores) in zip(all_axes, maps, strict=True):
        image = _heat(axes, scores, signed, limit, small=True)
        axes.set_title(name, fontsize=9)
    figure.colorbar(image, ax=list(all_axes), fraction=0.03, pad=0.01).ax.tick_params(labelsize=7)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return _saved(figure, path)


def _limit(scores: Array, signed: bool) -> float:
    known = scores[~np.isnan(scores)]
    top = float(np.abs(known).max() if signed else known.max()) if known.size else 1.0
    return top if top > 0 else 1.0


def _heat(axes: Any, scores_LH: Array, signed: bool, limit: float, small: bool = False) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    layers, heads = scores_LH.shape
    low = -limit if signed else min(0.0, float(np.nanmin(scores_LH)))
    axes.set_facecolor("0.88")
    image = axes.imshow(
        np.ma.masked_invalid(scores_LH),
        cmap=LinearSegmentedColormap.from_list("heads", DIVERGING if signed else SEQUENTIAL),
        vmin=low,
        vmax=limit,
        aspect="auto",
        origin="lower",
    )
    axes.set_xticks(range(heads), [str(h) for h in range(heads)], fontsize=7)
    axes.set_yticks(range(layers), [str(layer) for layer in range(layers)], fontsize=7)
    axes.set_xlabel("head", fontsize=8)
    axes.set_ylabel("layer", fontsize=8)
    if not small and layers * heads <= 144:
        for layer in range(layers):
            for head in range(heads):
                value = scores_LH[layer, head]
                if not np.isnan(value):
                    dark = (abs(value) if signed else value - low) > 0.6 * (limit if signed else limit - low)
                    axes.text(
                        head, layer, _short(value), ha="center", va="center", fontsize=6.5, color="w" if dark else "k"
                    )
    return image


def _short(value: float) -> str:
    return f"{value:.2f}" if 0.01 <= abs(value) < 100 or value == 0 else f"{value:.0e}".replace("e-0", "e-")


def curves(lines: Sequence[Line], title: str, metric: str, *, path: str | Path | None = None) -> Any:
    """Metric against the share of heads kept; whole model on the left, bands are 95 % limits."""
    figure = _figure(6.4, 3.8)
    axes = figure.add_subplot()
    for colour, (name, kept, values, low, high) in zip(_colours(len(lines)), lines, strict=True):
        axes.plot(100 * kept, values, marker="o", markersize=3, linewidth=1.4, label=name, color=colour)
        axes.fill_between(100 * kept, low, high, alpha=0.15, color=colour, linewidth=0)
    axes.set_xlim(102, -2)
    axes.set_xlabel("heads kept, %", fontsize=9)
    axes.set_ylabel(metric, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.set_title(title, fontsize=9, loc="left")
    if len(lines) > 1:
        axes.legend(fontsize=8, frameon=False)
    return _saved(figure, path)


def _colours(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def panels(lines: Sequence[Panel], title: str, *, path: str | Path | None = None) -> Any:
    """One small panel per curve over the layers, all with the same axis."""
    figure = _figure(2.5 * len(lines) + 0.5, 2.9)
    all_axes = figure.subplots(1, len(lines), squeeze=False)[0]
    for axes, colour, (name, unit, values, low, high) in zip(all_axes, _colours(len(lines)), lines, strict=True):
        layers = np.arange(len(values))
        axes.plot(layers, values, marker="o", markersize=3.5, color=colour)
        axes.fill_between(layers, low, high, alpha=0.2, color=colour, linewidth=0)
        axes.set_title(name, fontsize=9)
        axes.set_ylabel(unit, fontsize=7)
        axes.set_xlabel("layer", fontsize=8)
        axes.set_xticks(layers if len(layers) <= 12 else layers[:: len(layers) // 8])
        axes.set_ylim(bottom=min(0.0, float(np.nanmin(values))))
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.25)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return _saved(figure, path)


# Terminal


def show_grid(scores_LH: Array, title: str, *, signed: bool = False, notes: Iterable[str] = ()) -> None:
    """A table of layers × heads, shaded by value; the last layer on top."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    limit = _limit(scores_LH, signed)
    table = Table(show_edge=False, pad_edge=False, box=None)
    table.add_column("layer", justify="right", style="dim")
    for head in range(scores_LH.shape[1]):
        table.add_column(f"head {head}", justify="right")
    for layer in reversed(range(len(scores_LH))):
        cells = [
            Text("" if np.isnan(v) else f" {_short(float(v))} ", style=_shade(float(v), limit))
            for v in scores_LH[layer]
        ]
        table.add_row(str(layer), *cells)
    console = Console()
    console.print(title, style="bold", highlight=False)
    console.print(table)
    for note in notes:
        console.print(f"[yellow]note:[/] {note}")


def _shade(value: float, limit: float) -> str:
    if np.isnan(value):
        return ""
    share = min(1.0, abs(value) / limit)
    fade = round(255 * (1 - share))
    ink = "white" if share > 0.6 else "black"
    red, green, blue = (fade, fade, 255) if value >= 0 else (255, fade, fade)
    return f"{ink} on rgb({red},{green},{blue})"


def show_curve(kept: Array, heads: int, values: Array, low: Array, high: Array, metric: str, title: str) -> None:
    """A table of the points of a pruning curve."""
    rows = [
        {"heads kept": f"{int(k)} of {heads}", metric: v, "95 % limits": f"{a:.3f} – {b:.3f}"}
        for k, v, a, b in zip(kept, values, low, high, strict=True)
    ]
    show_rows(rows, title)


def show_rows(rows: Sequence[dict[str, Any]], title: str) -> None:
    """Any list of rows as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(show_edge=False, pad_edge=False, box=None)
    for name in rows[0] if rows else ():
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console = Console()
    console.print(title, style="bold", highlight=False)
    console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, (float, np.floating)):
        return "" if np.isnan(value) else f"{value:.3f}"
    if isinstance(value, tuple):
        return ", ".join(f"{v:+d}" for v in value)
    return str(value)
