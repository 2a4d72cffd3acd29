"""Gradient rollout: attention weighted by its gradient, multiplied through the layers with the residual."""

from __future__ import annotations

from typing import Annotated

from whyformer.capture.fold import HeadFusion
from whyformer.engines.attention.chain import chain
from whyformer.engines.attention.maps import Heads, over_heads
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
    # NOTE[DIFF] the authors' code meets layer l's attention with layer L-1-l's gradient (issue #6); here they meet
    # their own.
    weighted = HeadFusion(lambda attention, gradient: over_heads(attention * gradient, heads).clamp(min=0), True)
    # NOTE[DIFF] the authors discard in the first input only, by indices of the whole batch; here in each its own.
    # NOTE[DIFF] the authors divide column j by the sum of row j (a missing keepdim); here rows sum to one.
    return chain(
        run, weighted, normalize=True, start_layer=start_layer, discard=discard, protect_special=protect_special
    )
