"""The relevance engine for attention inside windows (Swin): maps laid out over the whole grid, stages joined.

A map inside windows is a map over all tokens that is zero between windows. Where tokens are merged on the way, rows of
relevance are averaged the same way: R ← M·R. So R of the last stage has one column per patch of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from whyformer.engines.attention.maps import chosen_layers
from whyformer.run import Attribution, Run
from whyformer.shapes import AnyBQK
from whyformer.study.windows import Windows
from whyformer.types import Site


def over_windows(
    run: Run,
    grad: bool,
    reduce: Callable[[Site], AnyBQK],
    with_residual: Callable[[AnyBQK], AnyBQK],
    start_layer: int = 0,
) -> Attribution:
    """A_L ··· M ··· A_1 of maps with residual, read as the mean over the last tokens (what the head pools)."""
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
    """Chosen maps as they are, each read as the mean over its tokens and spread over the patches they are made of."""
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
