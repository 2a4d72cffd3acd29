"""Do methods agree, and do metrics? Rank correlations, and the overlap of the highest scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from whyformer.engines.perturbation.ranking import count_of, order_of

Array = np.ndarray[Any, Any]

TOP = 0.25  # share of the parts whose overlap is measured


def spearman(scores_MP: Array) -> Array:
    """(M, M) correlation of ranks; NaN where a method does not tell the parts apart."""
    ranks = np.stack([rankdata(scores) for scores in scores_MP])
    return _cosines(ranks - ranks.mean(1, keepdims=True))


def kendall(scores_MP: Array) -> Array:
    """(M, M) Kendall's τ-b: pairs of parts in the same order, less those in the opposite one."""
    first, second = np.triu_indices(scores_MP.shape[1], 1)
    return _cosines(np.sign(scores_MP[:, first] - scores_MP[:, second]))


def _cosines(vectors_MX: Array) -> Array:
    sizes = np.sqrt((vectors_MX**2).sum(1))
    known = np.where(sizes > 0, sizes, np.nan)
    return np.clip(vectors_MX @ vectors_MX.T / known[:, None] / known[None], -1, 1)


def top_overlap(scores_MP: Array, share: float = TOP) -> Array:
    """(M, M) share of the highest-scored parts that both name."""
    count = count_of(share, scores_MP.shape[1])
    named = np.zeros(scores_MP.shape)
    for row, scores in enumerate(scores_MP):
        named[row, order_of(scores)[:count]] = 1
    return named @ named.T / count


MEASURES = {"spearman": spearman, "kendall": kendall, "top_k": top_overlap}


def agreement(scores: Sequence[Array]) -> dict[str, Array]:
    """Matrices (methods × methods), the mean over inputs of (M, P) scores; NaN where never defined."""
    several = [np.asarray(s, dtype=float) for s in scores if s.shape[1] > 1]
    matrices = {}
    for name, measure in MEASURES.items():
        each = np.array([measure(s) for s in several])
        known = (~np.isnan(each)).sum(0) if len(each) else np.zeros((len(scores[0]),) * 2)
        total = np.nansum(each, axis=0) if len(each) else known
        matrices[name] = np.where(known > 0, total / np.maximum(known, 1), np.nan)
    return matrices


def ranking_agreement(goodness_TM: Array) -> Array:
    """(T, T) how far metrics rank the methods alike: correlation of ranks over the methods that all of them know.

    NaN where a metric does not tell the methods apart, and for fewer than two methods.
    """
    known = ~np.isnan(goodness_TM).any(0)
    if known.sum() < 2:
        return np.full((len(goodness_TM),) * 2, np.nan)
    return spearman(goodness_TM[:, known])
