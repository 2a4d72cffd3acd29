"""Value times gradient: what each token hands on in every attention, times the score's slope there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from whyformer.capture.fold import HeadFusion
from whyformer.engines.attention.folded import folded_maps, read_layers
from whyformer.engines.attention.maps import chosen_layers, real
from whyformer.engines.attention.streams import placed_maps
from whyformer.parameters import OneOf, Place, Places
from whyformer.registry import constant, method
from whyformer.results.types import Site
from whyformer.run import Attribution, Run
from whyformer.shapes import BQK


def _signed(attention_BHQK: Tensor, gradient_BHQK: Tensor | None) -> Tensor:
    """Σ_h A_h ∘ ∂s/∂A_h, what lowered the score included."""
    assert gradient_BHQK is not None
    return (attention_BHQK * gradient_BHQK).sum(1)


SIGNED_HEADS = HeadFusion(_signed, gradient=True)


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
    if run.multi_stream:
        return _over_streams(run, layers)
    if run.windowed:
        return _over_windows(run, layers)
    if run.folds:
        chosen = _chosen(layers, run.layer_count())
        mean = read_layers(run, SIGNED_HEADS, chosen, "column_sum")
        return Attribution(mean.scores_BN * len(chosen))
    sites = run.record(grad=True).sites
    picked = [sites[number] for number in _chosen(layers, len(sites))]
    maps = [real(_map(site), run.attended_BN, site) for site in picked]
    per_layer = torch.stack(maps, 1) if run.keep_layers and len({m.shape for m in maps}) == 1 else None
    return Attribution(torch.stack([map_BQK.sum(1) for map_BQK in maps]).sum(0), layers_BLQK=per_layer)


def _chosen(layers: str | int | Sequence[int], count: int) -> list[int]:
    return chosen_layers("mean" if layers == "all" else layers, count)


def _map(site: Site) -> BQK:
    assert site.attention_grad_BHQK is not None
    return _signed(site.attention_BHQK.float(), site.attention_grad_BHQK.float())


def _over_windows(run: Run, layers: str | int | Sequence[int]) -> Attribution:
    """A token of a later stage shares what it hands on among the patches it was made of."""
    windows, sites = run.windows, run.record(grad=True, multi_stream=True).sites
    total_BN = torch.zeros(run.keep_BN.shape, device=run.keep_BN.device)
    for number in _chosen(layers, len(sites)):
        columns_B1N = windows.whole(_map(sites[number]), number).sum(1, keepdim=True)
        eye = torch.eye(windows.sizes[0], device=columns_B1N.device)[None]
        total_BN = total_BN + (columns_B1N @ windows.merged(eye, 0, windows.placements[number].stage))[:, 0]
    return Attribution(total_BN)


def _over_streams(run: Run, layers: str | int | Sequence[int]) -> Attribution:
    """Each stream is scored by what it hands on to any: to itself, and to those that ask it."""
    schedule, keep = run.schedule, run.by_stream(run.keep_BN)
    if run.folds:
        maps = folded_maps(run, SIGNED_HEADS, keep)
    else:
        maps = placed_maps(run.record(grad=True, multi_stream=True), schedule, keep, _map)
    handed: dict[str, Tensor] = {}
    for key in schedule.streams:
        for query in schedule.streams:
            sites = schedule.between(query, key)
            for number in _chosen(layers, len(sites)) if sites else []:
                if sites[number] in maps:
                    columns_BN = maps[sites[number]].sum(1)
                    handed[key] = handed[key] + columns_BN if key in handed else columns_BN
    for link in schedule.links:  # tokens that are another stream's positions: theirs is what those handed on
        assert link.placed_BNM is not None
        if link.source in handed:
            placed_BMN = link.placed_BNM.transpose(1, 2).to(handed[link.source].dtype)
            shares_BMN = placed_BMN / placed_BMN.sum(2, keepdim=True).clamp(min=1)
            added_BN = torch.einsum("bm,bmn->bn", handed[link.source], shares_BMN)
            handed[link.into] = handed[link.into] + added_BN if link.into in handed else added_BN
    parts = [handed.get(stream, keep_BN.float() * 0) for stream, keep_BN in keep.items()]
    return Attribution(torch.cat(parts, 1))
