"""Grad-SAM: gradient self-attention maps."""

from __future__ import annotations

from typing import Annotated

import torch

from whyformer.engines.attention.chain import kept, raised_heads, read_layers
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
    heads, tokens_B1 = raised_heads(), run.keep_BN.sum(1, keepdim=True)
    if run.folds:
        mean = read_layers(run, heads, layers, "keys" if reduce == "query" else "column_sum")
        return Attribution(mean.scores_BN / tokens_B1)
    every = run.record(grad=True).sites
    if not run.unpadded:
        _ = run.readout_BN  # raises if the head reads padding, where the gradients are
    sites = [every[i] for i in chosen_layers(layers, len(every))]
    maps = [real(heads.of(site), run.attended_BN, site) for site in sites]
    total_BN = torch.zeros(run.keep_BN.shape, device=run.keep_BN.device)
    for site, map_BQK in zip(sites, maps, strict=True):
        if reduce == "query":
            total_BN[:, site.first_query : site.first_query + map_BQK.shape[1]] += map_BQK.sum(2)
        else:
            total_BN += map_BQK.sum(1)
    return Attribution(total_BN / (len(sites) * tokens_B1), layers_BLQK=kept(run, maps))
