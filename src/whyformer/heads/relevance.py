"""Relevance of heads and layers by generic attention (Chefer, Gur & Wolf 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from whyformer.heads.gradient import table
from whyformer.relevance import real
from whyformer.run import Run


def relevance_rows(run: Run) -> list[Tensor]:
    """Per layer (B, H): relevance that reaches the readout row through that layer's heads.

    Generic attention's row r = e·(I + Ā_L) ··· (I + Ā_1) is evaluated from the left: r_l = r_{l+1} + r_{l+1}·Ā_l, and
    since Ā is a mean over heads, what layer l adds, Σ_j (r_{l+1}·Ā_l)_j, is a sum over heads.
    """
    row_BN = run.readout_BN.float()
    added: list[Tensor] = []
    for site in reversed(run.record(grad=True).sites):
        assert site.attention_grad_BHQK is not None
        raised = (site.attention_BHQK.float() * site.attention_grad_BHQK.float()).clamp(min=0)
        heads = [real(raised[:, head], run.keep_BN, site) / raised.shape[1] for head in range(raised.shape[1])]
        queries = row_BN[:, site.first_query : site.first_query + raised.shape[2]]
        through_BHK = torch.stack([torch.einsum("bq,bqk->bk", queries, head) for head in heads], 1)
        added.append(through_BHK.sum(-1))
        row_BN = row_BN + through_BHK.sum(1)
    return added[::-1]


def relevance_share(run: Run) -> Tensor:
    """(B, L, H) relevance through each head, divided by that of its layer; a layer without any is zero."""
    shares = []
    for added_BH in relevance_rows(run):
        total = added_BH.sum(1, keepdim=True)
        shares.append(torch.where(total == 0, 0.0, added_BH / torch.where(total == 0, 1.0, total)))
    return table(shares)
