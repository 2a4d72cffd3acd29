"""Rank correlations between methods and between metrics, and the chance that a lead is luck."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from whyformer.engines.perturbation.players import count_of, order_of
from whyformer.shapes import Array

# Whether the best of many, picked in hindsight, leads by more than chance.

FLIPS = 4096  # of signs, at most: all of them for twelve inputs or fewer
RARE = 0.025  # one side of 95 %


def chance_of_lead(values_IM: Array, choice: int, seed: int, of: Sequence[int]) -> float:
    """How often somebody's lead over the choice would look as large if none of them had one.

    The best in hindsight is picked by the numbers that it is judged by, so its own interval is too narrow. Here the
    signs of all differences of an input are turned together, at random (if nobody is ahead, they might as well be), and
    the largest standardised lead of *anyone* is compared with the largest that was seen. All detections of an image are
    one input. NaN where there is nobody else, or a single input.
    """
    number = np.unique(np.asarray(of), return_inverse=True)[1]
    inputs = int(number.max(initial=-1)) + 1
    differences_IM = np.delete(values_IM - values_IM[:, [choice]], choice, 1)
    if inputs < 2 or not differences_IM.shape[1]:
        return math.nan
    each_IM = np.zeros((inputs, differences_IM.shape[1]))
    np.add.at(each_IM, number, differences_IM)
    turned = _signs(inputs, seed)
    sums_FM = turned @ each_IM
    squares_M = (each_IM**2).sum(0)
    # With squares fixed under turning, t rises with sum/√squares: no need for a variance per turn.
    sizes_FM = np.where(squares_M > 0, sums_FM / np.sqrt(np.where(squares_M > 0, squares_M, 1)), 0.0)
    most_F = sizes_FM.max(1)
    seen = float(np.where(squares_M > 0, each_IM.sum(0) / np.sqrt(np.where(squares_M > 0, squares_M, 1)), 0.0).max())
    return float((most_F >= seen - 1e-9).mean())


def _signs(inputs: int, seed: int) -> Array:
    """(F, I) ways to turn signs: all of them where they are few, as they are among them."""
    if 2**inputs <= FLIPS:
        return 1.0 - 2.0 * ((np.arange(2**inputs)[:, None] >> np.arange(inputs)) & 1)
    drawn = np.random.default_rng(seed).choice([-1.0, 1.0], (FLIPS, inputs))
    drawn[0] = 1.0
    return drawn


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
