"""The relevance engine for several streams: generic-attention rules 5-11 of Chefer, Gur & Wolf 2021 (ICCV).

R[s, t] is (B, N_s, N_t): relevance of positions of stream t for positions of stream s. Rows of s are updated only where
s asks, so each attention call makes a new state of its query stream out of the states its queries and keys had seen
(study/schedule.py). LXMERT's two directions from the same old states, DETR's and T5's decoders, and CLIP's two towers
that never meet are all this one loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from whyformer.capture.fold import FoldedSite
from whyformer.engines.attention.maps import chosen_layers, row_normalized
from whyformer.errors import BadInput
from whyformer.results.types import Record, Site
from whyformer.shapes import BN, BQK, AnyBQK
from whyformer.study.schedule import START, Link, Schedule, Step

Maps = dict[tuple[str, str], Tensor]
Rows = dict[str, Tensor]  # key stream -> (B, N_query, N_key)


def placed(map_BQK: BQK, site: Site | FoldedSite, step: Step, keep: Mapping[str, Tensor]) -> AnyBQK:
    """A map over all positions of its two streams, padding zeroed; rows that were not asked for are zero."""
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
    """``reduce`` turns a site into one map; those that never reach the output are left out."""
    return {
        step.site: placed(reduce(record.sites[step.site]), record.sites[step.site], step, keep)
        for step in schedule.steps
        if step.used
    }


def eye_of(keep_BN: BN, dtype: torch.dtype) -> BQK:
    """The identity on real positions."""
    return torch.diag_embed(keep_BN.to(dtype))


def normalized(relevance_BNN: BQK, eye_BNN: BQK) -> BQK:
    """R̄ = (R - I)/S + I, S the row sums (eqs. 8 and 9); where S = 0 the row stays that of I."""
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
    """Rules 6, 7, 10 and 11 over the schedule; ``maps`` are Ā of eq. 5 by site (sites left out change nothing)."""
    state, _ = relevance_states(schedule, maps, keep, normalize_cross=normalize_cross, self_in_rule_10=self_in_rule_10)
    final = {s: state(s, schedule.last(s)) for s in schedule.streams}
    heard = {
        s: schedule.reduced([s], schedule.links).streams for s in schedule.streams
    }  # of others nothing can be known
    return _folded(schedule, {(s, t): r for s, rows in final.items() for t, r in rows.items() if t in heard[s]})


def relevance_states(
    schedule: Schedule,
    maps: Mapping[int, AnyBQK],
    keep: Mapping[str, Tensor],
    *,
    normalize_cross: bool = True,
    self_in_rule_10: bool = True,
) -> tuple[Callable[[str, int], Rows], dict[str, Tensor]]:
    """What the rows of a stream had seen after each call, and the identity on each stream's real positions."""
    dtype = next(iter(maps.values())).dtype
    eyes = {stream: eye_of(keep_BN, dtype) for stream, keep_BN in whole_keep(schedule, keep).items()}
    for link in schedule.links:  # a placed token is nothing of its own
        eyes[link.into] = eyes[link.into] * _unplaced(link)
    states: dict[tuple[str, int], Rows] = {}

    def state(stream: str, after: int) -> Rows:
        if (stream, after) in states:
            return states[stream, after]
        start = {t: eyes[t] if t == stream else _zeros(eyes, stream, t) for t in schedule.streams}
        link = schedule.link(stream)
        if link is not None:  # it starts as what its positions had seen
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
            states[step.query, step.site] = _crossed(step, layer, rows, others, eyes, normalize_cross, self_in_rule_10)
    return state, eyes


def whole_keep(schedule: Schedule, keep: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Real positions of every stream, also of those that have no units of their own."""
    like = next(iter(keep.values()))
    inner = {s: like.new_ones(len(like), n) for s, n in schedule.lengths.items() if s not in keep}
    return {**inner, **keep}


def _placed(link: Link, like: Tensor) -> Tensor:
    assert link.placed_BNM is not None
    return link.placed_BNM.to(like.dtype)


def _unplaced(link: Link) -> Tensor:
    """(B, N, 1) tokens that are not placed."""
    assert link.placed_BNM is not None
    return link.placed_BNM.sum(2, keepdim=True) == 0


def _folded(schedule: Schedule, maps: Maps) -> Maps:
    """Columns of a placed stream are added to those of the tokens that its positions became."""
    for link in schedule.links:
        columns_BMN = _placed(link, next(iter(maps.values()))).transpose(1, 2) > 0
        shares = columns_BMN / columns_BMN.sum(2, keepdim=True).clamp(min=1)
        for s in schedule.shown:
            if (s, link.source) in maps:
                maps[s, link.into] = maps[s, link.into] + maps[s, link.source] @ shares.to(maps[s, link.into].dtype)
    return {pair: m for pair, m in maps.items() if set(pair) <= set(schedule.shown)}


def _zeros(eyes: Mapping[str, Tensor], query: str, key: str) -> Tensor:
    return eyes[query].new_zeros(len(eyes[query]), eyes[query].shape[1], eyes[key].shape[1])


def _crossed(
    step: Step,
    layer: BQK,
    rows: Rows,
    others: Rows,
    eyes: Mapping[str, Tensor],
    normalize_cross: bool,
    self_in_rule_10: bool,
) -> Rows:
    s, q = step.query, step.key
    asking, other = rows[s], others[q]
    if normalize_cross:
        asking, other = normalized(asking, eyes[s]), normalized(other, eyes[q])
    between = asking.transpose(1, 2) @ layer @ other if self_in_rule_10 else layer  # eq. 10
    # Eq. 11 for the query stream itself, and in the same way for any third stream that the keys had seen.
    return {t: r + (between if t == q else layer @ others[t]) for t, r in rows.items()}


def rollout_relevance(
    schedule: Schedule, layers: Mapping[int, AnyBQK], cross: Mapping[int, AnyBQK], keep: Mapping[str, Tensor]
) -> Maps:
    """Rollout inside each stream, and from stream to stream by the last cross-attention: R_ss^T · A_cross · R_qq.

    ``layers`` are self-attention maps with residual, ``cross`` plain maps. R_ss and R_qq are what the queries and keys
    of that cross-attention had been through. This is the baseline of Chefer et al.; the transpose is theirs.
    """
    dtype = next(iter({**layers, **cross}.values())).dtype
    rolled: dict[tuple[str, int], Tensor] = {
        (s, START): eye_of(k, dtype) for s, k in whole_keep(schedule, keep).items()
    }
    maps: Maps = {}
    for step in schedule.steps:
        if not step.used:
            continue
        asking = rolled[step.query, step.query_after]
        if step.cross and step.site in cross:
            other = rolled[step.key, step.key_after]
            maps[step.query, step.key] = asking.transpose(1, 2) @ cross[step.site] @ other
        elif not step.cross and step.site in layers:
            asking = layers[step.site] @ asking
        rolled[step.query, step.site] = asking
    for s in schedule.streams:
        if schedule.between(s, s):
            maps[s, s] = rolled[s, schedule.last(s)]
    for link in schedule.links:
        whole = maps[link.into, link.into]
        starts = whole @ _placed(link, whole)
        for third in [t for s, t in maps if s == link.source and t != link.source]:  # what the placed stream had read
            maps[link.into, third] = starts @ maps[link.source, third]
        maps[link.into, link.source] = starts @ rolled[link.source, schedule.last(link.source)]
        maps[link.into, link.into] = whole * _unplaced(link).transpose(1, 2)
    return _folded(schedule, maps)


def start_sites(schedule: Schedule, start_layer: int) -> set[int]:
    """Sites from ``start_layer`` on, counted for each pair of streams; negative numbers count from the end."""
    chosen: set[int] = set()
    most = 0
    for s in schedule.streams:
        for t in schedule.streams:
            sites = schedule.between(s, t)
            most = max(most, len(sites))
            chosen |= set(sites[start_layer:] if start_layer >= 0 else sites[max(len(sites) + start_layer, 0) :])
    if not -most <= start_layer < most:
        raise BadInput(f"start_layer={start_layer}: the model has {most} layers, numbered 0 to {most - 1}.")
    return chosen


def layer_means(schedule: Schedule, maps: Mapping[int, AnyBQK], layers: str | int | Sequence[int]) -> Maps:
    """For each pair of streams, the mean of the chosen layers (numbered among those of the pair)."""
    means: Maps = {}
    for s in schedule.shown:
        for t in schedule.shown:
            sites = schedule.between(s, t)
            if sites:
                means[s, t] = torch.stack([maps[sites[i]] for i in chosen_layers(layers, len(sites))]).mean(0)
    return means


def read_streams(maps: Maps, readout: Mapping[str, Tensor], keep: Mapping[str, Tensor]) -> Tensor:
    """(B, N) the rows that feed the head, over the positions of all streams end to end."""
    parts = []
    for t, keep_BN in keep.items():
        total = torch.zeros(keep_BN.shape, device=keep_BN.device)
        for s, weights_BN in readout.items():
            if (s, t) in maps:
                total = total + torch.einsum("bq,bqk->bk", weights_BN.to(maps[s, t].dtype), maps[s, t]).float()
        parts.append(total)
    return torch.cat(parts, 1)
