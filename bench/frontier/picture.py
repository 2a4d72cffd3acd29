"""The frontier as a picture: faithfulness upwards, passes to the right, every point with its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.frontier.claims import from_saved
from bench.frontier.contenders import OURS, REFERENCE
from bench.frontier.subject import BETTER, FALLS, Array, Row
from whyformer.evidence import spread

OURS_COLOUR, REFERENCE_COLOUR, COLOUR, LINE = "#b2182b", "#1b7837", "#2166ac", "0.75"
LEGEND = {
    OURS_COLOUR: "this library's own",
    REFERENCE_COLOUR: "what methods of one pass are compared with",
    COLOUR: "from the literature",
}
WIDE, SIZE = 5.0, 7.5  # passes up to which names stand on the left, and the size of their letters
LEFT, RIGHT = 0.9, 1.1  # where names end, and begin, as multiples of the first and last number of passes
LINE_HEIGHT = 0.034  # of the axes, per name
HIGHEST = 0.98  # of the panel: the title is above it


def draw(saved: dict[str, Any], path: Path) -> Path:
    """Two panels, one per measure; bars are 95 % limits, the line joins what nothing cheaper beats."""
    from matplotlib.figure import Figure

    rows = list(from_saved(saved["rows"]).values())
    figure = Figure(figsize=(9.5, 11.5), layout="constrained", facecolor="white")
    panels = figure.subplots(2, 1, sharex=True)
    for column, (axes, measure) in enumerate(zip(panels, FALLS, strict=True)):
        _panel(axes, rows, column, measure)
    panels[-1].set_xlabel("forwards + backwards per input")
    for x, (colour, words) in zip((0.05, 0.3, 0.72), LEGEND.items(), strict=True):
        panels[0].text(x, -0.1, words, color=colour, fontsize=SIZE + 1, transform=panels[0].transAxes)
    words = str(saved["made_of"]).split(";")[0]
    panels[0].set_title(f"{saved['subject']}: {words}", loc="left", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    return path


def _panel(axes: Any, rows: Sequence[Row], column: int, measure: str) -> None:
    passes = np.array([row.passes for row in rows])
    means, low, high = (np.array(x) for x in zip(*(_limits(row, column) for row in rows), strict=True))
    axes.set_xscale("log")
    first, last = passes.min(), max(passes.max(), 2 * passes.min())
    axes.set_xlim(first / 12, last * 9)
    room = 0.05 * (high.max() - low.min())
    axes.set_ylim(low.min() - room, high.max() + room)
    if BETTER[measure] < 0:
        axes.invert_yaxis()
    front = staircase(passes, means * BETTER[measure])
    axes.step(passes[front], means[front], where="post", color="0.55", linewidth=1, zorder=1)
    shown_at = beside(passes, means)
    for row, x, y, a, b in zip(rows, shown_at, means, low, high, strict=True):
        colour = colour_of(row.name)
        axes.errorbar(x, y, [[y - a], [b - y]], fmt="o", markersize=4, color=colour, elinewidth=0.5, alpha=0.9)
    left = passes <= WIDE
    for chosen, x, side in ((left, first * LEFT, "right"), (~left, last * RIGHT, "left")):
        _names(axes, [r for r, c in zip(rows, chosen, strict=True) if c], shown_at[chosen], means[chosen], x, side)
    axes.set_ylabel(f"{measure} ({'higher' if BETTER[measure] > 0 else 'lower'} is better)")
    axes.set_xticks([1, 2, 4, 10, 25, 50, 100, 200], ["1", "2", "4", "10", "25", "50", "100", "200"])
    axes.set_xticks([], minor=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelbottom=True)


def _names(axes: Any, rows: Sequence[Row], x_R: Array, y_R: Array, at: float, side: str) -> None:
    """Names in one column beside the points, moved apart until none covers another, with a line to their point."""
    bottom, top = axes.get_ylim()
    height = (y_R - bottom) / (top - bottom)
    for row, x, y, shown in zip(rows, x_R, y_R, spaced(height, LINE_HEIGHT), strict=True):
        place = (at * (0.62 if side == "right" else 1.6), bottom + shown * (top - bottom))
        axes.plot([place[0], at, x], [place[1], y, y], color=LINE, linewidth=0.5, zorder=0)
        weight = "bold" if row.name in OURS or row.name == REFERENCE else "normal"
        name = row.name if side == "right" else f"{row.name} ({row.passes:.3g})"
        axes.text(*place, name, ha=side, va="center", fontsize=SIZE, color=colour_of(row.name), weight=weight)


def beside(passes_R: Array, mean_R: Array) -> Array:
    """Where points stand: those of as many passes a little beside each other, so that their bars can be told apart."""
    result = passes_R.astype(float).copy()
    for same in np.unique(passes_R):
        rows = np.flatnonzero(passes_R == same)
        order = rows[np.argsort(mean_R[rows])]
        result[order] = same * 10 ** (0.2 * (np.arange(len(rows)) - (len(rows) - 1) / 2) / max(len(passes_R), 1))
    return result


def _limits(row: Row, column: int) -> tuple[float, float, float]:
    mean, low, high = spread(row.values_IM[:, [column]])
    return float(mean[0]), float(low[0]), float(high[0])


def colour_of(name: str) -> str:
    return OURS_COLOUR if name in OURS else REFERENCE_COLOUR if name == REFERENCE else COLOUR


def staircase(passes_R: Array, good_R: Array) -> Array:
    """The rows that no row of as few passes beats, from cheap to dear."""
    best, chosen = -np.inf, []
    for index in np.lexsort((-good_R, passes_R)):
        if good_R[index] > best:
            best = good_R[index]
            chosen.append(index)
    return np.array(chosen)


def spaced(height_R: Array, least: float) -> Array:
    """Heights moved as little as needed so that neighbours are ``least`` apart: blocks that touch are joined."""
    order = np.argsort(height_R, kind="stable")
    blocks: list[list[float]] = []  # how many names, and the mean of where their first would like to be
    for wanted in height_R[order]:
        blocks.append([1, float(wanted)])
        while len(blocks) > 1 and blocks[-1][1] < blocks[-2][1] + least * blocks[-2][0]:
            count, start = blocks.pop()
            before = blocks[-1]
            before[1] = (before[0] * before[1] + count * (start - least * before[0])) / (before[0] + count)
            before[0] += count
    placed = np.array([start + least * i for count, start in blocks for i in range(int(count))])
    room = least * np.arange(len(placed))
    result = np.empty(len(height_R))
    result[order] = np.maximum(np.minimum(placed, HIGHEST - room[::-1]), room)  # inside the axes
    return result
