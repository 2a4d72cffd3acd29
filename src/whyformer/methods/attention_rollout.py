"""Attention rollout: attention multiplied through the layers, with the residual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from whyformer.engines.attention.folded import attention_heads, chained, folded_maps, with_share
from whyformer.engines.attention.maps import (
    Heads,
    cumulative,
    discard_smallest,
    in_one_go,
    maps_of,
    over_heads,
    over_windows,
    product,
    read_row,
    real,
    with_ratio,
    with_residual,
)
from whyformer.engines.attention.streams import placed_maps, read_streams, rollout_relevance, start_sites, whole_keep
from whyformer.errors import BadInput, NotOffered
from whyformer.methods.value_norms import mixing_ratio
from whyformer.parameters import Limits, OneOf, Place, Share
from whyformer.registry import constant, method
from whyformer.results.types import Site
from whyformer.run import Attribution, Run


@method(
    paper="Abnar & Zuidema 2020, arXiv:2005.00928",
    needs={"attention"},
    cost=constant(1, 0),
    cost_text="1 forward",
    signed=False,
    class_specific=False,
    specificity="attention",
    rowwise=lambda *, discard, **options: not discard,
    folds=lambda *, discard, residual, **options: not discard and not isinstance(residual, str),
)
def attention_rollout(
    run: Run,
    *,
    heads: Heads = "mean",
    residual: Share | Annotated[str, OneOf("mixing")] = 0.5,
    normalize: bool = True,
    discard: Annotated[float, Limits(0, 1, open_high=True)] = 0.0,
    start_layer: Place = 0,
    protect_special: bool = False,
) -> Attribution:
    """How much of each input is left at the output if attention only mixed tokens: Â_L ··· Â_1.

    Â_l = rownorm((1-a)·fuse_h A_l + a·I), a = ``residual``. ``residual="mixing"`` measures it instead: of row i the
    mixing ratio r_i of the whole block (value_norms) goes to the other positions and 1 - r_i stays (GlobEnc's W-Res).
    ``normalize=False`` gives A + I, which for the plain head mean is the same map times 2^L. ``discard`` zeroes that
    share of the smallest entries of each fused map;
    ``protect_special`` keeps rows and columns of special tokens out of it.

    With several streams, each is rolled out by itself; stream s reads stream q by R_ss^T A R_qq, A the last
    cross-attention between them (the baseline of Chefer, Gur & Wolf 2021).

    Misleads when: values and MLPs do more than mixing (they do), and on deep models, where the product flattens out.
    It is the same for every class.
    """
    if (run.multi_stream or run.windowed) and discard:
        raise NotOffered("discard is for one stream of plain self-attention: leave it at 0 on this model.")
    ratios = _measured(run, residual, normalize) if isinstance(residual, str) else None
    share = residual if isinstance(residual, (int, float)) else 0.0
    if run.windowed:
        return over_windows(
            run,
            False,
            lambda site: over_heads(site.attention_BHQK.float(), heads),
            lambda layer: with_residual(layer, 0, share, normalize),
            start_layer,
        )
    if run.multi_stream:
        return _over_streams(run, heads, share, normalize, start_layer)
    if run.folds:
        return chained(run, attention_heads(heads), with_share(share, normalize), start_layer)
    sites = maps_of(run.record(), start_layer)
    keep_BN = run.attended_BN
    if not discard and ratios is None:
        layers = []
        for site, count in in_one_go(sites):
            every_BN = keep_BN if run.unpadded else keep_BN.repeat(count, 1)
            fused = over_heads(site.attention_BHQK.float(), heads)
            fused = fused if run.unpadded else real(fused, every_BN, site)
            mixed = with_residual(fused, site.first_query, share, normalize)
            mixed = mixed if run.unpadded else real(mixed, every_BN, site)
            layers += mixed.unflatten(0, (count, -1)).unbind()
        return _multiplied(run, sites, layers)
    protected = run.special_BN if protect_special else None
    layers = []
    for number, site in enumerate(sites, start=len(run.study.sites) - len(sites)):
        fused = real(over_heads(site.attention_BHQK.float(), heads), keep_BN, site)
        fused = discard_smallest(fused, discard, keep_BN, site, protected)
        if ratios is None:
            mixed = with_residual(fused, site.first_query, share, normalize)
        else:
            first, queries = site.first_query, fused.shape[1]
            mixed = with_ratio(fused, first, ratios[:, number, first : first + queries])
        layers.append(real(mixed, keep_BN, site))
    return _multiplied(run, sites, layers)


def _multiplied(run: Run, sites: Sequence[Site], layers: Sequence[Tensor]) -> Attribution:
    whole = product(layers)
    scores = read_row(whole, run.readout_BN, sites[-1].first_query)
    square = layers[0].shape == layers[-1].shape
    per_layer = torch.stack(cumulative(layers), 1) if run.keep_layers and square else None
    return Attribution(scores, matrix_BQK=whole, layers_BLQK=per_layer)


def _measured(run: Run, residual: str, normalize: bool) -> Tensor:
    """(B, L, N) mixing ratios; the forward that finds them serves as the record, too."""
    if not normalize:
        raise BadInput('residual="mixing" gives rows that sum to 1 by themselves: leave normalize at True.')
    return mixing_ratio(run, "enc")


def _over_streams(
    run: Run, heads: str | int | Sequence[int], residual: float, normalize: bool, start_layer: int
) -> Attribution:
    schedule, keep = run.schedule, run.by_stream(run.keep_BN)
    if run.folds:
        plain = folded_maps(run, attention_heads(heads), keep)
    else:
        record = run.record(multi_stream=True)
        plain = placed_maps(record, schedule, keep, lambda site: over_heads(site.attention_BHQK.float(), heads))
    chosen, every = start_sites(schedule, start_layer), whole_keep(schedule, keep)
    layers, cross = {}, {}
    for step in schedule.steps:
        if step.site in chosen and step.cross:
            cross[step.site] = plain[step.site]
        elif step.site in chosen:
            mixed = with_residual(plain[step.site], 0, residual, normalize)
            real_BN = every[step.query].to(mixed.dtype)
            layers[step.site] = mixed * real_BN[:, :, None] * real_BN[:, None, :]
    whole = rollout_relevance(schedule, layers, cross, keep)
    return Attribution(read_streams(whole, run.by_stream(run.readout_BN), keep), matrix_BQK=whole)
