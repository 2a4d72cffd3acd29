"""Gradient rollout: attention weighted by its gradient, multiplied through the layers with the residual."""

from __future__ import annotations

from typing import Annotated

import torch

from whyformer.engines.attention.folded import chained, weighted_heads, with_share
from whyformer.engines.attention.maps import (
    Heads,
    cumulative,
    discard_smallest,
    maps_of,
    over_heads,
    product,
    read_row,
    real,
    with_residual,
)
from whyformer.parameters import Limits, Place
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run


@method(
    paper="Gildenblat 2020, github.com/jacobgil/vit-explain",
    needs={"attention_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=False,
    class_specific=True,
    specificity="attention",
    folds=lambda *, discard, **options: not discard,
)
def gradient_rollout(
    run: Run,
    *,
    heads: Heads = "mean",
    discard: Annotated[float, Limits(0, 1, open_high=True)] = 0.0,
    start_layer: Place = 0,
    protect_special: bool = False,
) -> Attribution:
    """Rollout of the attention that raises the explained score: Â_L ··· Â_1 of gradient-weighted maps.

    Â_l = rownorm((F_l + I)/2), F_l = ReLU(fuse_h(A_l ∘ ∂s/∂A_l)). ``heads`` fuses: "mean", "max", "min", "sum", a head
    or a list of them. ``discard`` zeroes that share of the smallest entries of each F_l; ``protect_special`` keeps
    rows and columns of special tokens out of it. ``start_layer`` leaves earlier layers out.

    Misleads when: gradients are small against 1, which they usually are: the identity then swamps them, each position
    keeps nearly all of its own score, and only the ranking of the others says something. Heads are fused before the
    clamp, so a head that speaks against the target cancels one that speaks for it.
    """
    if run.folds:
        return chained(run, weighted_heads(heads), with_share(0.5, normalize=True), start_layer)
    sites = maps_of(run.record(grad=True), start_layer)
    keep_BN = run.attended_BN
    protected = run.special_BN if protect_special else None
    layers = []
    for site in sites:
        assert site.attention_grad_BHQK is not None
        # NOTE[DIFF] the authors' code meets layer l's attention with layer L-1-l's gradient (issue #6); here they meet
        # their own.
        weighted_BHQK = site.attention_BHQK.float() * site.attention_grad_BHQK.float()
        fused = real(over_heads(weighted_BHQK, heads).clamp(min=0), keep_BN, site)
        # NOTE[DIFF] the authors discard in the first input only, by indices of the whole batch; here in each its own.
        fused = discard_smallest(fused, discard, keep_BN, site, protected)
        # NOTE[DIFF] the authors divide column j by the sum of row j (a missing keepdim); here rows sum to one.
        layers.append(real(with_residual(fused, site.first_query, 0.5, normalize=True), keep_BN, site))
    whole = product(layers)
    scores = read_row(whole, run.readout_BN, sites[-1].first_query)
    square = layers[0].shape == layers[-1].shape
    per_layer = torch.stack(cumulative(layers), 1) if run.keep_layers and square else None
    return Attribution(scores, matrix_BQK=whole, layers_BLQK=per_layer)
