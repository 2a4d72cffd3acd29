"""Rules for several streams of tokens: generic attention, eqs. 5-11 of Chefer, Gur & Wolf 2021 (ICCV), and rollout.

R[s, t] is (B, N_s, N_t): relevance of positions of stream t for positions of stream s. An attention call updates the
rows of its query stream s alone, from the states of its queries and keys at that time (study/schedule.py). One loop
covers LXMERT, whose two directions start from the same states, the decoders of DETR and T5, and CLIP's separate towers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from whyformer.capture.fold import FoldedSite
from whyformer.engines.attention.maps import chosen_layers, row_normalized
from whyformer.errors import BadInput
from whyformer.results.types import Record, Site
from whyformer.shapes import BQK, AnyBQK
from whyformer.study.schedule import START, Link, Schedule, Step

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
        own = eyes[stream]
        start = {t: own if t == stream else own.new_zeros(*own.shape[:2], eyes[t].shape[1]) for t in schedule.streams}
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


def rollout_relevance(
    schedule: Schedule, layers: Mapping[int, AnyBQK], cross: Mapping[int, AnyBQK], keep: Mapping[str, Tensor]
) -> Maps:
    """Roll out each stream, and join two streams by their last cross-attention: R_ss^T · A_cross · R_qq.

    ``layers`` are self-attention maps with residual, ``cross`` plain maps. R_ss and R_qq are the rollouts of the layers
    before that cross-attention. This is the baseline of Chefer et al., including the transpose.
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
