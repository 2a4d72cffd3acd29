"""Confidence: how sharply a head looks at one token (Voita et al. 2019)."""

from __future__ import annotations

from torch import Tensor

from whyformer.heads.gradient import table
from whyformer.run import Run


def confidence(run: Run) -> Tensor:
    """(B, L, H) mean over real query rows of max_k A, special tokens ([CLS], [SEP], </s>) left out of the max."""
    keep_BN = run.keep_BN
    looked_at = keep_BN & ~run.special_BN
    layers = []
    for site in run.record().sites:
        attention = site.attention_BHQK.float()
        strongest_BHQ = (attention * looked_at[:, None, None, :]).amax(-1)
        rows_BQ = keep_BN[:, site.first_query : site.first_query + attention.shape[2]].float()
        layers.append((strongest_BHQ * rows_BQ[:, None]).sum(-1) / rows_BQ.sum(1).clamp(min=1)[:, None])
    return table(layers)
