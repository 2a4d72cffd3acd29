"""Pictures of value norms: attention weights against the length of what they weigh, and a map level by level."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from whyformer.errors import BadInput
from whyformer.parameters import Place, checked
from whyformer.types import Explanation, Units
from whyformer.views.marks import Matrix, Points, Scale, Scatter
from whyformer.views.view import Panel, View

Array = np.ndarray[Any, Any]
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


@checked
def norms_scatter(inputs: HasNorms | Sequence[HasNorms], layer: Place | None = None) -> View:
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
    return View(
        f"Attention weights against norms, {where}: rank correlation {rank:+.2f}", (Panel((mark,)),), caption=caption
    )


@checked
def level_maps(explanations: Sequence[Explanation], layer: Place | None = None) -> View:
    """The maps of several explanations (value_norms at levels "attn", "attn_res", "attn_res_ln") side by side.

    Rows are shown as shares of their sum, on one colour scale, so that what the residual stream takes is seen.
    ``layer`` draws one layer (explain with ``keep_layers=True``), otherwise the map of the whole model is drawn.
    """
    if not explanations:
        raise BadInput("there is nothing to draw: the list of explanations is empty.")
    maps = [_shares(_map(one, layer)) for one in explanations]
    scale = Scale(0.0, max(float(m.max()) for m in maps), meaning="share of a row")
    labels = explanations[0].units.labels
    panels = []
    for share, one in zip(maps, explanations, strict=True):
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


def _shares(rows: Array) -> Array:
    total = rows.sum(-1, keepdims=True)
    return np.divide(rows, total, out=np.zeros_like(rows), where=total > 0)
