"""The page of the debate about attention: a picture for each property, and the copies of the model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from whyformer.evidence import mean_within, share_interval, with_interval
from whyformer.parameters import checked
from whyformer.shapes import Array
from whyformer.views.header import percent
from whyformer.views.marks import Points, Scatter, TableMark
from whyformer.views.report_view import findings_of, retrained_page
from whyformer.views.view import Page, Panel, View

SIGNIFICANT = 0.05


@checked
def debate_page(debate: Any) -> Page:
    """The page of an AttentionDebate."""
    (copies,) = retrained_page(debate.copies).views
    views = (_agreement(debate), _changed(debate), copies)
    return Page(debate.title, views, tuple(findings_of(debate.findings())))


def _of(tests: Any, name: str) -> Array:
    return np.array([float(getattr(test, name)) for test in tests])


def _plane(debate: Any, across: str, up: str, axes: tuple[str, str]) -> Scatter:
    """A point per input, coloured by class."""
    groups = []
    for name, tests in debate.classes.items():
        x, y = _of(tests, across), _of(tests, up)
        known = ~(np.isnan(x) | np.isnan(y))
        tips = tuple(test.title for test, there in zip(tests, known, strict=True) if there)
        groups.append(Points(f"class {name}", x[known], y[known], labels=tips))
    return Scatter(tuple(group for group in groups if len(group.x)), *axes)


def _agreement(debate: Any) -> View:
    """Property 1: attention against importance scores, per class."""
    rows = []
    for name, tests in {**debate.classes, "all": debate.tests.inputs}.items():
        cells = []
        for kind in ("gradient", "loo"):
            tau, p = _of(tests, f"tau_{kind}"), _of(tests, f"p_{kind}")
            known = ~np.isnan(tau)
            if not known.any():
                cells += ["", ""]
                continue
            share, count = float(((p < SIGNIFICANT) & (tau > 0))[known].mean()), int(known.sum())
            low, high = map(float, share_interval(np.asarray(share), count))
            cells.append(with_interval(mean_within(tau, -1.0, 1.0)))
            cells.append(f"{percent(share)} ({percent(low)} – {percent(high)})")
        rows.append((name, str(len(tests)), *cells))
    columns = ("predicted class", "inputs", "τ with gradients", "significant", "τ with leave-one-out", "significant ")
    panels = [Panel((TableMark(columns, tuple(rows)),), wide=True)]
    plane = _plane(debate, "tau_gradient", "tau_loo", ("τ with gradients", "τ with leave-one-out"))
    if plane.groups:
        panels.append(Panel((plane,), "Kendall's τ of attention, per input"))
    caption = (
        "Kendall's τ of attention with |gradient × input| and with leave-one-out (1: same order, 0: chance). "
        "Significant: share of inputs with τ > 0 and p < 0.05, with its 95 % confidence interval (Wilson)."
    )
    return View("Property 1: does attention agree with importance scores?", tuple(panels), caption=caption)


def _changed(debate: Any) -> View:
    """Property 2: does the output change with attention?"""
    shuffled = _plane(debate, "entropy", "median_change", ("entropy of attention", "median |Δp|"))
    adversary = _plane(debate, "jsd", "change", ("JSD of attention", "TVD of the output"))
    panels = (Panel((shuffled,), "Shuffled attention"), Panel((adversary,), "Adversarial attention"))
    caption = (
        "A point per input. Entropy: 0 where one token has all attention, 1 where all have the same. Change: median "
        f"over {debate.tests.permutations} shuffles. Adversarial attention: the most different map (JSD, at most "
        f"{math.log(2):.2f}) whose output changes by at most {debate.tests.epsilon:g}."
    )
    title = "Property 2: does other attention change the output?"
    return View(title, panels, caption=caption, columns=2)
