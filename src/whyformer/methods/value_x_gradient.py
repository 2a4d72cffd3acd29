"""Value times gradient: what each token hands on in every attention, times the score's slope there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from whyformer.capture.fold import HeadFusion
from whyformer.engines.attention.chain import kept, read_layers, stream_maps
from whyformer.engines.attention.maps import chosen_layers, real
from whyformer.parameters import OneOf, Place, Places
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run

# Σ_h A_h ∘ ∂s/∂A_h; negative entries, which lowered the score, are kept.
SIGNED_HEADS = HeadFusion(lambda attention, gradient: (attention * gradient).sum(1), gradient=True)


@method(
    paper="attention attribution, one point of its path: Hao et al. 2021 (AAAI), arXiv:2004.11207; summed over layers "
    "as AttCAT: Qiang et al. 2022 (NeurIPS)",
    needs={"attention_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=True,
    class_specific=True,
    specificity="attention",
    folds=lambda **options: True,
)
def value_x_gradient(run: Run, *, layers: Annotated[str, OneOf("all", "last")] | Place | Places = "all") -> Attribution:
    """What each token hands on in every attention, times the score's slope there, summed over heads and layers.

    r_j = Σ_l Σ_h v_j^lh · ∂s/∂v_j^lh, v being the values of layer l and head h. Since a head's result is A·v, this is
    Σ_l Σ_h Σ_i (A ∘ ∂s/∂A)_ij, and that is how it is computed. Nothing is clamped: below zero a token lowered the
    score. ``layers``: "all", "last", a number, or a list; with several streams counted for each pair of them.

    Misleads when: a token decides by where others look rather than by what it hands on (that part of the slope goes
    through queries and keys, and is left out), and in deep models, whose later layers hold tokens that are mixed.
    """
    choice = "mean" if layers == "all" else layers
    if run.multi_stream:
        return _over_streams(run, choice)
    if run.folds:
        mean_BN = read_layers(run, SIGNED_HEADS, choice, "column_sum").scores_BN
        return Attribution(mean_BN * len(chosen_layers(choice, run.layer_count())))
    sites = run.record(grad=True, multi_stream=run.windowed).sites
    picked = chosen_layers(choice, len(sites))
    if run.windowed:  # a token of a later stage passes its score to the patches it was made of
        windows, total_BN = run.windows, torch.zeros(run.keep_BN.shape, device=run.keep_BN.device)
        for number in picked:
            columns_B1N = windows.whole(SIGNED_HEADS.of(sites[number]), number).sum(1, keepdim=True)
            eye = torch.eye(windows.sizes[0], device=columns_B1N.device)[None]
            total_BN = total_BN + (columns_B1N @ windows.merged(eye, 0, windows.placements[number].stage))[:, 0]
        return Attribution(total_BN)
    maps = [real(SIGNED_HEADS.of(sites[number]), run.attended_BN, sites[number]) for number in picked]
    return Attribution(torch.stack([map_BQK.sum(1) for map_BQK in maps]).sum(0), layers_BLQK=kept(run, maps))


def _over_streams(run: Run, layers: str | int | Sequence[int]) -> Attribution:
    """Score each stream by what it hands on: to itself, and to the streams that attend to it."""
    schedule, keep, maps = run.schedule, run.by_stream(run.keep_BN), stream_maps(run, SIGNED_HEADS)
    handed: dict[str, Tensor] = {}
    for key in schedule.streams:
        for query in schedule.streams:
            sites = schedule.between(query, key)
            for number in chosen_layers(layers, len(sites)) if sites else []:
                if sites[number] in maps:
                    handed[key] = handed.get(key, 0) + maps[sites[number]].sum(1)
    for link in schedule.links:  # tokens made of another stream's positions receive what those handed on
        assert link.placed_BNM is not None
        if link.source in handed:
            placed_BMN = link.placed_BNM.transpose(1, 2).to(handed[link.source].dtype)
            shares_BMN = placed_BMN / placed_BMN.sum(2, keepdim=True).clamp(min=1)
            handed[link.into] = handed.get(link.into, 0) + torch.einsum("bm,bmn->bn", handed[link.source], shares_BMN)
    return Attribution(torch.cat([handed.get(stream, keep_BN.float() * 0) for stream, keep_BN in keep.items()], 1))
