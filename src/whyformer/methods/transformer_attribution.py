"""Transformer attribution: the relevance of attention, weighted by its gradient."""

from __future__ import annotations

from typing import Annotated

import torch

from whyformer.capture.leaves import Traced
from whyformer.capture.lrp.alpha_beta import AlphaBeta
from whyformer.capture.record import require_sites, sites_of
from whyformer.engines.attention.chain import multiplied
from whyformer.engines.attention.maps import maps_of, plus_identity, real, row_normalized
from whyformer.loan.borrow import module_names
from whyformer.parameters import OneOf, Place
from whyformer.registry import constant, method
from whyformer.results.types import Record, Site
from whyformer.run import Attribution, Run
from whyformer.shapes import BQK
from whyformer.study import require_readable

VARIANTS = ("full", "rollout", "last_layer", "lrp")


@method(
    paper="Chefer, Gur & Wolf 2021 (CVPR), arXiv:2012.09838",
    needs={"attention_gradients"},
    cost=constant(2, 2),
    cost_text="2 forwards + 2 backwards (one of each carries relevance, in double precision)",
    signed=False,
    class_specific=True,
    meaning="attention that carried the answer, followed through all layers",
)
def transformer_attribution(
    run: Run, *, variant: Annotated[str, OneOf(*VARIANTS)] = "full", start_layer: Place = 0, normalize: bool = False
) -> Attribution:
    """Relevance that attention received, where more attention would raise the score: C = C_L ··· C_1.

    C_l = I + mean_h max(0, ∂s/∂A_l ∘ R(A_l)); R(A_l) is the layer-wise relevance (alpha = 1, beta = 0) of the
    attention map, carried back from a one-hot seed at the target. ``start_layer`` leaves earlier layers out;
    ``normalize`` divides rows by their sum (the authors do so for BERT, not for ViT). ``variant``: "full";
    "rollout" without the gradient, C_l = I + mean_h max(0, R(A_l)); "last_layer" the last attention alone,
    mean_h max(0, R(A_L)); "lrp" no attention map at all but the relevance, with its signs, that arrives at the
    vectors entering the first block.

    Misleads when: negative evidence matters, which is clamped away, and when small differences are read: single
    entries of R can be large without meaning, since the rules divide by sums that come close to zero.
    """
    require_readable(run.study)
    dtype = torch.float32 if run.keep_BN.device.type == "mps" else torch.float64
    names, axes = module_names(run.modality.model), run.study.batch_axes
    rules = AlphaBeta(run.batch.size, names, axes, positions=run.length, dtype=dtype)
    trace = run.traced(rules, dtype)
    warnings = [rules.unruled_text(trace.value_B)] * run.batch.size
    if variant == "lrp":
        return _at_tokens(run, trace, warnings)
    relevances = run.differentiated(trace, [site.attention for site in rules.sites])
    # The relevance of every attention map, in the place where a record has the gradient.
    record = Record(tuple(sites_of(rules, False, relevances)), run.logits, rules.unclaimed)
    require_sites(record)
    sites = maps_of(record, -1 if variant == "last_layer" else start_layer)
    gradients = maps_of(run.record(grad=True), start_layer) if variant == "full" else [None] * len(sites)
    layers = []
    for site, gradient in zip(sites, gradients, strict=True):
        layer = _over_heads(site, gradient)
        if variant != "last_layer":
            layer = plus_identity(layer, site.first_query)
        layer = real(layer, run.attended_BN, site)
        layers.append(row_normalized(layer) if normalize else layer)
    return multiplied(run, layers, sites[-1].first_query, warnings)


def _over_heads(site: Site, gradient: Site | None) -> BQK:
    """Return mean_h max(0, G ∘ R): clamp, then head mean."""
    relevance_BHQK = site.attention_grad_BHQK
    assert relevance_BHQK is not None
    if gradient is not None:
        assert gradient.attention_grad_BHQK is not None
        relevance_BHQK = relevance_BHQK * gradient.attention_grad_BHQK
    return relevance_BHQK.clamp(min=0).mean(1).float()


def _at_tokens(run: Run, trace: Traced, warnings: list[list[str]]) -> Attribution:
    # NOTE[DIFF] the authors' "full LRP" of a ViT goes on to the pixels, through the patch embedding.
    (relevance,) = run.differentiated(trace, [trace.tokens()])
    run.require_input_slopes()
    detail_BND = trace.batch_first(relevance).float()
    scores = detail_BND.sum(2) * run.keep_BN
    return Attribution(scores, detail=[d.cpu().numpy() for d in detail_BND], warnings=warnings, signed=True)
