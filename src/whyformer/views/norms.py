"""Pictures of value norms: attention weights against the length of what they weigh, and a map level by level."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from whyformer.errors import BadInput, MissingExtra
from whyformer.types import Explanation, Units
from whyformer.views.color import SEQUENTIAL

Array = np.ndarray[Any, Any]
COLOURS = ("#999999", "#d55e00", "#2166ac", "#009e73", "#cc79a7", "#e69f00")
OTHER, PUNCTUATION = "other", "punctuation"


class HasNorms(Protocol):
    """What ``methods.value_norms.weighed`` returns."""

    @property
    def units(self) -> Units: ...
    @property
    def attention(self) -> Sequence[Array]: ...
    @property
    def norms(self) -> Sequence[Array]: ...


def token_types(units: Units) -> list[str]:
    """Special tokens by name, punctuation, and the rest ("patch" in images)."""
    rest = "patch" if units.grid is not None else OTHER
    kinds = []
    for label, special in zip(units.labels, units.special, strict=True):
        bare = label.removeprefix("##").lstrip("Ġ▁ ")
        if special:
            kinds.append(label)
        elif bare and all(c in string.punctuation for c in bare):
            kinds.append(PUNCTUATION)
        else:
            kinds.append(rest)
    return kinds


def weights_by_type(inputs: Sequence[HasNorms], layer: int | None = None) -> dict[str, tuple[Array, Array]]:
    """Per token type: attention received (mean over queries) and ‖f(x)‖, one entry per layer, head and token."""
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


def plot_weights_against_norms(
    inputs: HasNorms | Sequence[HasNorms], layer: int | None = None, path: str | Path | None = None
) -> Any:
    """Attention weight against ‖f(x)‖, one point per layer, head and token, coloured by token type.

    Tokens that get much attention and little norm (lower right) are looked at, but not taken from. ``layer`` draws one
    layer only. Returns a matplotlib figure.
    """
    several = list(inputs) if isinstance(inputs, Sequence) else [inputs]
    if not several:
        raise BadInput("there is nothing to draw: the list of inputs is empty.")
    points = weights_by_type(several, layer)
    figure = _figure(6.4, 4.4)
    axes = figure.add_subplot()
    commonest = sorted(points, key=lambda kind: -len(points[kind][0]))  # the crowd is drawn first, below
    for colour, kind in zip(np.resize(COLOURS, len(commonest)), commonest, strict=True):
        axes.scatter(*points[kind], s=9, alpha=0.55, color=str(colour), label=kind, linewidths=0)
    from scipy.stats import spearmanr

    both = [np.concatenate([points[kind][axis] for kind in points]) for axis in (0, 1)]
    rank = float(spearmanr(*both).statistic) if min(np.ptp(b) for b in both) > 0 else float("nan")
    where = "all layers" if layer is None else f"layer {layer}"
    axes.set_title(f"{where}: rank correlation {rank:+.2f}", fontsize=10, loc="left")
    axes.set_xlabel("attention weight α, mean over queries")
    axes.set_ylabel("‖f(x)‖")
    axes.set_xscale("log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, markerscale=2)
    return _saved(figure, path)


def plot_levels(explanations: Sequence[Explanation], layer: int | None = None, path: str | Path | None = None) -> Any:
    """The maps of several explanations (value_norms at levels "attn", "attn_res", "attn_res_ln") side by side.

    Rows are shown as shares of their sum, on one colour scale, so that what the residual stream takes is seen.
    ``layer`` draws one layer (explain with ``keep_layers=True``), otherwise the map of the whole model is drawn.
    """
    if not explanations:
        raise BadInput("there is nothing to draw: the list of explanations is empty.")
    maps = [_shares(_map(one, layer)) for one in explanations]
    labels = explanations[0].units.labels
    count = len(labels)
    side = float(np.clip(0.19 * count, 2.2, 6.0))
    figure = _figure(len(maps) * (side + 0.3) + 1.3, side + 1.3)
    high = max(float(m.max()) for m in maps)
    cells = figure.subplots(1, len(maps), squeeze=False)[0]
    for number, (axes, share, one) in enumerate(zip(cells, maps, explanations, strict=True)):
        image = axes.imshow(share, cmap=_sequential(), vmin=0, vmax=high, aspect="equal", interpolation="nearest")
        axes.set_title(str(one.options.get("level", one.method)), fontsize=9)
        shown = range(count) if count <= 40 else []
        axes.set_xticks(list(shown), [labels[i] for i in shown], rotation=90, fontsize=6)
        axes.set_yticks([], [])
        if number == 0 and share.shape[0] == count:
            axes.set_yticks(list(shown), [labels[i] for i in shown], fontsize=6)
    figure.colorbar(image, ax=list(cells), fraction=0.03, pad=0.01).ax.tick_params(labelsize=7)
    where = "whole model" if layer is None else f"layer {layer}"
    figure.suptitle(f"{where}: share of each position (row) that comes from each token (column)", fontsize=9)
    return _saved(figure, path)


def _map(explanation: Explanation, layer: int | None) -> Array:
    found = explanation.matrix if layer is None else explanation.layers
    if not isinstance(found, np.ndarray):
        what = "a map" if layer is None else "maps per layer; explain with keep_layers=True"
        raise BadInput(f"this explanation by {explanation.method} holds no {what}.")
    if layer is not None and not -len(found) <= layer < len(found):
        raise BadInput(f"layer={layer}: there are {len(found)}, numbered 0 to {len(found) - 1}.")
    return found if layer is None else found[layer]


def _shares(rows: Array) -> Array:
    total = rows.sum(-1, keepdims=True)
    return np.divide(rows, total, out=np.zeros_like(rows), where=total > 0)


def _sequential() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("whyformer", SEQUENTIAL)


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plot", "plotting") from None
    return Figure(figsize=(width, height), layout="constrained")


def _saved(figure: Any, path: str | Path | None) -> Any:
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
