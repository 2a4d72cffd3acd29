"""Mean average precision: how well the map sorts the object's pixels before the rest."""

from __future__ import annotations

import numpy as np

from whyformer.evaluate.metrics.auprc import precision_recall
from whyformer.evaluate.trial import Trial
from whyformer.registry import metric


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
