"""Views of reports and of checks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import starmap
from typing import Any

import numpy as np

from whyformer.evidence import Deletion, too_few
from whyformer.parameters import checked
from whyformer.results.types import Explanation
from whyformer.views.comparison_view import LEAD, agreement_view, curves_view, reasons, table_view
from whyformer.views.explained import TEXT, side_by_side, title_of
from whyformer.views.header import cost_of, duration, options, percent
from whyformer.views.image_marks import heat
from whyformer.views.marks import Bar, Bars, Line, Lines, Mark, Points, Scale, Scatter, TableMark
from whyformer.views.scales import scale_of
from whyformer.views.text_marks import bars, token_run
from whyformer.views.view import Explained, Fact, Page, Panel, Terms, Trust, View

# A check-up as a page: what to doubt in words first, then the pictures behind it.

HEADINGS = {"warning": "Doubt it", "note": "Know this", "ok": "Looked, and found nothing wrong"}
MOST_INPUTS = 5


@checked
def checkup_page(checkup: Any) -> Page:
    """The page of a CheckUp."""
    counts = [len(checkup.of(level)) for level in ("warning", "note", "ok")]
    summary = "{} to doubt, {} to know, {} fine; {}.".format(*counts, duration(checkup.seconds))
    views: list[View] = []
    if "jain_wallace" in checkup.results:
        views += [_twice(test) for test in checkup.results["jain_wallace"].inputs[:MOST_INPUTS]]
    if "serrano_smith" in checkup.results and checkup.results["serrano_smith"].ever_flips:
        views.append(_erased(checkup.results["serrano_smith"]))
    if "randomisation" in checkup.results:
        views.append(_cascade(checkup.results["randomisation"]))
    return Page(checkup.title, tuple(views), (summary, *findings_of(checkup.findings)))


def findings_of(findings: Iterable[Any]) -> list[Terms]:
    """What was found, what to doubt first."""
    found = list(findings)
    by_level = {level: tuple(Fact(f.title, f.text) for f in found if f.level == level) for level in HEADINGS}
    return [Terms(facts, HEADINGS[level], level=level) for level, facts in by_level.items() if facts]


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
    facts = [
        Fact("difference", f"JSD {test.jsd:.2f} of at most 0.69, output |Δp| = {test.change:.3f}"),
        Fact("shuffled", f"median |Δp| = {test.median_change:.3f}; largest weight {test.max_attention:.2f}"),
    ]
    # Gradients at the input and mixing ratios are not known for several streams.
    taus = ((test.tau_gradient, "gradient"), (test.tau_loo, "leave-one-out"))
    agreement = ", ".join(f"{tau:+.2f} ({name})" for tau, name in taus if not math.isnan(tau))
    facts += [Fact("agreement", f"Kendall's τ {agreement}")] if agreement else []
    if not math.isnan(test.mixing):
        facts.append(Fact("mixing", f"{test.mixing:.0%} of what is read there comes through attention"))
    caption = (
        "Attention over the ordinary units, on a scale that ends at the largest weight of the model's own map. Special "
        "tokens keep their weights in both."
    )
    return View(test.title, tuple(panels), tuple(facts), caption=caption, columns=2, legend=scale)


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
    orders = result.inputs[0].erased
    bars = tuple(Bar(order.replace("gradient ×", "grad ×"), result.erased(order)) for order in orders)
    marks = Bars(bars, Scale(0.0, 1.0, meaning="share erased"))
    caption = "The shorter the bar, the sooner the decision flipped; 1: it never did."
    return View("Share of attention weights erased until the decision flips", (Panel((marks,)),), caption=caption)


def _cascade(result: Any) -> View:
    scale = Scale(-1.0, 1.0, True, "Spearman with the original map")
    known = [[(s.part, getattr(s, kind)) for s in result.stages] for kind in ("cascading", "independent")]
    together, alone = (
        Bars(tuple(Bar(_short(part), value) for part, value in pairs if not math.isnan(value)), scale)
        for pairs in known
    )
    panels = (Panel((together,), "this part and all above it random"), Panel((alone,), "this part alone random"))
    caption = (
        "Bars: Spearman's correlation with the map of the trained model, from the output down to the input. A map that "
        "shows what was learned falls towards 0."
    )
    return View(f"{result.method} with random weights", panels, caption=caption, columns=2)


def _short(part: str) -> str:
    words = part.split(".")
    return ".".join(words[-2:]) if words[-1].isdigit() else words[-1]


@checked
def retrained_page(result: Any) -> Page:
    """The page of a RetrainedAttention: what was found in words, all models, and output against attention."""
    columns = ("model", "accuracy", "95 % limits", "F1", "TVD of the output", "JSD of attention")
    rows = []
    for m in result.models:
        name = m.name if math.isnan(m.weight) else f"{m.name}, λ = {m.weight:g}"
        limits = "" if math.isnan(m.low) else f"{m.low:.3f} – {m.high:.3f}"
        others = ("" if math.isnan(v) else f"{v:.3f}" for v in (m.f1, m.tvd, m.jsd))
        rows.append((name, f"{m.accuracy:.3f}", limits, *others))
    groups = []
    for name in dict.fromkeys(m.name for m in result.models if not math.isnan(m.jsd)):
        members = [m for m in result.models if m.name == name and not math.isnan(m.jsd)]
        tips = tuple(name if math.isnan(m.weight) else f"λ = {m.weight:g}" for m in members)
        across, up = (np.array([getattr(m, kind) for m in members]) for kind in ("jsd", "tvd"))
        groups.append(Points(name, across, up, labels=tips))
    plane = Scatter(tuple(groups), "JSD of attention from the model's", "TVD of the output from the model's")
    settings = ", ".join(f"{k}={v}" for k, v in result.options.items())
    panels = (Panel((TableMark(columns, tuple(rows)),), wide=True), Panel((plane,), "Elsewhere, and at what price"))
    facts = (Fact("training", settings), Fact("cost", cost_of(result.cost)))
    caption = (
        "On the validation examples. An adversary is trained to say what the model says and to look elsewhere, the "
        "more so the larger λ. The MLP sees one position at a time."
    )
    view = View(result.title, panels, facts, result.warnings, caption)
    return Page(result.title, (view,), tuple(findings_of(result.findings())))


LOW, HIGH = 0.3, 0.7  # mean rank correlations that are called little and large agreement
READING = {  # how to read it, and when it misleads
    "Colours and bars": "are scores: blue raises what is explained, orange lowers it, and where a method has no sign "
    "its scores say how much a unit counted, not for what. They are of this input, not of the model in general.",
    "The badge on a map": "says where its method stands among those compared, on all inputs of this report, and "
    "whether it does better than scores drawn at random. A method that does well on average can be wrong on one input: "
    "look at its curve.",
    "The deletion curve": "is what the model says of this input as units are taken away, the highest scores first. A "
    "map that names what the model rests on makes it fall below the grey band, which is what random orders give.",
    "Intervals": "are 95 % limits over inputs (bootstrap). Where two overlap, the order of those methods is not "
    "settled; with few inputs they are wide, and with one there are none.",
    "Taken away is not gone": "Something stands in place of a unit, and makes an input that the model may never have "
    "seen. Repeat with another replacement (replace=…) and see whether the order of methods holds.",
    "Units that need each other": "Where two units say the same, taking one away changes nothing, and neither gets a "
    "score from methods that take units away one by one.",
    "Agreement is no proof": "Methods that look at the same thing agree, and may be wrong together; methods that "
    "disagree cannot all be right.",
    "Faithful is not reasonable": "A faithful map shows what the model rests on, be it right or wrong. Whether that is "
    "a good reason is for you to say.",
}


@checked
def report_page(report: Any) -> Page:
    """Everything about a Report."""
    comparison = report.comparison
    views = [_said_view(report), *(_input_view(report, number) for number in range(len(report.explanations)))]
    views += agreement_view(comparison)
    views += [replace(table_view(comparison), title="How faithful are the methods?", caption=LEAD)]
    views += curves_view(comparison)
    return Page(report.title, tuple(views), _lead(report), _outro(report))


def _lead(report: Any) -> tuple[str, ...]:
    comparison = report.comparison
    methods = [row for row in comparison.rows if not row.baseline]
    first = methods[0].name
    standing = report.standings[first]
    words = []
    if standing.place is None:
        words.append(f"{too_few(standing.inputs, report.called)}: what is said below holds for these alone.")
    elif len(methods) > 1:
        words.append(f"Of {len(methods)} methods, {first} comes first ({standing}).")
    if standing.measures and not any(s.better for s in report.standings.values()):
        words.append("No map can be told from random scores on these inputs: do not rest anything on them.")
    words += _agreement(comparison)
    if report.checkup is not None:
        count = len(report.checkup.of("warning"))
        things = f"{count} thing{'s' * (count != 1)} to doubt" if count else "no reason for doubt"
        words.append(f"The check-up of {report.checkup.method} found {things}.")
    return (" ".join(words),)


def _agreement(comparison: Any) -> list[str]:
    values = np.array(comparison.agreement.get("spearman", []), float)
    if len(values) < 2:
        return []
    pairs = values[np.triu_indices(len(values), 1)]
    if np.isnan(pairs).all():
        return []
    mean = float(np.nanmean(pairs))
    much = "little" if mean < LOW else "largely" if mean > HIGH else "in part"
    return [f"The methods agree {much}: their orders are alike by {mean:.2f}, where 1 is the same (mean Spearman)."]


def _said_view(report: Any) -> View:
    rows = []
    for number, each in enumerate(report.explanations):
        said = each[0].prediction
        likely = "–" if said.probability is None else percent(said.probability)
        following = ", ".join(f"{choice} ({percent(choice.probability)})" for choice in said.next or ())
        rows.append((title_of(each[0], number), str(said), likely, following or "–"))
    left_out = report.comparison.inputs - len(rows)
    more = f"{left_out} more {report.called} were" if left_out > 1 else f"1 more {report.called.removesuffix('s')} was"
    caption = f"{more} compared and not drawn." if left_out > 0 else ""
    table = TableMark(("input", "prediction", "probability", "next"), tuple(rows))
    return View("What the model said", (Panel((table,), wide=True),), caption=caption)


def _input_view(report: Any, number: int) -> View:
    """The maps of one input side by side, each with its badge, and the curves that these rest on."""
    explanations: tuple[Explanation, ...] = report.explanations[number]
    deletion: Deletion | None = report.deletions[number]
    trust = tuple(Trust(report.standings[name], name, deletion) for name in report.names)
    others = report.others[number] if report.others else ()
    view = side_by_side(list(explanations), title=title_of(explanations[0], number), others=others)
    panels = [
        replace(panel, title=name if len(explanations) > 1 else panel.title, note=str(each.standing))
        for panel, name, each in zip(view.panels, report.names, trust, strict=True)
    ]
    panels += [] if deletion is None else [_curve(deletion)]
    assert isinstance(view.explained, Explained)
    return replace(view, panels=tuple(panels), explained=replace(view.explained, trust=trust))


def _curve(deletion: Deletion) -> Panel:
    x = np.array(deletion.counts)
    lines = [Line(name, np.array(curve)) for name, curve in deletion.curves.items()]
    low, mean, high = (np.array(values) for values in (deletion.low, deletion.mean, deletion.high))
    lines.append(Line("random orders", mean, quiet=True, low=low, high=high))
    beaten = ", ".join(f"{name} {count}" for name, count in deletion.beaten.items())
    note = f"A low curve is good. Of {deletion.draws} random orders, each method's curve is below: {beaten}."
    marks = Lines(x, tuple(lines), "units taken away, the highest scores first", deletion.value, whole_x=True)
    return Panel((marks,), "What the model says as units go", wide=True, note=note)


def _outro(report: Any) -> tuple[str | Terms, ...]:
    comparison = report.comparison
    parts: list[str | Terms] = [report.unchecked] if report.checkup is None else [*findings_of(report.checkup.findings)]
    parts += reasons(comparison.failures, "Could not be run here")
    parts.append(Terms(_computed(report), "How it was computed"))
    parts.append(Terms(tuple(starmap(Fact, READING.items())), "How to read it, and when it misleads"))
    about = tuple(
        Fact(name, f"{idea} Misleads when: {report.misleads[name]}" if report.misleads.get(name) else idea)
        for name, idea in report.ideas.items()
    )
    return (*parts, Terms(about, "The methods", code=True))


def _computed(report: Any) -> tuple[Fact, ...]:
    comparison = report.comparison
    first: Explanation = report.explanations[0][0]
    settings = [
        f"{name}: {told}" for name, e in zip(report.names, report.explanations[0], strict=True) if (told := options(e))
    ]
    versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    random = "floor of the comparison, and the band behind the curves; a greedy search is what methods are held against"
    facts = [
        Fact("Model", f"{comparison.model}, as it came: not edited, not retrained"),
        Fact("Explained", f"{first.scalar.replace('_', '-')} of the target, for {comparison.inputs} {report.called}"),
        Fact("Methods", ", ".join(row.name for row in comparison.rows if not row.baseline)),
        *([Fact("Options", "; ".join(settings))] if settings else []),
        Fact("Absent units", comparison.replacement or "nothing was taken away"),
        Fact("Measures", ", ".join(name.replace("_", " ") for name in comparison.metrics)),
        Fact("Random orders", random),
        Fact("Seed", str(comparison.seed)),
        Fact("Versions", versions),
        Fact("Time", duration(report.seconds)),
    ]
    return tuple(facts)
