"""Attention Grad-CAM: heads of one attention layer, weighted by their mean gradient."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from whyformer.engines.attention.chain import kept, read
from whyformer.engines.attention.maps import chosen_layers, over_one_layer, read_row, real
from whyformer.engines.attention.streams import layer_means, placed_maps, whole_keep
from whyformer.errors import NotOffered
from whyformer.parameters import OneOf, Place, Places
from whyformer.registry import constant, method
from whyformer.results.types import Site
from whyformer.run import Attribution, Run
from whyformer.shapes import BQK

REGIONS = ("all", "row", "row_units")


@method(
    paper="Chefer, Gur & Wolf 2021 (CVPR), baseline, arXiv:2012.09838; after Selvaraju et al. 2017, arXiv:1610.02391",
    needs={"attention_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=False,
    class_specific=True,
    specificity="attention",
)
def attention_gradcam(
    run: Run,
    *,
    layer: Annotated[str, OneOf("last", "mean")] | Place | Places = "last",
    region: Annotated[str, OneOf(*REGIONS)] = "all",
) -> Attribution:
    """Attention of one layer, each head weighted by how much the score gains from it on average.

    cam = ReLU(mean_h w_h·A_h), w_h = mean of ∂s/∂A_h. ``region``: the cells the mean runs over, "all" (the whole map),
    "row" (the rows that feed the head) or "row_units" (those rows without the columns of special tokens). ``layer``:
    "last", a number, a list (the mean of their maps) or "mean" (of all).

    Misleads when: one number per head is too little: a head that helps in one place and harms in another is counted
    by its average, and where all weights are negative the map is zero. Below the last layer positions are already
    mixed, so a cell is not a word any more.
    """
    if (run.multi_stream or run.windowed) and region != "all":
        raise NotOffered(
            "with several streams of tokens, or attention inside windows, the gradient is averaged over the whole map: "
            "region='all'."
        )
    if run.windowed:
        return over_one_layer(run, True, partial(_window_cam, run), layer)
    record = run.record(grad=True, multi_stream=run.multi_stream)
    if run.multi_stream:  # one map per pair of streams, from the layers in which one attends to the other
        keep = run.by_stream(run.keep_BN)
        every, cells = whole_keep(run.schedule, keep), {}
        for step in run.schedule.steps:
            site = record.sites[step.site]
            rows_BQ = every[step.query][:, site.first_query : site.first_query + site.attention_BHQK.shape[2]].float()
            cells[id(site)] = rows_BQ[:, :, None] * every[step.key].float()[:, None, :]
        maps_by_site = placed_maps(record, run.schedule, keep, lambda site: _cam(site, cells[id(site)]))
        return read(run, layer_means(run.schedule, maps_by_site, layer))
    picked = [record.sites[i] for i in chosen_layers(layer, len(record.sites))]
    maps = [real(_cam(site, _cells(run, site, region)), run.attended_BN, site) for site in picked]
    rows = [read_row(m, run.readout_BN, s.first_query) for m, s in zip(maps, picked, strict=True)]
    alike = len({m.shape for m in maps}) == 1  # a last layer with few rows has no whole map to average with
    whole = torch.stack(maps).mean(0) if alike else None
    return Attribution(torch.stack(rows).mean(0), matrix_BQK=whole, layers_BLQK=kept(run, maps))


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
    cells_BQK = real(torch.ones_like(site.attention_BHQK[:, 0], dtype=torch.float32), run.keep_BN, site)
    if region == "all":
        return cells_BQK
    rows_BQ = run.readout_BN[:, site.first_query : site.first_query + cells_BQK.shape[1]] > 0
    cells_BQK = cells_BQK * rows_BQ[:, :, None]
    if region == "row":
        return cells_BQK
    units_BN = ~run.special_BN
    units_BN = units_BN | ~(units_BN & run.keep_BN).any(1, keepdim=True)  # nothing but special tokens: take them
    return cells_BQK * units_BN[:, None, :]


def _window_cam(run: Run, site: Site) -> BQK:
    """Weight heads by their mean gradient over all windows of an image."""
    assert site.attention_grad_BHQK is not None
    per_window_BH = site.attention_grad_BHQK.float().mean((2, 3))
    per_image = per_window_BH.view(run.batch.size, -1, site.heads).mean(1, keepdim=True)
    weight_BH = per_image.expand(-1, len(per_window_BH) // run.batch.size, -1).reshape_as(per_window_BH)
    return _weighted(site, weight_BH)
