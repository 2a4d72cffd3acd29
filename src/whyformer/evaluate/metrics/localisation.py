"""Localisation: does the map of an image lie on the object?"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from whyformer.evaluate.metrics.plausibility import precision_recall
from whyformer.evaluate.trial import Trial
from whyformer.parameters import Limits
from whyformer.registry import metric

Array = np.ndarray[Any, Any]

LEVELS = 256  # bins of the histogram that Otsu's threshold is found in

# The map as it is: its highest point, its mass, the order of its pixels.


@metric(
    paper="Zhang et al. 2016, arXiv:1608.00507",
    kind="localisation",
    higher_is_better=True,
    needs={"region"},
    cost_text="none",
)
def pointing_game(trial: Trial, *, tolerance: Annotated[int, Limits(0, 10**6)] = 0) -> float:
    """1 where the highest point of the map lies on the object, else 0; the mean over inputs is the hit rate.

    ``tolerance``: pixels that it may be off (the paper: 15).

    Misleads when: objects fill the picture: pointing at the centre nearly always hits.
    """
    if trial.region is None or not trial.region.any():
        return float("nan")
    heat = trial.heat()
    row, column = np.unravel_index(int(heat.argmax()), heat.shape)
    rows, columns = np.nonzero(trial.region)
    return float(((rows - row) ** 2 + (columns - column) ** 2).min() <= tolerance**2)


@metric(
    paper="Arras, Osman & Samek 2022 (CLEVR-XAI), arXiv:2003.07258",
    kind="localisation",
    higher_is_better=True,
    needs={"region"},
    cost_text="none",
)
def relevance_mass(trial: Trial) -> float:
    """The share of the positive scores that lies on the object.

    Σ_{object} max(0, r) / Σ max(0, r) over the pixels of the interpolated map.

    Misleads when: compared across pictures without the object's share of the area, which is what a flat map gets.
    """
    if trial.region is None or not trial.region.any():
        return float("nan")
    heat = trial.heat()
    total = float(heat.sum())
    return float(heat[trial.region].sum()) / total if total > 0 else float("nan")


@metric(
    paper="as in Chefer, Gur & Wolf 2021 (CVPR), arXiv:2012.09838",
    kind="localisation",
    higher_is_better=True,
    needs={"region"},
    cost_text="none",
)
def mean_average_precision(trial: Trial) -> float:
    """Average precision of the map as a detector of the object's pixels; its mean over inputs is mAP.

    Σ_n (R_n - R_{n-1}) P_n over all thresholds.

    Misleads when: the object's share of the picture differs between inputs: it is the floor.
    """
    if trial.region is None or not trial.region.any():
        return float("nan")
    precision, recall = precision_recall(trial.heat().ravel(), trial.region.ravel())
    return float((np.diff(recall, prepend=0.0) * precision).sum())


# The bright part of the map as a segmentation of the object.


def otsu(values: Array) -> float:
    """The threshold between the two groups of values that differ most: the largest variance between them."""
    counts, edges = np.histogram(values, bins=LEVELS)
    centres = (edges[1:] + edges[:-1]) / 2
    below = np.cumsum(counts)[:-1]
    above = counts.sum() - below
    mean_below = np.cumsum(counts * centres)[:-1] / np.maximum(below, 1)
    mean_above = ((counts * centres).sum() - np.cumsum(counts * centres)[:-1]) / np.maximum(above, 1)
    return float(edges[1:-1][int(np.argmax(below * above * (mean_below - mean_above) ** 2))])


@metric(
    paper="threshold: Otsu 1979, doi:10.1109/TSMC.1979.4310076",
    kind="localisation",
    higher_is_better=True,
    needs={"region"},
    cost_text="none",
)
def iou_otsu(trial: Trial) -> float:
    """Intersection over union of the object with the part of the map above Otsu's threshold.

    Misleads when: a map has several levels, or one peak: Otsu cuts it in two wherever that pays most.
    """
    if trial.region is None or not trial.region.any():
        return float("nan")
    heat = trial.heat()
    bright = heat > otsu(heat) if np.ptp(heat) > 0 else np.ones_like(heat, dtype=bool)
    return float((bright & trial.region).sum() / (bright | trial.region).sum())
