"""Views of reports, of checks and of the debate about attention."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import starmap
from typing import Any

import numpy as np

from whyformer.evidence import Deletion, mean_within, share_interval, too_few, with_interval
from whyformer.parameters import checked
from whyformer.results.types import Explanation
from whyformer.shapes import Array
from whyformer.views.comparison_view import TABLE_WORDS, agreement_view, curves_view, reasons, table_view
from whyformer.views.explained import TEXT, side_by_side, title_of
from whyformer.views.header import NUMBER, cost_of, duration, options, percent, scalar_words
from whyformer.views.image_marks import heat
from whyformer.views.marks import Bar, Bars, Line, Lines, Mark, MarkSettings, Points, Scale, Scatter, TableMark
from whyformer.views.scales import scale_of
from whyformer.views.text_marks import bars, token_run
from whyformer.views.view import Explained, Fact, Page, Panel, Terms, Trust, View

HEADINGS = {"warning": "Warnings", "note": "Notes", "ok": "Passed checks"}
MOST_INPUTS = 5


@checked
def checkup_page(checkup: Any) -> Page:
    """The page of a CheckUp."""
    counts = [len(checkup.of(level)) for level in ("warning", "note", "ok")]
    summary = "Warnings: {}, notes: {}, passed: {}; {}.".format(*counts, duration(checkup.seconds))
    views: list[View] = []
    if "jain_wallace" in checkup.results:
        views += [_twice(test) for test in checkup.results["jain_wallace"].inputs[:MOST_INPUTS]]
    if "serrano_smith" in checkup.results and checkup.results["serrano_smith"].ever_flips:
        views.append(_erased(checkup.results["serrano_smith"]))
    if "randomisation" in checkup.results:
        views.append(_cascade(checkup.results["randomisation"]))
    return Page(checkup.title, tuple(views), (summary, *findings_of(checkup.findings)))


def findings_of(findings: Iterable[Any]) -> list[Terms]:
    listed = list(findings)
    by_level = {level: tuple(Fact(f.title, f.text) for f in listed if f.level == level) for level in HEADINGS}
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
        facts.append(Fact("mixing", f"{test.mixing:.0%} of the output position comes through attention"))
    caption = (
        "Attention over ordinary tokens, on a scale up to the largest weight of the model's own map. Special tokens "
        "keep their weights in both."
    )
    return View(test.title, tuple(panels), tuple(facts), caption=caption, columns=2, legend=scale)


def _drawn(explanation: Explanation, scale: Scale) -> tuple[Mark, ...]:
    """The image, the words, and bars for whatever else there is (columns, boxes)."""
    units, look = explanation.units, MarkSettings(scale=scale)
    marks: list[Mark] = []
    rest = [i for i, special in enumerate(units.special) if not special]
    if units.grid is not None:
        marks.append(heat(explanation, look))
        rest = [i for i in rest if units.stream[i] != "image"]
    words = [i for i in rest if units.stream[i] in TEXT]
    others = [i for i in rest if i not in set(words)]
    for stream in dict.fromkeys(units.stream[i] for i in words):
        members = [i for i in words if units.stream[i] == stream]
        marks.append(token_run(explanation, look, members))
    if others:
        marks.append(bars(explanation, look, others))
    return tuple(marks)


def _erased(result: Any) -> View:
    orders = result.inputs[0].erased
    bars = tuple(Bar(order.replace("gradient ×", "grad ×"), result.erased(order)) for order in orders)
    marks = Bars(bars, Scale(0.0, 1.0, meaning="share erased"))
    caption = "Shorter: the decision flipped earlier. 1: it never flipped."
    return View("Share of attention weights erased until the decision flips", (Panel((marks,)),), caption=caption)


def _cascade(result: Any) -> View:
    scale = Scale(-1.0, 1.0, True, "Spearman with the original map")
    known = [[(s.part, getattr(s, kind)) for s in result.stages] for kind in ("cascading", "independent")]
    together, alone = (
        Bars(tuple(Bar(_short(part), value) for part, value in pairs if not math.isnan(value)), scale)
        for pairs in known
    )
    panels = (Panel((together,), "this layer and all above it random"), Panel((alone,), "this layer alone random"))
    caption = (
        "Bars: Spearman correlation with the map of the trained model, from the output down to the input. A map that "
        "depends on learned weights falls towards 0."
    )
    return View(f"{result.method} with random weights", panels, caption=caption, columns=2)


def _short(part: str) -> str:
    words = part.split(".")
    return ".".join(words[-2:]) if words[-1].isdigit() else words[-1]


@checked
def retrained_page(result: Any) -> Page:
    """The page of a RetrainedAttention: what was found in words, all models, and output against attention."""
    columns = ("model", "accuracy", "95 % CI", "F1", "TVD of the output", "JSD of attention")
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
    panels = (
        Panel((TableMark(columns, tuple(rows)),), wide=True),
        Panel((plane,), "Change of the output against change of attention"),
    )
    facts = (Fact("training", settings), Fact("cost", cost_of(result.cost)))
    caption = (
        "On the validation examples. An adversary is trained to give the same outputs with different attention; a "
        "larger λ weights the difference more. The MLP reads one position at a time."
    )
    view = View(result.title, panels, facts, result.warnings, caption)
    return Page(result.title, (view,), tuple(findings_of(result.findings())))


LOW, HIGH = 0.3, 0.7  # mean rank correlations that are called little and large agreement
READING = {  # how to read it, and when it misleads
    "Colours and bars": "Scores of features: blue raises the explained value, orange lowers it. Scores of methods "
    "without a sign have a size only. Scores hold for this input, not for the model in general.",
    "Badge": "Rank of the method over all inputs of this report, and whether it is better than random scores. A method "
    "that is good on average can be wrong on one input: check its deletion curve.",
    "Deletion curve": "Output of the model as features are masked, the highest scores first. The curve of a faithful "
    "map falls below the grey band of random orders.",
    "Intervals": "95 % confidence intervals over inputs (bootstrap; of fewer than 30, Student's t). Where two "
    "overlap, the order of those methods is not settled. With few inputs the intervals are wide; with one input there "
    "are none.",
    "Masking": "Masked features are replaced by a baseline, and the model may not have seen such inputs. Repeat with "
    "another baseline (replace=…) to check that the order of the methods holds.",
    "Redundant features": "If two features carry the same information, masking one changes nothing: methods that mask "
    "features one by one score both near zero.",
    "Agreement": "Agreement is not proof: methods can agree and be wrong. Where they disagree, at least one is wrong.",
    "Faithfulness": "A faithful map shows what the model uses, right or wrong. Whether the model should use it is a "
    "separate question.",
}


@checked
def report_page(report: Any) -> Page:
    """Everything about a Report."""
    comparison = report.comparison
    views = [_said_view(report), replace(table_view(comparison), caption=TABLE_WORDS)]
    views += [replace(_input_view(report, number), folded=True) for number in range(len(report.explanations))]
    views += [
        replace(view, folded=True) for view in (*curves_view(comparison, report.names), *agreement_view(comparison))
    ]
    return Page(report.title, tuple(views), _summary(report), _outro(report))


def _summary(report: Any) -> tuple[str, ...]:
    comparison = report.comparison
    methods = [row for row in comparison.rows if not row.baseline]
    first = methods[0].name
    first_result = report.standings[first]
    words = []
    if first_result.place is None:
        words.append(f"{too_few(first_result.inputs, report.called)}: results hold for these inputs only.")
    elif len(methods) > 1:
        words.append(f"Of {len(methods)} methods, {first} comes first ({first_result}).")
    if first_result.measures and not any(s.better for s in report.standings.values()):
        words.append("Inconclusive: no method is significantly better than random scores on these inputs.")
    words += _agreement(comparison)
    if report.checkup is not None:
        count = len(report.checkup.of("warning"))
        things = f"{count} warning{'s' * (count != 1)}" if count else "no warnings"
        words.append(f"Sanity checks of {report.checkup.method}: {things}.")
    return (" ".join(words),)


def _agreement(comparison: Any) -> list[str]:
    values = np.array(comparison.agreement.get("spearman", []), float)
    if len(values) < 2:
        return []
    pairs = values[np.triu_indices(len(values), 1)]
    if np.isnan(pairs).all():
        return []
    mean = float(np.nanmean(pairs))
    much = "low" if mean < LOW else "high" if mean > HIGH else "moderate"
    return [f"Agreement between methods: {much} (mean Spearman {mean:.2f}; 1 is the same order)."]


def _said_view(report: Any) -> View:
    rows = []
    for number, each in enumerate(report.explanations):
        said = each[0].prediction
        likely = "–" if said.probability is None else percent(said.probability)
        following = ", ".join(f"{choice} ({percent(choice.probability)})" for choice in said.next or ())
        rows.append((title_of(each[0], number), str(said), likely, following or "–"))
    left_out = report.comparison.inputs - len(rows)
    more = f"{left_out} more {report.called} were" if left_out > 1 else f"1 more {report.called.removesuffix('s')} was"
    caption = f"{more} compared and not shown." if left_out > 0 else ""
    table = TableMark(("input", "prediction", "probability", "next"), tuple(rows))
    return View("Predictions", (Panel((table,), wide=True),), caption=caption)


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
    note = f"Lower is better. Random orders (of {deletion.draws}) above the curve of each method: {beaten}."
    marks = Lines(x, tuple(lines), "masked features, highest scores first", deletion.value, whole_x=True)
    return Panel((marks,), "Deletion curve of this input", wide=True, note=note)


def _outro(report: Any) -> tuple[str | Terms, ...]:
    comparison = report.comparison
    parts: list[str | Terms] = [report.unchecked] if report.checkup is None else [*findings_of(report.checkup.findings)]
    parts += reasons(comparison.failures, "Methods that could not be run")
    parts.append(Terms(_documented(report), "To document a system", folded=True))
    parts.append(Terms(_computed(report), "How it was computed", folded=True))
    parts.append(Terms(tuple(starmap(Fact, READING.items())), "How to read this report", folded=True))
    about = tuple(
        Fact(name, f"{idea} Misleads when: {report.misleads[name]}" if report.misleads.get(name) else idea)
        for name, idea in report.ideas.items()
    )
    return (*parts, Terms(about, "Methods", code=True, folded=True))


UNTESTED = (
    "Not tested here: whether predictions are correct, fair, safe or lawful, and how the model does on inputs unlike "
    "these. Scores are not causes outside the model."
)


def _documented(report: Any) -> tuple[Fact, ...]:
    """Purpose, method, evidence and limits, each with the figures of this report, to be copied into a document."""
    comparison, first = report.comparison, report.explanations[0][0]
    best = next(row.name for row in comparison.rows if not row.baseline)
    result = report.standings[best]
    predicted = first.target.versus is None and first.target.index == first.prediction.index
    scored = scalar_words(first)
    if scored != NUMBER:
        scored += f" of {'the predicted' if predicted else 'a chosen'} class"
    evidence = [f"{best}: {result}.", *_agreement(comparison)]
    drawn = [deletion for deletion in report.deletions if deletion is not None and best in deletion.beaten]
    if drawn:
        beaten, of = sum(d.beaten[best] for d in drawn), sum(d.draws for d in drawn)
        evidence.append(f"Deletion curves: better than {beaten} of {of} random orders (inputs: {len(drawn)}).")
    if report.checkup is None:
        evidence.append(report.unchecked)
    else:
        counts = [len(report.checkup.of(level)) for level in ("warning", "note", "ok")]
        evidence.append("Sanity checks: warnings {}, notes {}, passed {}.".format(*counts))
    limits = [f"Misleads when: {report.misleads[best]}"] if report.misleads.get(best) else []
    limits += [f"Features were masked by {comparison.replacement}."] if comparison.replacement else []
    limits += (
        [f"{f.title}: {f.text.rstrip('.')}." for f in report.checkup.of("warning")]
        if report.checkup is not None
        else []
    )
    versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    return (
        Fact("Purpose", report.purpose or "Not stated: give wf.report(…, purpose=…), what the model is used for."),
        Fact("Method", f"{best}: {report.ideas.get(best, '')} It explains the {scored}; model: {comparison.model}."),
        Fact("Evidence", " ".join(part for part in evidence if part)),
        Fact("Limits", " ".join([*limits, UNTESTED])),
        Fact("To repeat it", "; ".join(filter(None, (f"seed {comparison.seed}", versions)))),
    )


def _computed(report: Any) -> tuple[Fact, ...]:
    comparison = report.comparison
    first: Explanation = report.explanations[0][0]
    settings = [
        f"{name}: {told}" for name, e in zip(report.names, report.explanations[0], strict=True) if (told := options(e))
    ]
    versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    random = "floor of the comparison and band behind the curves; the ceiling is a greedy search"
    facts = [
        Fact("Model", f"{comparison.model}, not edited, not retrained"),
        Fact("Explained", f"{scalar_words(first)} of the target, for {comparison.inputs} {report.called}"),
        Fact("Methods", ", ".join(row.name for row in comparison.rows if not row.baseline)),
        *([Fact("Options", "; ".join(settings))] if settings else []),
        Fact("Baseline", comparison.replacement or "none: nothing was masked"),
        Fact("Metrics", ", ".join(name.replace("_", " ") for name in comparison.metrics)),
        Fact("Random orders", random),
        Fact("Seed", str(comparison.seed)),
        Fact("Versions", versions),
        Fact("Time", duration(report.seconds)),
    ]
    return tuple(facts)


# The debate about attention: a picture for each property, and the copies of the model.
SIGNIFICANT = 0.05


@checked
def debate_page(debate: Any) -> Page:
    """The page of an AttentionDebate."""
    (copies,) = retrained_page(debate.copies).views
    views = (_against_importance(debate), _changed(debate), copies)
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


def _against_importance(debate: Any) -> View:
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
