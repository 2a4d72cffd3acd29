"""Formulas on the attention maps of one stream of tokens, and of attention inside windows.

A layer is a map (B, Q, K) with R[i, j] = relevance of input j for output i; later layers multiply on the left. A last
layer that computes only a few rows (the CLS of FT-Transformer) is a map with fewer rows, whose identity part is at the
key position its query came from: it is never broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import accumulate
from typing import Annotated

import torch
from torch import Tensor

from whyformer.capture.fold import FoldedSite
from whyformer.capture.functions import groups
from whyformer.errors import BadInput, UnknownName
from whyformer.parameters import OneOf, Place, Places
from whyformer.results.types import Record, Site
from whyformer.run import Attribution, Run
from whyformer.shapes import BHQK, BK, BN, BQ, BQK, AnyBQK
from whyformer.study.schedule import START, Link, Schedule, Step, Windows

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
    return torch.bmm(weights.to(map_BQK.dtype)[:, None], map_BQK)[:, 0]


def maps_of(record: Record, start_layer: int = 0) -> tuple[Site, ...]:
    """Return the sites from ``start_layer`` on."""
    count = len(record.sites)
    if not -count <= start_layer < count:
        raise BadInput(f"start_layer={start_layer}: the model has {count} layers, numbered 0 to {count - 1}.")
    return record.sites[start_layer % count :]


def blocks(sites: Sequence[Site], gradient: bool) -> Iterator[tuple[int, Site]]:
    """Yield small maps that are alike as one site of L·B inputs, with L; others by themselves."""
    for alike in groups(sites, lambda s: (s.attention_BHQK.shape, s.attention_BHQK.device, s.first_query)):
        if len(alike) == 1:
            yield 1, alike[0]
            continue
        slopes = [s.attention_grad_BHQK for s in alike if gradient and s.attention_grad_BHQK is not None]
        maps = torch.cat([s.attention_BHQK for s in alike])
        yield (
            len(alike),
            replace(alike[0], attention_BHQK=maps, attention_grad_BHQK=torch.cat(slopes) if slopes else None),
        )


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


# Rules for several streams of tokens: generic attention, eqs. 5-11 of Chefer, Gur & Wolf 2021 (ICCV), and rollout.
#
# R[s, t] is (B, N_s, N_t): relevance of positions of stream t for positions of stream s. An attention call updates the
# rows of its query stream s alone, from the states of its queries and keys at that time (study/schedule.py).

Maps = dict[tuple[str, str], Tensor]
Rows = dict[str, Tensor]  # key stream -> (B, N_query, N_key)


def placed(map_BQK: BQK, site: Site | FoldedSite, step: Step, keep: Mapping[str, Tensor]) -> AnyBQK:
    """Extend a map to all positions of its two streams; padding and rows that were not computed are zero."""
    if step.query not in keep:  # a stream without units of its own has no padding
        return map_BQK
    rows_BN, columns_BN = keep[step.query], keep[step.key]
    queries = rows_BN.shape[1]
    if map_BQK.shape[1] != queries:
        whole = map_BQK.new_zeros(len(map_BQK), queries, map_BQK.shape[2])
        whole[:, site.first_query : site.first_query + map_BQK.shape[1]] = map_BQK
        map_BQK = whole
    return map_BQK * rows_BN[:, :, None].to(map_BQK.dtype) * columns_BN[:, None, :].to(map_BQK.dtype)


def placed_maps(
    record: Record, schedule: Schedule, keep: Mapping[str, Tensor], reduce: Callable[[Site], AnyBQK]
) -> dict[int, AnyBQK]:
    """Return one map per site, made by ``reduce``, without the sites that never reach the output."""
    return {
        step.site: placed(reduce(record.sites[step.site]), record.sites[step.site], step, keep)
        for step in schedule.steps
        if step.used
    }


def normalized(relevance_BNN: BQK, eye_BNN: BQK) -> BQK:
    """Return R̄ = (R - I)/S + I, where S are the row sums (eqs. 8 and 9); a row with S = 0 stays that of I."""
    # NOTE[DIFF] the authors' LXMERT code has no guard (one zero row makes everything NaN), their DETR code drops the
    # whole layer; here only the row itself is left as it was.
    return row_normalized(relevance_BNN - eye_BNN) + eye_BNN


def generic_relevance(
    schedule: Schedule,
    maps: Mapping[int, AnyBQK],
    keep: Mapping[str, Tensor],
    *,
    normalize_cross: bool = True,
    self_in_rule_10: bool = True,
) -> Maps:
    """Apply rules 6, 7, 10 and 11 over the schedule. ``maps`` are Ā of eq. 5 by site; other sites change nothing."""
    state, _ = relevance_states(schedule, maps, keep, normalize_cross=normalize_cross, self_in_rule_10=self_in_rule_10)
    final = {s: state(s, schedule.last(s)) for s in schedule.streams}
    # A stream has rows only for the streams that it is connected to.
    heard = {s: schedule.reduced([s], schedule.links).streams for s in schedule.streams}
    return _folded(schedule, {(s, t): r for s, rows in final.items() for t, r in rows.items() if t in heard[s]})


def relevance_states(
    schedule: Schedule,
    maps: Mapping[int, AnyBQK],
    keep: Mapping[str, Tensor],
    *,
    normalize_cross: bool = True,
    self_in_rule_10: bool = True,
) -> tuple[Callable[[str, int], Rows], dict[str, Tensor]]:
    """Return the rows of a stream after each call, and the identity on the real positions of each stream."""
    dtype = next(iter(maps.values())).dtype
    eyes = {stream: torch.diag_embed(keep_BN.to(dtype)) for stream, keep_BN in whole_keep(schedule, keep).items()}
    for link in schedule.links:  # a placed token starts as positions of another stream
        eyes[link.into] = eyes[link.into] * _unplaced(link)
    states: dict[tuple[str, int], Rows] = {}

    def state(stream: str, after: int) -> Rows:
        if (stream, after) in states:
            return states[stream, after]
        eye = eyes[stream]
        start = {t: eye if t == stream else eye.new_zeros(*eye.shape[:2], eyes[t].shape[1]) for t in schedule.streams}
        link = schedule.link(stream)
        if link is not None:
            seen = state(link.source, schedule.last(link.source))
            start = {t: r + _placed(link, r) @ seen[t] for t, r in start.items()}
        return states.setdefault((stream, START), start)

    for step in schedule.steps:
        if not step.used:
            continue
        rows = state(step.query, step.query_after)
        layer = maps.get(step.site)
        if layer is None:
            states[step.query, step.site] = rows
        elif not step.cross:  # eqs. 6 and 7, all from the values before the update
            states[step.query, step.site] = {t: r + torch.bmm(layer, r) for t, r in rows.items()}
        else:
            others = state(step.key, step.key_after)
            asking, other = rows[step.query], others[step.key]
            if normalize_cross:
                asking, other = normalized(asking, eyes[step.query]), normalized(other, eyes[step.key])
            between = asking.transpose(1, 2) @ layer @ other if self_in_rule_10 else layer  # eq. 10
            # Eq. 11 for the query stream itself, and in the same way for any third stream that the keys attend to.
            crossed = {t: r + (between if t == step.key else layer @ others[t]) for t, r in rows.items()}
            states[step.query, step.site] = crossed
    return state, eyes


def whole_keep(schedule: Schedule, keep: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the real positions of every stream, including streams without units of their own."""
    like = next(iter(keep.values()))
    inner = {s: like.new_ones(len(like), n) for s, n in schedule.lengths.items() if s not in keep}
    return {**inner, **keep}


def _placed(link: Link, like: Tensor) -> Tensor:
    assert link.placed_BNM is not None
    return link.placed_BNM.to(like.dtype)


def _unplaced(link: Link) -> Tensor:
    """Return (B, N, 1) tokens that are not placed."""
    assert link.placed_BNM is not None
    return link.placed_BNM.sum(2, keepdim=True) == 0


def _folded(schedule: Schedule, maps: Maps) -> Maps:
    """Add the columns of a placed stream to those of the tokens that its positions became."""
    for link in schedule.links:
        columns_BMN = _placed(link, next(iter(maps.values()))).transpose(1, 2) > 0
        shares = columns_BMN / columns_BMN.sum(2, keepdim=True).clamp(min=1)
        for s in schedule.shown:
            if (s, link.source) in maps:
                maps[s, link.into] = maps[s, link.into] + maps[s, link.source] @ shares.to(maps[s, link.into].dtype)
    return {pair: m for pair, m in maps.items() if set(pair) <= set(schedule.shown)}


def own_and_cross(
    schedule: Schedule, maps: Mapping[int, AnyBQK], keep: Mapping[str, Tensor], mix: Callable[[AnyBQK], AnyBQK]
) -> tuple[dict[int, AnyBQK], dict[int, AnyBQK]]:
    """Return the self-attention maps with their residual, which ``mix`` adds, and the cross-attention maps, by site."""
    every, layers, cross = whole_keep(schedule, keep), {}, {}
    for step in schedule.steps:
        if step.site in maps and step.cross:
            cross[step.site] = maps[step.site]
        elif step.site in maps:
            mixed = mix(maps[step.site])
            real_BN = every[step.query].to(mixed.dtype)
            layers[step.site] = mixed * real_BN[:, :, None] * real_BN[:, None, :]
    return layers, cross


def rollout_relevance(
    schedule: Schedule,
    layers: Mapping[int, AnyBQK],
    cross: Mapping[int, AnyBQK],
    keep: Mapping[str, Tensor],
    joined: bool = True,
) -> Maps:
    """Roll out each stream, and join two streams by their last cross-attention: R_ss^T · A_cross · R_qq.

    ``layers`` are self-attention maps with residual, ``cross`` plain maps. R_ss and R_qq are the rollouts of the layers
    before that cross-attention. This is the baseline of Chefer et al., including the transpose. joined: without it, the
    cross-attention stands by itself, as in their baseline for transformer attribution.
    """
    dtype = next(iter({**layers, **cross}.values())).dtype
    rolled: dict[tuple[str, int], Tensor] = {
        (s, START): torch.diag_embed(k.to(dtype)) for s, k in whole_keep(schedule, keep).items()
    }
    maps: Maps = {}
    for step in schedule.steps:
        if not step.used:
            continue
        asking = rolled[step.query, step.query_after]
        if step.cross and step.site in cross:
            other = rolled[step.key, step.key_after]
            between = cross[step.site]
            maps[step.query, step.key] = asking.transpose(1, 2) @ between @ other if joined else between
        elif not step.cross and step.site in layers:
            asking = layers[step.site] @ asking
        rolled[step.query, step.site] = asking
    for s in schedule.streams:
        if schedule.between(s, s):
            maps[s, s] = rolled[s, schedule.last(s)]
    for link in schedule.links:
        whole = maps[link.into, link.into]
        starts = whole @ _placed(link, whole)
        # Streams that the placed one attends to
        for third in [t for s, t in maps if s == link.source and t != link.source]:
            maps[link.into, third] = starts @ maps[link.source, third]
        maps[link.into, link.source] = starts @ rolled[link.source, schedule.last(link.source)]
        maps[link.into, link.into] = whole * _unplaced(link).transpose(1, 2)
    return _folded(schedule, maps)


def start_sites(schedule: Schedule, start_layer: int) -> set[int]:
    """Return the sites from ``start_layer`` on, counted for each pair of streams; negative: from the end."""
    pairs = [schedule.between(s, t) for s in schedule.streams for t in schedule.streams]
    most = max(map(len, pairs), default=0)
    if not -most <= start_layer < most:
        raise BadInput(f"start_layer={start_layer}: the model has {most} layers, numbered 0 to {most - 1}.")
    return {site for sites in pairs for site in sites[start_layer:]}


def layer_means(schedule: Schedule, maps: Mapping[int, AnyBQK], layers: str | int | Sequence[int]) -> Maps:
    """Return the mean of the chosen layers for each pair of streams; layers are numbered within the pair."""
    means: Maps = {}
    for s in schedule.shown:
        for t in schedule.shown:
            sites = schedule.between(s, t)
            if sites:
                means[s, t] = torch.stack([maps[sites[i]] for i in chosen_layers(layers, len(sites))]).mean(0)
    return means


def read_streams(maps: Maps, readout: Mapping[str, Tensor], keep: Mapping[str, Tensor]) -> Tensor:
    """Return (B, N) the weighted sum of the rows that feed the head, over the positions of all streams end to end."""
    parts = []
    for t, keep_BN in keep.items():
        total = torch.zeros(keep_BN.shape, device=keep_BN.device)
        for s, weights_BN in readout.items():
            if (s, t) in maps:
                total = total + torch.einsum("bq,bqk->bk", weights_BN.to(maps[s, t].dtype), maps[s, t]).float()
        parts.append(total)
    return torch.cat(parts, 1)
