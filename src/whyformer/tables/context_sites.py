"""Which attentions of a model run over training rows, where those stand among the keys, and which token a column is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.roles import Observe, Recorder
from whyformer.capture.site import Layout, OpenSite
from whyformer.errors import NothingCaptured, NotOffered

NEGLIGIBLE = 1e-3  # of the largest move: columns that are scaled together move each other a little
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]  # training rows, answers, one row → its logits


class _AnyLayout:
    """Leave axes besides query and key as they are: sums over them do not depend on which are heads."""

    def _open(
        self, weights: Tensor, value: Tensor, contraction: Any, axes: Any, sources: Any, *_: Any, **__: Any
    ) -> OpenSite:
        others = [i for i in range(weights.ndim) if i not in (contraction.query, contraction.key)]
        order, split = (*others, contraction.query, contraction.key), tuple(weights.shape[i] for i in others)
        layout = Layout(order, (split or (1,)), ("B",) * max(len(split), 1), 1, 2)  # 2: never one head of several
        return super()._open(weights, value, contraction, axes, sources, layout)  # type: ignore[misc]


class ContextRecorder(_AnyLayout, Recorder):
    """Attention maps with their gradients, of any number of axes."""


class _WatchRows(_AnyLayout, Observe):
    """The same without gradients."""


def last_two(site: OpenSite, tensor: Tensor) -> Tensor:
    """A map (or its gradient) with query and key at the end."""
    return tensor.permute(site.layout.order)


@dataclass(frozen=True)
class ContextSite:
    """What one attention runs over. ``kind``: "rows", "columns" (of one row each), or "other"."""

    path: str
    kind: str
    first_row: int  # of the training rows among the keys


@dataclass(frozen=True)
class Arrangement:
    """All attentions of a model, in order, and the token that each column is made into (None: several, or none)."""

    places: tuple[ContextSite, ...]
    tokens: tuple[int | None, ...]
    forwards: int
    rescaled: bool = False  # one training row changes what the first attention reads of the others

    @property
    def over_rows(self) -> list[int]:
        return [i for i, place in enumerate(self.places) if place.kind == "rows"]


def arrangement_of(
    forward: Forward, names: dict[int, str], context: Tensor, answers: Tensor, row: Tensor
) -> Arrangement:
    """Found by running the model: with one training row less, and with single numbers of the first one changed."""
    if len(context) < 3:
        raise NotOffered(f"{len(context)} training rows are too few to distinguish rows from columns: give 3 or more.")

    def sites_of(known: Tensor, told: Tensor) -> list[OpenSite]:
        watch = _WatchRows(1, names)
        with torch.no_grad(), watch:
            forward(known, told, row)
        return watch.sites

    whole, fewer = sites_of(context, answers), sites_of(context[:-1], answers[:-1])
    if not whole:
        raise NothingCaptured(
            "no attention was captured, and training rows are scored by their attention. Use "
            "method='input_x_gradient' with rows='cells', which needs gradients only."
        )
    if len(whole) != len(fewer):
        raise NotOffered("the number of attention calls changes with the number of training rows: not supported.")
    # An axis over rows is shorter with fewer of them; a row, or column, is where the first attention reads a change.
    kinds = [_kind(a, b) for a, b in zip(whole, fewer, strict=True)]
    moved = context.clone()
    moved[0] = context[0] * -1.5 + 0.7
    first, rescaled = _first_row(whole, sites_of(moved, answers), kinds, len(context))
    places = tuple(
        ContextSite(site.path, kind, first if kind == "rows" else 0) for site, kind in zip(whole, kinds, strict=True)
    )
    tokens, passes = _tokens(whole, kinds, first, context, lambda known: sites_of(known, answers))
    return Arrangement(places, tokens, 3 + passes, rescaled)


def _kind(site: OpenSite, with_fewer: OpenSite) -> str:
    a, b = (last_two(s, s.attention).shape for s in (site, with_fewer))
    if len(a) != len(b):
        return "other"
    if a[-1] - b[-1] == 1:
        return "rows"
    leads = [i for i in range(len(a) - 2) if a[i] != b[i]]
    return "columns" if leads and a[-2:] == b[-2:] else "other"


def _keys_first(site: OpenSite) -> Tensor:
    """(K, …) the values of one attention."""
    return site.value.movedim(site.contraction.value_key, 0).flatten(1)


def _first_row(
    whole: Sequence[OpenSite], moved: Sequence[OpenSite], kinds: Sequence[str], rows: int
) -> tuple[int, bool]:
    if "rows" not in kinds:
        return 0, False
    at = kinds.index("rows")
    change_K = (_keys_first(whole[at]) - _keys_first(moved[at])).abs().amax(1)
    first = int(change_K.argmax())
    if first + rows > len(change_K):
        raise NotOffered(
            f"training row 0 is key {first} of {len(change_K)}, so {rows} training rows cannot follow from there: the "
            "model reorders them, which is not supported."
        )
    return first, int((change_K > NEGLIGIBLE * change_K.max()).sum()) > 1


def _tokens(
    whole: Sequence[OpenSite],
    kinds: Sequence[str],
    first: int,
    context: Tensor,
    sites_of: Callable[[Tensor], list[OpenSite]],
) -> tuple[tuple[int | None, ...], int]:
    """The token of each column: whose values change when the column of the first training row does."""
    at = next((i for i, kind in enumerate(kinds) if kind in {"rows", "columns"}), None)
    if at is None:
        return (None,) * context.shape[1], 0
    plain, made = _of_first_row(whole[at], kinds[at], first), []
    for column in range(context.shape[1]):
        changed = context.clone()
        changed[0, column] = context[0, column] * -1.5 + 0.7
        moves = (_of_first_row(sites_of(changed)[at], kinds[at], first) - plain).abs().amax(1)
        alone = int((moves > NEGLIGIBLE * moves.max()).sum()) == 1
        made.append(int(moves.argmax()) if alone else None)
    return tuple(made), context.shape[1]


def _of_first_row(site: OpenSite, kind: str, first: int) -> Tensor:
    """(tokens, …) the values of the first training row, token by token."""
    value = site.value.movedim(site.contraction.value_key, 0)  # (K, lead…, D) in the value's own order
    while value.ndim > 4 and value.shape[1] == 1:
        value = value[:, 0]
    if kind == "rows":
        return value[first].flatten(1) if value.ndim > 3 else value[first][None].flatten(1)
    return value[:, first].flatten(1)


def row_weights(sites: Sequence[OpenSite], gradients: Sequence[Tensor], arrangement: Arrangement, rows: int) -> Tensor:
    """(R,) ∂s/∂w_r at w = 1, where a training row of weight w counts w times in every softmax over rows.

    A_qk = w_k e^{z_qk} / Σ_j w_j e^{z_qj}: at w = 0 the row is left out, at 1 it is there as it is, at 2 it is there
    twice. With G = ∂s/∂A: ∂s/∂w_r = Σ_q A_qr (G_qr - Σ_k A_qk G_qk), summed over all attentions over rows and heads.
    """
    total = torch.zeros(rows, dtype=torch.float32, device=sites[0].attention.device)
    for number in arrangement.over_rows:
        attention, gradient = _pair(sites[number], gradients[number])
        slope = attention * (gradient - (attention * gradient).sum(-1, keepdim=True))
        first = arrangement.places[number].first_row
        total += slope.flatten(0, -2).sum(0)[first : first + rows]
    return total


def _pair(site: OpenSite, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return last_two(site, site.attention.detach()).float(), last_two(site, gradient).float()


def _of_one_table(tensor: Tensor) -> Tensor:
    """Without axes of size 1 in front of tokens or rows, heads, queries and keys."""
    while tensor.ndim > 4 and tensor.shape[0] == 1:
        tensor = tensor[0]
    return tensor


def cell_relevance(
    sites: Sequence[OpenSite], gradients: Sequence[Tensor], arrangement: Arrangement
) -> tuple[Tensor, int]:
    """(T, W) relevance of each token of each row, the asked one last; and which row is the first training row.

    Generic attention (Chefer et al. 2021, eqs. 5 and 6) over all cells at once, R ← R + Ā R, where Ā is made of blocks:
    an attention over rows joins the cells of one column, one over columns those of one row. Only the row of R that
    feeds the output is followed, from the last attention to the first: r ← r + Āᵀ r.
    """
    if None in arrangement.tokens:
        raise NotOffered(
            f"column {arrangement.tokens.index(None)} reaches several tokens before any attention, or none, so it has "
            "no single token. Use method='input_x_gradient', which does not need one."
        )
    grids = [_grid(s, g, arrangement, i) for i, (s, g) in enumerate(zip(sites, gradients, strict=True))]
    count = _rows(grids)
    relevance = None
    for layer in reversed(_layers(arrangement)):
        map_, kind = grids[layer[-1]]
        width = map_.shape[0] if kind == "rows" else map_.shape[-1]
        if relevance is None or (relevance.shape[1] == 1 and width > 1):
            read = _read_tokens(last_two(sites[layer[-1]], gradients[layer[-1]]), kind, width)
            start = torch.zeros(count, width, device=map_.device)
            above = torch.eye(count, device=map_.device)[:, -1:] if relevance is None else relevance
            start[:, read] = above / len(read)
            relevance = start
        if width != relevance.shape[1]:
            raise NotOffered(
                f"{arrangement.places[layer[-1]].path or 'an attention'} runs over {width} tokens per row and a later "
                f"one over {relevance.shape[1]}: the correspondence between them is not known. Use "
                "method='input_x_gradient', which does not need it."
            )
        asked = relevance
        for number in layer:
            map_, kind = grids[number]
            relevance = relevance + (_by_rows if kind == "rows" else _by_columns)(map_, asked)
    assert relevance is not None
    first = next(p.first_row for p in arrangement.places if p.kind == "rows")
    return relevance.cpu(), first


def _rows(grids: Sequence[tuple[Tensor, str]]) -> int:
    """How many rows there are, with what the model adds: the asked one may look at the others in a call of its own."""
    sizes = [max(map_.shape[1], map_.shape[2] + (map_.shape[1] == 1)) for map_, kind in grids if kind == "rows"]
    if not sizes:
        raise NotOffered("attention of this model does not run over training rows: use method='input_x_gradient'.")
    return max([*sizes, *(len(map_) for map_, kind in grids if kind == "columns")])


def _layers(arrangement: Arrangement) -> list[list[int]]:
    """Numbers of attentions, those of one module over rows together: training rows and asked ones, each in a call."""
    layers: list[list[int]] = []
    for number, place in enumerate(arrangement.places):
        before = arrangement.places[number - 1] if number else None
        if before is not None and place.kind == before.kind == "rows" and place.path and place.path == before.path:
            layers[-1].append(number)
        else:
            layers.append([number])
    return layers


def _grid(site: OpenSite, gradient: Tensor, arrangement: Arrangement, number: int) -> tuple[Tensor, str]:
    """(tokens, Q, K) of an attention over rows, (rows, Q, K) of one over columns: Ā, the mean over heads."""
    place = arrangement.places[number]
    if place.kind == "other":
        raise NotOffered(
            f"{place.path or 'an attention of the model'} runs neither over rows nor over the columns of a row "
            "(inducing points?), so relevance cannot be propagated through it. Use method='input_x_gradient'."
        )
    attention, slope = map(_of_one_table, _pair(site, gradient))
    if attention.ndim != 4:
        raise NotOffered(
            f"{place.path or 'an attention of the model'} has maps of shape {tuple(attention.shape)}, in which heads "
            "cannot be distinguished from rows or columns. Use method='input_x_gradient'."
        )
    return (attention * slope).clamp(min=0).mean(1), place.kind


def _read_tokens(gradient: Tensor, kind: str, width: int) -> list[int]:
    """Tokens of the asked row at which an attention has a gradient; all where it has none at all."""
    gradient = _of_one_table(gradient)
    sizes = gradient[:, :, -1].abs().amax((1, 2)) if kind == "rows" else gradient[-1].abs().amax((0, 2))
    read = (sizes > 0).nonzero()[:, 0].tolist()
    return read or list(range(width))


def _by_rows(map_WQK: Tensor, relevance_TW: Tensor) -> Tensor:
    """Āᵀ r where each column's cells look at each other, or at those of training rows alone."""
    queries, keys = map_WQK.shape[-2:]
    asking = relevance_TW[-1:] if queries == 1 else relevance_TW[:queries]
    added = torch.zeros_like(relevance_TW)
    added[:keys] = torch.einsum("wqk,qw->kw", map_WQK, asking)
    return added


def _by_columns(map_RQK: Tensor, relevance_TW: Tensor) -> Tensor:
    """Āᵀ r where the cells of each row look at each other; of some rows only: the asked one, or all before it."""
    rows = len(map_RQK)
    place = slice(-1, None) if rows == 1 else slice(0, rows)
    added = torch.zeros_like(relevance_TW)
    added[place] = torch.einsum("rqk,rq->rk", map_RQK, relevance_TW[place])
    return added
