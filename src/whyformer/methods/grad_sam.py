"""Grad-SAM: gradient self-attention maps."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from whyformer.engines.attention.folded import raised_heads, read_layers
from whyformer.engines.attention.maps import chosen_layers, real
from whyformer.parameters import OneOf, Place, Places
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run


@method(
    paper="Barkan et al. 2021 (CIKM), arXiv:2204.11073",
    needs={"attention_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=False,
    class_specific=True,
    specificity="attention",
    folds=lambda **options: True,
)
def grad_sam(
    run: Run,
    *,
    reduce: Annotated[str, OneOf("query", "key")] = "query",
    layers: Annotated[str, OneOf("mean", "last")] | Place | Places = "mean",
) -> Attribution:
    """Attention where more of it would raise the score, summed per token over all layers and heads.

    r_i = 1/(L·M·N) Σ_l Σ_m Σ_j (A ∘ ReLU(∂s/∂A))_ij over L layers, M heads, N tokens. ``reduce="query"`` is the
    published form: token i is credited for what it attends to. ``reduce="key"`` sums over the queries instead and
    says which input was attended to. ``layers``: "mean" (all of them), "last", a number, or the mean of a list.

    Misleads when: read as input attribution in the published form. In the top layer only [CLS] has a gradient, so
    the query form hands that layer's whole mass to [CLS], which therefore comes first.
    """
    if run.folds:
        attribution = read_layers(run, raised_heads(), layers, "keys" if reduce == "query" else "column_sum")
        return Attribution(attribution.scores_BN / run.keep_BN.sum(1, keepdim=True))
    every = run.record(grad=True).sites
    if not run.unpadded:
        _ = run.readout_BN  # refuses a head that reads padding, where the gradients are
    sites = [every[i] for i in chosen_layers(layers, len(every))]
    keep_BN = run.keep_BN
    total = torch.zeros(keep_BN.shape, device=keep_BN.device)
    maps = []
    for site in sites:
        assert site.attention_grad_BHQK is not None
        weighted = site.attention_BHQK.float() * site.attention_grad_BHQK.float().clamp(min=0)
        summed = real(weighted.mean(1), run.attended_BN, site)
        maps.append(summed)
        total += _over_keys(summed, site.first_query, total) if reduce == "query" else summed.sum(1)
    tokens_B1 = keep_BN.sum(1, keepdim=True)
    per_layer = torch.stack(maps, 1) if run.keep_layers and len({m.shape for m in maps}) == 1 else None
    return Attribution(total / (len(sites) * tokens_B1), layers_BLQK=per_layer)


def _over_keys(map_BQK: Tensor, first_query: int, like_BN: Tensor) -> Tensor:
    placed = torch.zeros_like(like_BN)
    placed[:, first_query : first_query + map_BQK.shape[1]] = map_BQK.sum(2)
    return placed
