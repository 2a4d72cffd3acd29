"""Metrics without masked inputs: agreement with human annotations (rationales, masks, boxes), robustness, sparsity."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import numpy as np

from whyformer.engines.perturbation.players import count_of, order_of
from whyformer.evaluate.candidate import Trial
from whyformer.parameters import Count, Limits, Share, Weight
from whyformer.registry import metric
from whyformer.shapes import Array

plausibility = partial(metric, kind="plausibility", higher_is_better=True, needs={"rationale"}, cost_text="none")
localisation = partial(metric, kind="localisation", higher_is_better=True, needs={"region"}, cost_text="none")


def precision_recall(scores_X: Array, marked_X: Array) -> tuple[Array, Array]:
    """Return precision and recall at every threshold, from the highest down; equal scores share a threshold."""
    order = np.argsort(-scores_X, kind="stable")
    scores, hits = scores_X[order], np.cumsum(marked_X[order])
    last = np.flatnonzero(np.append(np.diff(scores) != 0, True))
    return hits[last] / (last + 1), hits[last] / hits[-1]


@plausibility(paper="DeYoung et al. 2020 (ERASER), arXiv:1911.03429")
def auprc(trial: Trial) -> float:
    """Area under the precision-recall curve of the scores against the annotated features.

    Trapezoids between thresholds, starting at precision 1 and recall 0, as in the authors' code. Higher is better.

    Misleads when: compared across inputs with different shares of annotated features: random scores reach that share.
    """
    if trial.rationale_P is None or not trial.rationale_P.any():
        return float("nan")
    precision, recall = precision_recall(np.asarray(trial.scores_P, dtype=float), trial.rationale_P)
    precision, recall = np.concatenate([[1.0], precision]), np.concatenate([[0.0], recall])
    return float((np.diff(recall) * (precision[1:] + precision[:-1]) / 2).sum())


def chosen(trial: Trial, share: float | None) -> Array:
    """Return the (P,) features with the highest scores: as many as were annotated, or a share of all."""
    assert trial.rationale_P is not None
    parts = len(trial.scores_P)
    count = int(trial.rationale_P.sum()) if share is None else count_of(share, parts)
    named = np.zeros(parts, dtype=bool)
    named[order_of(trial.scores_P)[:count]] = True
    return named


def f1(hits: float, named: float, marked: float) -> float:
    """Return the harmonic mean of precision and recall; 0 without a hit."""
    return 2 * hits / (named + marked) if named + marked else 0.0


@plausibility(paper="DeYoung et al. 2020 (ERASER), arXiv:1911.03429")
def token_f1(trial: Trial, *, share: Share | None = None) -> float:
    """F1 of the features with the highest scores against the annotated features.

    Uses as many features as were annotated, or a ``share`` of all. Higher is better.

    Misleads when: used as a measure of faithfulness: it measures agreement with people, not what the model used.
    """
    if trial.rationale_P is None or not trial.rationale_P.any():
        return float("nan")
    named = chosen(trial, share)
    return f1(float((named & trial.rationale_P).sum()), float(named.sum()), float(trial.rationale_P.sum()))


def stretches(marked_P: Array) -> list[tuple[int, int]]:
    """Return (start, end) of each run of annotated features."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marked_P.astype(int), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def overlap(a: tuple[int, int], b: tuple[int, int]) -> float:
    """Return the intersection over union of two spans."""
    shared = max(0, min(a[1], b[1]) - max(a[0], b[0]))
    return shared / (max(a[1], b[1]) - min(a[0], b[0])) if shared else 0.0


@plausibility(paper="DeYoung et al. 2020 (ERASER), arXiv:1911.03429")
def iou_f1(trial: Trial, *, share: Share | None = None, threshold: Share = 0.5) -> float:
    """F1 over spans of text: a span counts if it overlaps an annotated span by ``threshold`` or more.

    Overlap is intersection over union; spans are runs of neighbouring features among those with the highest scores, as
    many features as were annotated. Higher is better.

    Misleads when: scores alternate between neighbouring words: many short spans match no annotated span.
    """
    if trial.rationale_P is None or not trial.rationale_P.any():
        return float("nan")
    named, marked = stretches(chosen(trial, share)), stretches(trial.rationale_P)
    if not named:
        return 0.0
    precision = sum(any(overlap(n, m) >= threshold for m in marked) for n in named) / len(named)
    # NOTE[DIFF] the authors divide the hits among the named stretches by the number of marked ones, so recall can
    # exceed 1; here a marked stretch is found or not.
    recall = sum(any(overlap(n, m) >= threshold for n in named) for m in marked) / len(marked)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


LEVELS = 256  # bins of the histogram that Otsu's threshold is found in


@localisation(paper="Zhang et al. 2016, arXiv:1608.00507")
def pointing_game(trial: Trial, *, tolerance: Annotated[int, Limits(0, 10**6)] = 0) -> float:
    """1 if the maximum of the map lies on the object, else 0; the mean over inputs is the hit rate.

    ``tolerance``: the allowed distance in pixels (the paper: 15). Higher is better.

    Misleads when: objects fill the image: the centre is then nearly always a hit.
    """
    if trial.region is None or not trial.region.any():
        return float("nan")
    heat = trial.heat()
    row, column = np.unravel_index(int(heat.argmax()), heat.shape)
    rows, columns = np.nonzero(trial.region)
    return float(((rows - row) ** 2 + (columns - column) ** 2).min() <= tolerance**2)


@localisation(paper="Arras, Osman & Samek 2022 (CLEVR-XAI), arXiv:2003.07258")
def relevance_mass(trial: Trial) -> float:
    """Share of the positive scores that lies on the object.

    Σ_{object} max(0, r) / Σ max(0, r) over the pixels of the interpolated map. Higher is better.

    Misleads when: compared across images with objects of different sizes: a constant map reaches the object's share of
    the area.
    """
    if trial.region is None or not trial.region.any():
        return float("nan")
    heat = trial.heat()
    total = float(heat.sum())
    return float(heat[trial.region].sum()) / total if total > 0 else float("nan")


@localisation(paper="as in Chefer, Gur & Wolf 2021 (CVPR), arXiv:2012.09838")
def mean_average_precision(trial: Trial) -> float:
    """Average precision of the map as a detector of the object's pixels; its mean over inputs is mAP.

    Σ_n (R_n - R_{n-1}) P_n over all thresholds. Negative scores count as 0: pixels that speak against the class are not
    ordered among themselves. Higher is better.

    Misleads when: the object's share of the image differs between inputs: random scores reach that share.
    """
    if trial.region is None or not trial.region.any():
        return float("nan")
    precision, recall = precision_recall(trial.heat().ravel(), trial.region.ravel())
    return float((np.diff(recall, prepend=0.0) * precision).sum())


def otsu(values: Array) -> float:
    """Return Otsu's threshold: it splits the values into two groups with the largest variance between them."""
    counts, edges = np.histogram(values, bins=LEVELS)
    centres = (edges[1:] + edges[:-1]) / 2
    below = np.cumsum(counts)[:-1]
    above = counts.sum() - below
    mean_below = np.cumsum(counts * centres)[:-1] / np.maximum(below, 1)
    mean_above = ((counts * centres).sum() - np.cumsum(counts * centres)[:-1]) / np.maximum(above, 1)
    return float(edges[1:-1][int(np.argmax(below * above * (mean_below - mean_above) ** 2))])


@localisation(paper="threshold: Otsu 1979, doi:10.1109/TSMC.1979.4310076")
def iou_otsu(trial: Trial) -> float:
    """Intersection over union of the object with the region of the map above Otsu's threshold.

    Negative scores count as 0, also where the threshold is computed. Higher is better.

    Misleads when: a map has several levels or a single peak: Otsu's threshold always splits it into two groups.
    """
    if trial.region is None or not trial.region.any():
        return float("nan")
    heat = trial.heat()
    bright = heat > otsu(heat) if np.ptp(heat) > 0 else np.ones_like(heat, dtype=bool)
    return float((bright & trial.region).sum() / (bright | trial.region).sum())


@metric(
    paper="Yeh et al. 2019, arXiv:1901.09392",
    kind="robustness",
    higher_is_better=False,
    needs={"explaining_again"},
    cost_text="10 × the method's own",
)
def max_sensitivity(trial: Trial, *, radius: Weight = 0.02, samples: Count = 10) -> float:
    """Largest relative change of the scores under small noise on the input.

    max_k ‖φ(x + δ_k) - φ(x)‖ / ‖φ(x)‖, δ uniform in ±radius times the standard deviation of the input's values:
    pixels, columns, or word embeddings. Lower is better.

    Misleads when: used as a measure of faithfulness: constant scores have the lowest sensitivity.
    """
    if trial.again is None:
        return float("nan")
    scores = np.asarray(trial.scores_P, dtype=float)
    size = float(np.linalg.norm(scores))
    if size == 0:
        return float("nan")
    return max(float(np.linalg.norm(trial.again(draw, radius) - scores)) for draw in range(samples)) / size


GINI = "Gini index, as in Chalasani et al. 2020, arXiv:1810.06583"


@metric(paper=GINI, kind="complexity", higher_is_better=True, needs=set(), cost_text="none")
def sparsity(trial: Trial) -> float:
    """Gini index of the absolute scores: 0 if all are equal, near 1 if one feature has the whole score.

    Σ_i (2i - n - 1) |φ|_(i) / (n Σ|φ|) with absolute scores in ascending order.

    Misleads when: used as a measure of quality: a wrong map can be as sparse as a right one.
    """
    sizes = np.sort(np.abs(np.asarray(trial.scores_P, dtype=float)))
    total, count = float(sizes.sum()), len(sizes)
    if total == 0:
        return float("nan")
    return float(((2 * np.arange(1, count + 1) - count - 1) * sizes).sum() / (count * total))
