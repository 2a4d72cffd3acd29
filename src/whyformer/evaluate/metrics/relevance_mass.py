"""Relevance mass: which share of the map lies on the object?"""

from __future__ import annotations

from whyformer.evaluate.trial import Trial
from whyformer.registry import metric


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
