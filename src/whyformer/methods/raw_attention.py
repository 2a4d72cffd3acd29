"""Raw attention: the map itself, read in one of many ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import torch

from whyformer.engines.attention.folded import attention_heads, folded_maps, read_layers, readable_folded
from whyformer.engines.attention.maps import (
    Heads,
    Layers,
    chosen_layers,
    over_heads,
    over_one_layer,
    product,
    read_row,
    real,
)
from whyformer.engines.attention.streams import layer_means, placed_maps, read_streams
from whyformer.errors import NotOffered
from whyformer.parameters import OneOf
from whyformer.registry import constant, method
from whyformer.results.types import Site
from whyformer.run import Attribution, Run
from whyformer.shapes import BQK, AnyBQK

READINGS = ("row", "column", "column_mean", "column_sum", "column_max", "diagonal")


@method(
    paper="Bahdanau, Cho & Bengio 2015, arXiv:1409.0473; readings after Gorishniy 2021, Borisov 2022, Mylonas 2022",
    needs={"attention"},
    cost=constant(1, 0),
    cost_text="1 forward",
    signed=False,
    class_specific=False,
    specificity="attention",
    rowwise=lambda *, read, **options: read == "row",
    folds=readable_folded,
)
def raw_attention(
    run: Run,
    *,
    layers: Layers = "last",
    heads: Heads = "mean",
    read: Annotated[str, OneOf(*READINGS)] = "row",
) -> Attribution:
    """Where the model looked: attention weights, averaged over heads and read at the position that feeds the head.

    ``layers``: "last", "mean", "product" (A_L···A_1 without residual), a number, or a list (its mean).
    ``heads``: "mean", "max", "min", "sum", a number, or a list (its mean).
    ``read``: "row" (what the readout attends to), "column" (who attends to it), "column_mean", "column_sum",
    "column_max" (attention received), "diagonal". With several streams, layers are counted for each pair of streams
    (who asks whom), and the row is the only reading.

    Misleads when: layers mix tokens before the one that is read, so a weight on a position is no longer a weight on
    the word that stood there; and it is the same for every class.
    """
    if (run.multi_stream or run.windowed) and (read != "row" or layers == "product"):
        raise NotOffered(
            "with several streams of tokens, or attention inside windows, raw attention is read by row, layer by "
            "layer: read='row' and layers='last', 'mean', a number or a list."
        )
    if run.windowed:
        return over_one_layer(run, False, lambda site: over_heads(site.attention_BHQK.float(), heads), layers)
    if run.multi_stream:
        return _over_streams(run, layers, heads)
    if run.folds:
        return read_layers(run, attention_heads(heads), layers, read)
    sites = run.layers_of(partial(chosen_layers, layers)).sites
    return combined(run, sites, lambda site: over_heads(site.attention_BHQK.float(), heads), layers, read)


def combined(
    run: Run, sites: Sequence[Site], fused: Callable[[Site], AnyBQK], layers: str | int | Sequence[int], read: str
) -> Attribution:
    """One map per layer, ``fused`` over its heads, brought together over ``layers`` and read."""
    keep_BN = run.attended_BN
    picked = chosen_layers(layers, len(sites))
    maps = [real(fused(sites[i]), keep_BN, sites[i]) for i in picked]
    square = [m for m in maps if m.shape[1] == m.shape[2]]
    if layers == "product":
        whole, last = product(maps), sites[picked[-1]]
    elif len(square) == len(maps) or read == "row":
        whole, last = _mean(run, maps, [sites[i] for i in picked])
    elif square:  # a last layer with few rows has no columns or diagonal of its own
        whole, last = torch.stack(square).mean(0), sites[0]
    else:
        whole, last = maps[-1], sites[picked[-1]]
    if read != "row" and whole.shape[1] != whole.shape[2]:
        raise NotOffered(
            f"read={read!r} needs a map with a row for every position, and the last layer of this model asks for "
            f"{whole.shape[1]} only: use read='row', or layers without the last one."
        )
    scores = _read(run, whole, last, read)
    layered = torch.stack(square, 1) if run.keep_layers and len(square) == len(maps) else None
    return Attribution(scores, matrix_BQK=whole, layers_BLQK=layered)


def _mean(run: Run, maps: list[AnyBQK], sites: list[Site]) -> tuple[AnyBQK, Site]:
    shapes = {m.shape for m in maps}
    if len(shapes) == 1:
        return torch.stack(maps).mean(0), sites[-1]
    rows = [read_row(m, run.readout_BN, s.first_query) for m, s in zip(maps, sites, strict=True)]
    return torch.stack(rows).mean(0)[:, None], sites[-1]


def _read(run: Run, whole_BQK: BQK, site: Site, read: str) -> torch.Tensor:
    readout = run.readout_BN
    if read == "row":
        if whole_BQK.shape[1] == 1 and readout.shape[1] != 1:
            return whole_BQK[:, 0]
        return read_row(whole_BQK, readout, site.first_query)
    if read == "column":
        return torch.einsum("bqk,bk->bq", whole_BQK, readout.to(whole_BQK.dtype))
    if read == "diagonal":
        return whole_BQK.diagonal(dim1=1, dim2=2)
    if read == "column_max":
        return whole_BQK.amax(1)
    total = whole_BQK.sum(1)
    if read == "column_sum":
        return total
    return total / run.keep_BN.sum(1, keepdim=True)


def _over_streams(run: Run, layers: str | int | Sequence[int], heads: str | int | Sequence[int]) -> Attribution:
    schedule, keep = run.schedule, run.by_stream(run.keep_BN)
    if run.folds:
        maps = folded_maps(run, attention_heads(heads), keep)
    else:
        maps = placed_maps(
            run.record(multi_stream=True), schedule, keep, lambda site: over_heads(site.attention_BHQK.float(), heads)
        )
    whole = layer_means(schedule, maps, layers)
    return Attribution(read_streams(whole, run.by_stream(run.readout_BN), keep), matrix_BQK=whole)
