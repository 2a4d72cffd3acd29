"""A check-up as a page: what to doubt in words first, then the pictures behind it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from whyformer.parameters import checked
from whyformer.types import Explanation
from whyformer.views.explained import TEXT
from whyformer.views.facts import cost_of, duration
from whyformer.views.image import heat
from whyformer.views.marks import Bar, Bars, Mark, Points, Scale, Scatter, Table
from whyformer.views.scales import scale_of
from whyformer.views.text import bars, token_run
from whyformer.views.view import Fact, Page, Panel, Terms, View

HEADINGS = {"warning": "Doubt it", "note": "Know this", "ok": "Looked, and found nothing wrong"}
MOST_INPUTS = 5


@checked
def checkup_page(checkup: Any) -> Page:
    """The page of a CheckUp."""
    lead: list[str | Terms] = [_summary(checkup), *findings_of(checkup)]
    views: list[View] = []
    if "jain_wallace" in checkup.results:
        views += [_twice(test) for test in checkup.results["jain_wallace"].inputs[:MOST_INPUTS]]
    if "serrano_smith" in checkup.results and checkup.results["serrano_smith"].ever_flips:
        views.append(_erased(checkup.results["serrano_smith"]))
    if "randomisation" in checkup.results:
        views.append(_cascade(checkup.results["randomisation"]))
    return Page(checkup.title, tuple(views), tuple(lead))


def findings_of(checkup: Any) -> list[Terms]:
    """What was found, what to doubt first."""
    by_level = {level: tuple(Fact(f.title, f.text) for f in checkup.of(level)) for level in HEADINGS}
    return [Terms(facts, HEADINGS[level], level=level) for level, facts in by_level.items() if facts]


def _summary(checkup: Any) -> str:
    counts = {level: len(checkup.of(level)) for level in HEADINGS}
    words = f"{counts['warning']} to doubt, {counts['note']} to know, {counts['ok']} fine"
    return f"{words}; {duration(checkup.seconds)}."


def _twice(test: Any) -> View:
    """The input twice: the attention that the model has, and one that gives the same output."""
    maps: list[Explanation] = [m for m in (test.original, test.adversarial) if m is not None]
    # By the model's own map: one that puts all weight on a single unit would leave the other one white.
    scale = scale_of([test.original.scores], meaning="share of the attention on ordinary tokens")
    names = ("the model's own attention", "adversarial attention")
    panels = []
    for name, one in zip(names, maps, strict=False):
        output = f"{one.scalar} of '{one.target.label or one.target.index}' = {one.value:.3f}"
        panels.append(Panel(_drawn(one, scale), f"{name}: {output}", wide=one.units.grid is None))
    return View(
        test.title,
        tuple(panels),
        (
            Fact("difference", f"JSD {test.jsd:.2f} of at most 0.69, output |Δp| = {test.change:.3f}"),
            Fact("shuffled", f"median |Δp| = {test.median_change:.3f}; largest weight {test.max_attention:.2f}"),
            *_known(test),
        ),
        caption="Attention over the ordinary units, on a scale that ends at the largest weight of the model's own map. "
        "Special tokens keep their weights in both.",
        columns=2,
        legend=scale,
    )


def _known(test: Any) -> list[Fact]:
    """What can be told of this model: gradients at the input and mixing ratios are not known for several streams."""
    agreement = [
        f"{tau:+.2f} ({name})"
        for name, tau in (("gradient", test.tau_gradient), ("leave-one-out", test.tau_loo))
        if not math.isnan(tau)
    ]
    facts = [Fact("agreement", f"Kendall's τ {', '.join(agreement)}")] if agreement else []
    if not math.isnan(test.mixing):
        facts.append(Fact("mixing", f"{test.mixing:.0%} of what is read there comes through attention"))
    return facts


def _drawn(explanation: Explanation, scale: Scale) -> tuple[Mark, ...]:
    """The image, the words, and bars for whatever else there is (columns, boxes)."""
    units = explanation.units
    marks: list[Mark] = []
    rest = [i for i, special in enumerate(units.special) if not special]
    if units.grid is not None:
        marks.append(heat(explanation, scale=scale))
        rest = [i for i in rest if units.stream[i] != "image"]
    words = [i for i in rest if units.stream[i] in TEXT]
    others = [i for i in rest if i not in set(words)]
    for stream in dict.fromkeys(units.stream[i] for i in words):
        members = [i for i in words if units.stream[i] == stream]
        marks.append(token_run(explanation, scale=scale, members=members))
    if others:
        marks.append(bars(explanation, scale=scale, members=others))
    return tuple(marks)


def _erased(result: Any) -> View:
    orders = list(result.inputs[0].erased)
    marks = Bars(
        tuple(Bar(order.replace("gradient ×", "grad ×"), result.erased(order)) for order in orders),
        Scale(0.0, 1.0, meaning="share erased"),
    )
    caption = "The shorter the bar, the sooner the decision flipped; 1: it never did."
    return View("Share of attention weights erased until the decision flips", (Panel((marks,)),), caption=caption)


def _cascade(result: Any) -> View:
    scale = Scale(-1.0, 1.0, True, "Spearman with the original map")
    known = [s for s in result.stages if s.cascading == s.cascading]
    together = Bars(tuple(Bar(_short(s.part), s.cascading) for s in known), scale)
    alone = Bars(
        tuple(Bar(_short(s.part), s.independent) for s in result.stages if s.independent == s.independent), scale
    )
    return View(
        f"{result.method} with random weights",
        (Panel((together,), "this part and all above it random"), Panel((alone,), "this part alone random")),
        caption="Bars: Spearman's correlation with the map of the trained model, from the output down to the input. A "
        "map that shows what was learned falls towards 0.",
        columns=2,
    )


def _short(part: str) -> str:
    words = part.split(".")
    return ".".join(words[-2:]) if words[-1].isdigit() else words[-1]


@checked
def retrained_page(result: Any) -> Page:
    """The page of a RetrainedAttention: what was found in words, all models, and output against attention."""
    lead: list[str | Terms] = []
    for level, heading in HEADINGS.items():
        facts = tuple(Fact(f.title, f.text) for f in result.findings() if f.level == level)
        if facts:
            lead.append(Terms(facts, heading, level=level))
    columns = ("model", "accuracy", "95 % limits", "F1", "TVD of the output", "JSD of attention")
    rows = tuple(
        (
            m.name if math.isnan(m.weight) else f"{m.name}, λ = {m.weight:g}",
            f"{m.accuracy:.3f}",
            "" if math.isnan(m.low) else f"{m.low:.3f} – {m.high:.3f}",
            *(("" if math.isnan(v) else f"{v:.3f}") for v in (m.f1, m.tvd, m.jsd)),
        )
        for m in result.models
    )
    twins = [m for m in result.models if not math.isnan(m.jsd)]
    groups = tuple(
        Points(
            name,
            np.array([m.jsd for m in members]),
            np.array([m.tvd for m in members]),
            labels=tuple(m.name if math.isnan(m.weight) else f"λ = {m.weight:g}" for m in members),
        )
        for name, members in _by_name(twins).items()
    )
    plane = Scatter(groups, "JSD of attention from the model's", "TVD of the output from the model's")
    settings = ", ".join(f"{k}={v}" for k, v in result.options.items())
    view = View(
        result.title,
        (Panel((Table(columns, rows),), wide=True), Panel((plane,), "Elsewhere, and at what price")),
        (Fact("training", settings), Fact("cost", cost_of(result.cost))),
        result.warnings,
        "On the validation examples. An adversary is trained to say what the model says and to look elsewhere, the "
        "more so the larger λ. The MLP sees one position at a time.",
    )
    return Page(result.title, (view,), tuple(lead))


def _by_name(models: list[Any]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for model in models:
        groups.setdefault(model.name, []).append(model)
    return groups
