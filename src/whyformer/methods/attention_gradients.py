"""Attention weighted by its gradient: attention_x_gradient, value_x_gradient, grad_sam and attention_gradcam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from whyformer.capture.functions import HeadFusion
from whyformer.engines.attention import maps as mapped
from whyformer.engines.attention.chain import (
    READINGS,
    raised_heads,
    read,
    read_layers,
    readable_folded,
    stacked,
    stream_maps,
)
from whyformer.errors import NotOffered
from whyformer.parameters import OneOf, Place, Places
from whyformer.registry import one_backward
from whyformer.results.types import Site
from whyformer.run import Attribution, Run
from whyformer.shapes import BQK


@one_backward(
    paper="weights: Serrano & Smith 2019, arXiv:1906.03731; clamped: Chefer, Gur & Wolf 2021; readings: Mylonas 2022",
    needs={"attention_gradients"},
    signed=False,
    folds=readable_folded,
    meaning="attention × gradient, positive part",
    space="gradient",
    compiles=True,
)
def attention_x_gradient(
    run: Run,
    *,
    layers: mapped.Layers = "last",
    heads: mapped.Heads = "mean",
    read: Annotated[str, OneOf(*READINGS)] = "row",
) -> Attribution:
    """Multiply attention by its gradient, keep the positive part, and read one layer or several.

    Ā_h = max(0, A_h ∘ ∂s/∂A_h) per head; then as in ``raw_attention``. ``layers``: "last", "mean", "product", a number
    or a list; ``heads``: "mean", "max", "min", "sum", a number or a list; ``read``: "row", "column", "column_mean",
    "column_sum", "column_max", "diagonal".

    Misleads when: positions of a layer are read as input tokens: earlier layers have mixed them. In the last layer only
    the output position has a gradient, so every reading of that layer repeats its row.
    """
    return read_layers(run, raised_heads(heads), layers, read)


# Σ_h A_h ∘ ∂s/∂A_h; negative entries, which lower the output, are kept.
SIGNED_HEADS = HeadFusion(lambda attention, gradient: (attention * gradient).sum(1), gradient=True)


@one_backward(
    paper="attention attribution, one point of its path: Hao et al. 2021 (AAAI), arXiv:2004.11207; summed over layers "
    "as AttCAT: Qiang et al. 2022 (NeurIPS)",
    needs={"attention_gradients"},
    signed=True,
    folds=lambda **options: True,
    meaning="value vector × gradient, summed over attention layers",
)
def value_x_gradient(run: Run, *, layers: Annotated[str, OneOf("all", "last")] | Place | Places = "all") -> Attribution:
    """Multiply each token's value vectors by their gradients, and sum over heads and layers.

    r_j = Σ_l Σ_h v_j^lh · ∂s/∂v_j^lh, with v the values of layer l and head h. Since a head's output is A·v, this
    equals Σ_l Σ_h Σ_i (A ∘ ∂s/∂A)_ij and is computed that way. Scores are not clamped: a negative score lowers the
    output. ``layers``: "all", "last", a number, or a list; with several streams, counted per pair of streams.

    Misleads when: a token acts by changing where others attend (gradients through queries and keys are left out), and
    in deep models, whose later layers hold mixtures of tokens.
    """
    choice = "mean" if layers == "all" else layers
    if run.multi_stream:
        return Attribution(_over_streams(run, choice)[0])
    if run.folds:
        mean_BN = read_layers(run, SIGNED_HEADS, choice, "column_sum").scores_BN
        return Attribution(mean_BN * len(mapped.chosen_layers(choice, run.study.layer_count())))
    sites = run.record(grad=True, multi_stream=run.windowed).sites
    picked = mapped.chosen_layers(choice, len(sites))
    if run.windowed:  # a token of a later stage passes its score to the patches it was made of
        windows, total_BN = run.windows, torch.zeros(run.keep_BN.shape, device=run.keep_BN.device)
        for number in picked:
            columns_B1N = windows.whole(SIGNED_HEADS.of(sites[number]), number).sum(1, keepdim=True)
            eye = torch.eye(windows.sizes[0], device=columns_B1N.device)[None]
            total_BN = total_BN + (columns_B1N @ windows.merged(eye, 0, windows.placements[number].stage))[:, 0]
        return Attribution(total_BN)
    maps = [mapped.real(SIGNED_HEADS.of(sites[number]), run.attended_BN, sites[number]) for number in picked]
    return Attribution(torch.stack([map_BQK.sum(1) for map_BQK in maps]).sum(0), layers_BLQK=stacked(run, maps))


def _over_streams(
    run: Run, layers: str | int | Sequence[int], heads: HeadFusion = SIGNED_HEADS, asking: bool = False
) -> tuple[Tensor, int]:
    """Return sums of columns per token, of self- and cross-attention, and the number of maps. asking: of rows."""
    schedule, keep, maps = run.schedule, run.by_stream(run.keep_BN), stream_maps(run, heads)
    handed: dict[str, Tensor] = {}
    count = 0
    for key in schedule.streams:
        for query in schedule.streams:
            sites = schedule.between(query, key)
            for number in mapped.chosen_layers(layers, len(sites)) if sites else []:
                if sites[number] in maps:
                    stream, axis = (query, 2) if asking else (key, 1)
                    handed[stream] = handed.get(stream, 0) + maps[sites[number]].sum(axis)
                    count += 1
    for link in schedule.links:  # tokens made of another stream's positions receive the scores of these
        assert link.placed_BNM is not None
        if link.source in handed:
            placed_BMN = link.placed_BNM.transpose(1, 2).to(handed[link.source].dtype)
            shares_BMN = placed_BMN / placed_BMN.sum(2, keepdim=True).clamp(min=1)
            handed[link.into] = handed.get(link.into, 0) + torch.einsum("bm,bmn->bn", handed[link.source], shares_BMN)
    return torch.cat([handed.get(stream, keep_BN.float() * 0) for stream, keep_BN in keep.items()], 1), count


@one_backward(
    paper="Barkan et al. 2021 (CIKM), arXiv:2204.11073",
    needs={"attention_gradients"},
    signed=False,
    folds=lambda **options: True,
    meaning="attention × positive gradient, averaged over layers and heads",
    compiles=True,
)
def grad_sam(
    run: Run,
    *,
    reduce: Annotated[str, OneOf("query", "key")] = "query",
    layers: Annotated[str, OneOf("mean", "last")] | Place | Places = "mean",
) -> Attribution:
    """Multiply attention by its positive gradient, and average over layers and heads.

    r_i = 1/(L·M·N) Σ_l Σ_m Σ_j (A ∘ ReLU(∂s/∂A))_ij over L layers, M heads, N tokens. ``reduce="query"`` (the paper):
    token i is scored by what it attends to. ``reduce="key"``: token i is scored by the attention that it receives.
    ``layers``: "mean" (all), "last", a number, or the mean of a list. With several streams the sum is over
    all self- and cross-attention; ``layers`` are counted per pair of streams.

    Misleads when: the published form is read as input attribution. In the last layer only [CLS] has a gradient, so with
    reduce="query" the whole layer counts for [CLS], which therefore ranks first.
    """
    tokens_B1 = run.keep_BN.sum(1, keepdim=True)
    # The gradient alone is clamped, as published: weights of marked attention may be negative.
    heads = replace(raised_heads(), fused=lambda attention, gradient: (attention * gradient.clamp(min=0)).mean(1))
    if run.multi_stream:
        total_BN, count = _over_streams(run, layers, heads, asking=reduce == "query")
        return Attribution(total_BN / (count * tokens_B1))
    if run.folds:
        mean = read_layers(run, heads, layers, "keys" if reduce == "query" else "column_sum")
        return Attribution(mean.scores_BN / tokens_B1)
    every = run.record(grad=True).sites
    if not run.unpadded:
        _ = run.readout_BN  # raises if the head reads padding, where the gradients are
    sites = [every[i] for i in mapped.chosen_layers(layers, len(every))]
    maps = [mapped.real(heads.of(site), run.attended_BN, site) for site in sites]
    total_BN = torch.zeros(run.keep_BN.shape, device=run.keep_BN.device)
    for site, map_BQK in zip(sites, maps, strict=True):
        if reduce == "query":
            total_BN[:, site.first_query : site.first_query + map_BQK.shape[1]] += map_BQK.sum(2)
        else:
            total_BN += map_BQK.sum(1)
    return Attribution(total_BN / (len(sites) * tokens_B1), layers_BLQK=stacked(run, maps))


REGIONS = ("all", "row", "row_units")


@one_backward(
    paper="Chefer, Gur & Wolf 2021 (CVPR), baseline, arXiv:2012.09838; after Selvaraju et al. 2017, arXiv:1610.02391",
    needs={"attention_gradients"},
    signed=False,
    meaning="attention of one layer, heads weighted by their mean gradient",
    compiles=True,
)
def attention_gradcam(
    run: Run,
    *,
    layer: Annotated[str, OneOf("last", "mean")] | Place | Places = "last",
    region: Annotated[str, OneOf(*REGIONS)] = "all",
) -> Attribution:
    """Sum the attention maps of one layer, each head weighted by its mean gradient (Grad-CAM with heads as channels).

    cam = ReLU(mean_h w_h·A_h), w_h = mean of ∂s/∂A_h. ``region``: cells over which the gradient is averaged: "all" (the
    whole map), "row" (rows of the output position) or "row_units" (those rows without columns of special tokens).
    ``layer``: "last", a number, a list (mean of their maps) or "mean" (all layers).

    Misleads when: a head helps at one place and harms at another (it has one weight), or all weights are negative (the
    map is zero). Below the last layer, positions are already mixed and no longer correspond to single tokens.
    """
    if (run.multi_stream or run.windowed) and region != "all":
        raise NotOffered(
            "with several streams of tokens, or attention inside windows, the gradient is averaged over the whole map: "
            "region='all'."
        )
    if run.windowed:
        return mapped.over_one_layer(run, True, partial(_window_cam, run), layer)
    record = run.record(grad=True, multi_stream=run.multi_stream)
    if run.multi_stream:  # one map per pair of streams, from the layers in which one attends to the other
        keep, cams = run.by_stream(run.keep_BN), {}
        every = mapped.whole_keep(run.schedule, keep)
        for step in (step for step in run.schedule.steps if step.used):
            site = record.sites[step.site]
            rows_BQ = every[step.query][:, site.first_query : site.first_query + site.attention_BHQK.shape[2]].float()
            cells_BQK = rows_BQ[:, :, None] * every[step.key].float()[:, None, :]
            cams[step.site] = mapped.placed(_cam(site, cells_BQK), site, step, keep)
        return read(run, mapped.layer_means(run.schedule, cams, layer))
    picked = [record.sites[i] for i in mapped.chosen_layers(layer, len(record.sites))]
    maps = [mapped.real(_cam(site, _cells(run, site, region)), run.attended_BN, site) for site in picked]
    rows = [mapped.read_row(m, run.readout_BN, s.first_query) for m, s in zip(maps, picked, strict=True)]
    alike = len({m.shape for m in maps}) == 1  # a last layer with few rows has no whole map to average with
    whole = torch.stack(maps).mean(0) if alike else None
    return Attribution(torch.stack(rows).mean(0), matrix_BQK=whole, layers_BLQK=stacked(run, maps))


def _cam(site: Site, cells_BQK: Tensor) -> BQK:
    """Return ReLU(mean_h w_h·A_h), w_h being the mean of the gradient over the cells."""
    assert site.attention_grad_BHQK is not None
    total_BH = torch.einsum("bhqk,bqk->bh", site.attention_grad_BHQK.float(), cells_BQK)
    return _weighted(site, total_BH / cells_BQK.sum((1, 2)).clamp(min=1)[:, None])


def _weighted(site: Site, weight_BH: Tensor) -> BQK:
    # Mean, then clamp, as in the baselines of Chefer et al.; generic_attention clamps first.
    return (torch.einsum("bh,bhqk->bqk", weight_BH, site.attention_BHQK.float()) / site.heads).clamp(min=0)


def _cells(run: Run, site: Site, region: str) -> Tensor:
    """Return (B, Q, K) ones where the gradient is averaged; padding is always zero."""
    cells_BQK = mapped.real(torch.ones_like(site.attention_BHQK[:, 0], dtype=torch.float32), run.keep_BN, site)
    if region == "all":
        return cells_BQK
    rows_BQ = run.readout_BN[:, site.first_query : site.first_query + cells_BQK.shape[1]] > 0
    cells_BQK = cells_BQK * rows_BQ[:, :, None]
    if region == "row":
        return cells_BQK
    units_BN = ~run.special_BN
    units_BN = units_BN | ~(units_BN & run.keep_BN).any(1, keepdim=True)  # only special tokens: use them
    return cells_BQK * units_BN[:, None, :]


def _window_cam(run: Run, site: Site) -> BQK:
    """Weight heads by their mean gradient over all windows of an image."""
    assert site.attention_grad_BHQK is not None
    per_window_BH = site.attention_grad_BHQK.float().mean((2, 3))
    per_image = per_window_BH.view(run.batch.size, -1, site.heads).mean(1, keepdim=True)
    weight_BH = per_image.expand(-1, len(per_window_BH) // run.batch.size, -1).reshape_as(per_window_BH)
    return _weighted(site, weight_BH)
