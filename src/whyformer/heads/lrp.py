"""Relevance of heads by layer-wise relevance propagation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.heads.values import HeldAttention
from whyformer.capture.lrp.rules import GradientRules
from whyformer.capture.paths import module_names
from whyformer.errors import NotOffered
from whyformer.heads.gradient import table
from whyformer.run import Run


def lrp_relevance(run: Run) -> Tensor:
    """(B, L, H) share of its layer's relevance that reaches each head's result, in absolute value.

    R_h = Σ_q o_hq · ∂s/∂o_hq under the gradient rules of CP-LRP (capture/lrp/rules.py): the score handed back layer by
    layer, attention maps being constants. A layer without relevance is zero.

    NOTE[DIFF] Voita et al. 2019 use the αβ rule with α = β = ½ and rescale each layer; the ε rule (ε → 0) conserves by
    itself. They do not say what becomes of negative relevance: here the absolute value is taken per head.
    """
    rules = GradientRules(attention_is_constant=True)
    role = HeldAttention(run.batch.size, module_names(run.subject.model), run.study.batch_axes)
    everyone = list(range(run.batch.size))
    with torch.enable_grad():
        with rules, role:
            logits = run.head.logits(run.batch)
        total = run.scalars(logits).sum()
        np.add.at(run.forwards_B, everyone, 1)
        np.add.at(run.backwards_B, everyone, 1)
        if not role.sites or not total.requires_grad:
            raise NotOffered("the explained output does not depend on any captured attention with gradients.")
        layers = role.gradient_times_value(total)
    shares = []
    for relevance_BH in layers:
        size = relevance_BH.abs()
        whole = size.sum(1, keepdim=True)
        shares.append(torch.where(whole == 0, 0.0, size / torch.where(whole == 0, 1.0, whole)))
    return table(shares)
