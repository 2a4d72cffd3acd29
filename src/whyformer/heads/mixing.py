"""How much of a position's new vector comes from other positions, layer by layer."""

from __future__ import annotations

import torch
from torch import Tensor

from whyformer.errors import NotOffered
from whyformer.methods.value_norms import mixing_ratio
from whyformer.run import Run


def mixing_BL(run: Run) -> Tensor:
    """(B, L) mean over the real positions of a layer of Kobayashi et al. 2021's mixing ratio.

    NaN where the blocks of the model could not be taken apart (capture/blocks/anatomy.py).
    """
    sites = run.record().sites
    try:
        ratio_BLN = mixing_ratio(run, level="attn_res_ln")
    except NotOffered:
        return torch.full((run.batch.size, len(sites)), torch.nan)
    computed = torch.zeros_like(ratio_BLN)
    for layer, site in enumerate(sites):
        rows = slice(site.first_query, site.first_query + site.attention_BHQK.shape[2])
        computed[:, layer, rows] = run.keep_BN[:, rows].to(computed)
    return (ratio_BLN * computed).sum(2) / computed.sum(2).clamp(min=1)
