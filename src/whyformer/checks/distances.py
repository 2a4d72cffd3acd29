"""Distances between distributions, and agreement between maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.shapes import Array

TINY = 1e-12
FEWEST = 3  # units below which a rank correlation says nothing


def jsd(a: Tensor, b: Tensor) -> Tensor:
    """Jensen–Shannon divergence over the last axis in nats: 0 for equal, ln 2 for disjoint distributions.

    A weight of zero has a finite slope, so that it can be searched over.
    """
    middle = (a + b) / 2
    return ((_kl(a, middle) + _kl(b, middle)) / 2).clamp(min=0)


def _kl(a: Tensor, b: Tensor) -> Tensor:
    return (a * (a.clamp(min=TINY).log() - b.clamp(min=TINY).log())).sum(-1)


def tvd(p: Tensor, q: Tensor) -> Tensor:
    """Total variation distance of two outputs, ½ Σ_c |p_c - q_c|: |Δp| for two classes.

    NOTE[DIFF]: Jain & Wallace average |Δp| over outputs, which for one sigmoid is the same number; Wiegreffe & Pinter's
    code halves it once more.
    """
    return (p - q).abs().sum(-1) / 2


def probabilities(logits_BC: Tensor) -> Tensor:
    """(B, C) softmax; a single logit becomes the two classes of a sigmoid."""
    logits = logits_BC.float()
    if logits.shape[1] == 1:
        yes = logits.sigmoid()
        return torch.cat([1 - yes, yes], 1)
    return logits.softmax(1)


def decisions(probabilities_BC: Tensor) -> Tensor:
    return probabilities_BC.argmax(-1)


def kendall(a: Array, b: Array) -> tuple[float, float]:
    """Kendall's τ-b and its p-value; NaN for fewer than three units or constant scores."""
    from scipy.stats import kendalltau

    if len(a) < FEWEST or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan"), float("nan")
    correlation = kendalltau(a, b)
    return float(correlation.statistic), float(correlation.pvalue)


def rank_agreement(a: Array, b: Array) -> float:
    """Spearman's ρ; 1 where both are the same numbers (also constant ones), NaN where only one of them is constant."""
    from scipy.stats import rankdata

    a, b = np.asarray(a, float), np.asarray(b, float)
    if a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-7 * max(1e-12, float(np.abs(a).max(initial=0)))):
        return 1.0
    if len(a) < FEWEST or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])


def mean_known(values: Any) -> float:
    """The mean of what is not NaN; NaN where nothing is known."""
    known = np.asarray([v for v in values if not np.isnan(v)], float)
    return float(known.mean()) if len(known) else float("nan")
