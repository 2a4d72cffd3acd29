"""Formulas on the attention maps of one stream of tokens, and of attention inside windows.

A layer is a map (B, Q, K) with R[i, j] = relevance of input j for output i; later layers multiply on the left. A last
layer that computes only a few rows (the CLS of FT-Transformer) is a map with fewer rows, whose identity part is at the
key position its query came from: it is never broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import accumulate
from typing import Annotated

import torch
from torch import Tensor

from whyformer.errors import BadInput, UnknownName
from whyformer.parameters import OneOf, Place, Places
from whyformer.results.types import Record, Site
from whyformer.run import Attribution, Run
from whyformer.shapes import BHQK, BK, BN, BQ, BQK, AnyBQK
from whyformer.study.schedule import Windows

HEAD_REDUCTIONS = ("mean", "max", "min", "sum")
LAYER_REDUCTIONS = ("last", "mean", "product")
Heads = Annotated[str, OneOf(*HEAD_REDUCTIONS)] | Place | Places
Layers = Annotated[str, OneOf(*LAYER_REDUCTIONS)] | Place | Places


def over_heads(maps_BHQK: BHQK, heads: str | int | Sequence[int]) -> BQK:
    """Reduce the heads: by name, one head, or the mean of a list of heads."""
    if isinstance(heads, str):
        if heads not in HEAD_REDUCTIONS:
            raise UnknownName("value of heads", heads, [*HEAD_REDUCTIONS, "a head number", "a list of them"])
        reduced: Tensor = getattr(torch, "a" + heads if heads in {"max", "min"} else heads)(maps_BHQK, 1)
        return reduced
    chosen = [heads] if isinstance(heads, int) else list(heads)
    _within("heads", chosen, maps_BHQK.shape[1])
    # Indexed one by one: a list of indices would have to be copied to the device first.
    return torch.stack([maps_BHQK[:, head] for head in chosen], 1).mean(1)


def chosen_layers(layers: str | int | Sequence[int], count: int) -> list[int]:
    """Return the numbers of the chosen layers; negative numbers count from the end."""
    if layers == "last":
        return [count - 1]
    if isinstance(layers, str) and layers in {"mean", "product"}:
        return list(range(count))
    if isinstance(layers, str):
        raise UnknownName("value of layers", layers, ["last", "mean", "product", "a layer number", "a list of them"])
    chosen = [layers] if isinstance(layers, int) else list(layers)
    _within("layers", chosen, count)
    return [i % count for i in chosen]


def _within(name: str, chosen: Sequence[int], count: int) -> None:
    bad = [i for i in chosen if not isinstance(i, int) or not -count <= i < count]
    if bad or not chosen:
        raise BadInput(f"{name}={list(chosen)}: there are {count}, numbered 0 to {count - 1}.")


def real(map_BQK: BQK, keep_BN: BN, site: Site) -> BQK:
    """Set padding rows and columns to zero, so that no sum, rank or normalisation includes them."""
    keep = keep_BN.to(map_BQK.dtype)
    rows = keep[:, site.first_query : site.first_query + map_BQK.shape[1]]
    return map_BQK * rows[:, :, None] * keep[:, None, :]


def plus_identity(map_BQK: BQK, first_query: int, share: float = 1.0) -> BQK:
    """Add the residual: A + share·I."""
    result = map_BQK.clone()
    result.diagonal(first_query, dim1=-2, dim2=-1).add_(share)
    return result


def row_normalized(map_BQK: BQK) -> BQK:
    """Divide rows by their sum; a zero row stays zero."""
    total = map_BQK.sum(-1, keepdim=True)
    return map_BQK / total.masked_fill(total == 0, math.inf)


def with_residual(map_BQK: BQK, first_query: int, residual: float, normalize: bool) -> BQK:
    """Return rownorm((1-a)·A + a·I); without normalisation A + a/(1-a)·I, which is A + I at a = 0.5."""
    if not 0 <= residual <= 1:
        raise BadInput(f"residual={residual}: the weight of the residual is between 0 and 1.")
    if normalize or residual == 1:
        return row_normalized(plus_identity((1 - residual) * map_BQK, first_query, residual))
    return plus_identity(map_BQK, first_query, residual / (1 - residual))


def with_ratio(map_BQK: BQK, first_query: int, ratio_BQ: BQ) -> BQK:
    """Give the share r_i of row i to the other positions, in proportion to A, and 1 - r_i to position i itself."""
    eye = plus_identity(torch.zeros_like(map_BQK), first_query)
    ratio_BQ1 = ratio_BQ[..., None].to(map_BQK.dtype)
    others = row_normalized(map_BQK * (1 - eye))
    stays = torch.where(others.sum(-1, keepdim=True) > 0, 1 - ratio_BQ1, 1.0)  # the only position keeps all of it
    return ratio_BQ1 * others + stays * eye


def product(maps: Sequence[AnyBQK]) -> AnyBQK:
    """Return A_L ··· A_1."""
    return reduce(lambda earlier, later: torch.bmm(later, earlier), maps)


def cumulative(maps: Sequence[AnyBQK]) -> list[AnyBQK]:
    """Return the product after each layer."""
    return list(accumulate(maps, lambda earlier, later: torch.bmm(later, earlier)))


def discard_smallest(map_BQK: BQK, share: float, keep_BN: BN, site: Site, protected_BN: BN | None) -> BQK:
    """Set the ``share`` smallest entries of each input to zero, without padding; ties are broken by position."""
    if not 0 <= share < 1:
        raise BadInput(f"discard={share}: a share of the entries, from 0 up to but not including 1.")
    if share == 0:
        return map_BQK
    result = map_BQK.clone()
    queries = map_BQK.shape[1]
    for row in range(len(map_BQK)):
        columns = keep_BN[row].nonzero()[:, 0]
        rows = keep_BN[row, site.first_query : site.first_query + queries].nonzero()[:, 0]
        block = result[row][rows[:, None], columns]
        order = block.flatten().argsort(stable=True)
        drop = order[: int(share * block.numel())]
        if protected_BN is not None:
            guard = protected_BN[row, columns][None] | protected_BN[row, rows + site.first_query][:, None]
            drop = drop[~guard.flatten()[drop]]
        flat = block.flatten()
        flat[drop] = 0
        result[row][rows[:, None], columns] = flat.view_as(block)
    return result


def read_row(map_BQK: BQK, readout_BN: BN, first_query: int = 0) -> BK:
    """Return the weighted sum of the rows that feed the head."""
    weights = readout_BN[:, first_query : first_query + map_BQK.shape[1]]
    return torch.einsum("bq,bqk->bk", weights.to(map_BQK.dtype), map_BQK)


def maps_of(record: Record, start_layer: int = 0) -> tuple[Site, ...]:
    """Return the sites from ``start_layer`` on."""
    count = len(record.sites)
    if not -count <= start_layer < count:
        raise BadInput(f"start_layer={start_layer}: the model has {count} layers, numbered 0 to {count - 1}.")
    return record.sites[start_layer % count :]


# Attention inside windows (Swin)
#
# A map inside windows becomes a map over all tokens that is zero between windows. Where the model merges tokens, rows
# of relevance are averaged in the same way: R ← M·R. So R of the last stage has one column per patch of the first.


def over_windows(
    run: Run,
    grad: bool,
    reduce: Callable[[Site], AnyBQK],
    with_residual: Callable[[AnyBQK], AnyBQK],
    start_layer: int = 0,
) -> Attribution:
    """Multiply maps with residual, A_L ··· M ··· A_1, and read the mean of the last tokens, which the head pools."""
    windows, sites = run.windows, run.record(grad=grad, multi_stream=True).sites
    relevance: AnyBQK | None = None
    stage = 0
    for number in chosen_layers(list(range(len(sites)))[start_layer:], len(sites)):
        layer = with_residual(windows.whole(reduce(sites[number]), number))
        now = windows.placements[number].stage
        if relevance is None:
            relevance = _merged_identity(windows, layer, now)
        else:
            relevance = windows.merged(relevance, stage, now)
        relevance, stage = layer @ relevance, now
    assert relevance is not None
    return Attribution(relevance.mean(1), matrix_BQK=relevance)


def over_one_layer(
    run: Run, grad: bool, reduce: Callable[[Site], AnyBQK], layers: str | int | Sequence[int]
) -> Attribution:
    """Read each chosen map as the mean over its tokens, spread over the patches that these are made of."""
    windows, choice = run.windows, partial(chosen_layers, layers)
    record = run.record(grad=True, multi_stream=True) if grad else run.layers_of(choice, multi_stream=True)
    sites, rows, whole = record.sites, [], None
    for number in chosen_layers(layers, len(sites)):
        layer = windows.whole(reduce(sites[number]), number)
        whole = layer @ _merged_identity(windows, layer, windows.placements[number].stage)
        rows.append(whole.mean(1))
    return Attribution(torch.stack(rows).mean(0), matrix_BQK=whole if len(rows) == 1 else None)


def _merged_identity(windows: Windows, like_BNN: AnyBQK, stage: int) -> AnyBQK:
    eye = torch.eye(windows.sizes[0], dtype=like_BNN.dtype, device=like_BNN.device)
    return windows.merged(eye.expand(len(like_BNN), -1, -1), 0, stage)
