"""The picture of a learned explanation method: its certificate, and of ``linear=True`` the weights of heads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from whyformer.parameters import checked
from whyformer.views.head_views import head_map, head_scale
from whyformer.views.marks import TableMark
from whyformer.views.view import Fact, Page, Panel, View

CAPTION = (
    "Means over held-out inputs, 95 % confidence intervals. Comprehensiveness: higher is better; sufficiency: lower "
    "is better. Ahead: paired difference in comprehensiveness - sufficiency (above 0, the learned one is better)."
)


@checked
def learned_page(result: Any) -> Page:
    """Facts, certificate, and head weights."""
    views = [_certificate(result)]
    if result.linear:
        views.append(_head_weights(result))
    if result.beside:
        views.append(_other_importances(result))
    return Page(result.title, tuple(views), () if result.certificate is None else (result.certificate.verdict,))


def _certificate(result: Any) -> View:
    facts = [
        Fact("learned from", f"{result.inputs} inputs ({result.kind}), {result.forwards:,} forward passes"),
        Fact("time", f"{result.seconds:.0f} s"),
        Fact("units", result.units),
    ]
    certificate = result.certificate
    if certificate is None:
        return View("Certificate", (), tuple(facts), ("There is no certificate: this method was not evaluated.",))
    if certificate.shapley_inputs:
        on = f"on {certificate.shapley_inputs} held-out inputs; 1 is best"
        facts += [
            Fact("Shapley values", f"R² {_limits(certificate.r2)}, rank {_limits(certificate.rank)} {on}"),
        ]
    columns = ("method", "passes", "comprehensiveness ↑", "sufficiency ↓", "learned is ahead by")
    rows = tuple(
        (
            m.name,
            f"{m.forwards:.0f} + {m.backwards:.0f}",
            _limits(m.comprehensiveness),
            _limits(m.sufficiency),
            ""
            if math.isnan(m.ahead[0])
            else "tied"
            if not any(round(x, 3) for x in m.ahead)
            else _limits(m.ahead, "+"),
        )
        for m in certificate.methods
    )
    table = Panel((TableMark(columns, rows),), wide=True)
    return View(f"Certificate: {certificate.inputs} held-out inputs", (table,), tuple(facts), caption=CAPTION)


def _limits(values: tuple[float, float, float], sign: str = "") -> str:
    """0.312 (0.280 to 0.340)"""
    if math.isnan(values[0]):
        return "–"
    if math.isnan(values[1]):
        return f"{values[0]:{sign}.3f}"
    return f"{values[0]:{sign}.3f} ({values[1]:{sign}.3f} to {values[2]:{sign}.3f})"


def _head_weights(result: Any) -> View:
    """How much each head counts, and in which direction its value × gradient does."""
    weights_LHK = result.head_weights
    sizes_LH = np.sqrt((weights_LHK**2).sum(-1))
    strength = head_scale([sizes_LH], meaning="size of a head's weights, all of its features")
    signed = head_scale([weights_LHK[..., 0]], signed=True, meaning="weight of value × gradient")
    panels = (
        Panel((head_map(sizes_LH, strength),), "Weight of each head"),
        Panel((head_map(weights_LHK[..., 0], signed),), "Weight of its value × gradient"),
    )
    caption = "Weights of standardized features: how many units of the output one standard deviation of a feature adds."
    return View("Heads", panels, caption=caption, columns=2, legend=strength, second_legend=signed)


BESIDE = {
    "gradient": "Gradient of its output (Michel et al. 2019)",
    "confidence": "Largest attention weight (Voita et al. 2019)",
    "relevance": "Share of its layer's relevance",
}


def _other_importances(result: Any) -> View:
    """Importances of heads that need no learning, with their rank correlation with the learned weights."""
    from scipy.stats import spearmanr

    sizes_LH = np.sqrt((result.head_weights**2).sum(-1))
    there_LH = np.isfinite(sizes_LH)
    panels, facts = [], []
    for kind, scores_LH in result.beside.items():
        scale = head_scale([scores_LH], meaning="")
        panels.append(Panel((head_map(scores_LH, scale),), BESIDE[kind]))
        both = sizes_LH[there_LH], np.asarray(scores_LH, float)[there_LH]
        agreement = float(spearmanr(*both).statistic) if min(np.ptp(each) for each in both) > 0 else math.nan
        if not math.isnan(agreement):
            facts.append(Fact(BESIDE[kind], f"rank correlation with the learned weights {agreement:+.2f}"))
    caption = "wf.head_importance on the held-out inputs; colours are relative to the largest value of each."
    return View("Beside importances that need no learning", tuple(panels), tuple(facts), caption=caption, columns=2)
