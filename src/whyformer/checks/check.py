"""wf.check: run sanity checks on explanations of a model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from torch import nn

from whyformer.checks.attention_debate import serrano_smith, wiegreffe_pinter
from whyformer.checks.attention_rows import IN_SHARES, mean_known, rank_agreement
from whyformer.checks.exam import LEVELS, RESULTS, CheckUp, Exam, Finding, ordinary, same_order
from whyformer.checks.invariance import invariance, stability
from whyformer.checks.jain_wallace import jain_wallace
from whyformer.checks.randomisation import randomisation
from whyformer.errors import BadInput, CaptureError, NonFinite, NotOffered, UnknownName, WhyformerError
from whyformer.evaluate.candidate import Candidate
from whyformer.evaluate.compare import chosen_metrics, comparing
from whyformer.evaluate.games import asks_each
from whyformer.evidence import Standing, too_few, with_interval
from whyformer.explainer import CoreExplainer
from whyformer.options import Evaluation
from whyformer.parameters import BatchSize, Seed, checked, checked_options
from whyformer.registry import get_method
from whyformer.results.types import MOSTLY, Target
from whyformer.run.session import loaded_as
from whyformer.targets import Aims

LEVEL_OF = {"yes": "ok", "partly": "note", "no": "warning", "unknown": "note"}


@dataclass(frozen=True)
class Faithfulness:
    """One method and random scores on the same inputs, by the metrics of compare."""

    method: str
    standing: Standing
    gains: dict[str, tuple[float, float, float]]  # metric → gain over random scores, with its 95 % interval

    def findings(self) -> tuple[Finding, ...]:
        standing = self.standing
        metric, gain = next(iter(self.gains.items()))
        text = f"Gain in {metric} over random scores: {with_interval(gain)}."
        if standing.verdict == "unknown":
            text = f"{too_few(standing.inputs)}. {text}"
        else:
            text = f"{self.method}: {standing.against_random}. {text}"
        numbers = {name: gain for name, (gain, _, _) in self.gains.items()}
        return (Finding(LEVEL_OF[standing.verdict], "faithfulness", "Against random scores", text, numbers),)


def faithfulness(exam: Exam) -> Faithfulness:
    """Test whether the method beats random scores, by the metrics of ``wf.compare``.

    Misleads when: inputs with masked features are unlike anything the model has seen.
    """
    asked = Evaluation(target=exam.targets, seed=exam.seed, progress=False, batch_size=exam.session.asked_size)
    options = {k: v for k, v in exam.explanations[0].options.items() if k in exam.method.options}
    candidate = Candidate(exam.method.name, options)
    judged = chosen_metrics(None, rationales=False, masks=False)
    try:
        with comparing(exam.explainer, exam.inputs, [candidate], judged, asked, search=False) as (compared, _):
            row = compared.rows[0]
            gains = {name: (score.gain, score.gain_low, score.gain_high) for name, score in row.scores.items()}
            return Faithfulness(candidate.method, compared.standing(row.name), gains)
    except BadInput as reason:
        raise NotOffered(str(reason)) from reason


MUCH = 0.5


@dataclass(frozen=True)
class Sinks:
    """Shares of scores and of attention on special tokens, mean over inputs."""

    method: str
    scores: float  # share of the map's total |score| on special tokens and the first position
    expected: float  # the share of the units that these are
    attention: tuple[float, ...]  # per layer: share of attention, mean over heads and real rows

    def findings(self) -> tuple[Finding, ...]:
        numbers = {"scores": self.scores, "expected": self.expected, "attention": mean_known(self.attention)}
        text = (
            f"Special tokens and the first position received {self.scores:.0%} of the total score; they are "
            f"{self.expected:.0%} of the units."
        )
        if self.attention:
            most = int(np.argmax(self.attention))
            text += f" Their share of attention is highest in layer {most}: {self.attention[most]:.0%}."
        level = "warning" if self.scores > MOSTLY else "note" if self.scores > MUCH else "ok"
        if level == "warning":
            text += " The input itself has almost none: do not use its ranking."
        elif level == "note":
            text += " The ranking of the other tokens is still usable; their sum is the smaller share."
        return (Finding(level, "sinks", "Sink tokens", text, numbers),)


def sinks(exam: Exam) -> Sinks:
    """Measure the share of attention and of scores on special tokens ([CLS], [SEP], …) and on the first position.

    Misleads when: [CLS] is the output position: its own score is then meaningful.
    """
    shares, expected = [], []
    for explanation in exam.explanations:
        sink = np.array(explanation.units.special, bool)
        sink[0] = True
        total = float(np.abs(explanation.scores).sum())
        shares.append(float(np.abs(explanation.scores[sink]).sum()) / total if total else math.nan)
        expected.append(float(sink.mean()))
    layers: list[list[float]] = []
    with exam.borrowing():
        try:
            for row in range(exam.size):
                run = exam.run(row)
                keep, special = run.keep_BN[0], run.special_BN[0].clone()
                special[int(keep.nonzero()[0])] = True
                layers.append([])
                for site in run.record().sites:
                    rows = keep[site.first_query : site.first_query + site.attention_BHQK.shape[2]]
                    weights = site.attention_BHQK[0].float()[:, rows]
                    layers[-1].append(float(weights[..., special].sum() / weights.sum()))
        except (NotOffered, CaptureError):  # black-box methods can be checked on models whose attention is not seen
            layers = []
    attention = tuple(float(np.mean(values)) for values in zip(*layers, strict=True))
    return Sinks(exam.method.name, mean_known(shares), mean_known(expected), attention)


SAME = 1e-5  # relative difference below which two maps are the same
ALIKE = 0.9


@dataclass(frozen=True)
class ClassDependence:
    """Maps of the explained class and of the next most probable class."""

    method: str
    classes: tuple[tuple[str, str], ...]
    spearman: tuple[float, ...]
    difference: tuple[float, ...]  # largest difference, relative to the largest score

    def findings(self) -> tuple[Finding, ...]:
        rho, difference = mean_known(self.spearman), max(self.difference)
        numbers = {"spearman": rho, "difference": difference}
        one, other = self.classes[0]
        level, text = "ok", f"The map changes with the class (between '{one}' and '{other}': {same_order(rho)})."
        if difference < SAME:
            level = "warning"
            text = (
                f"{self.method} gives the same map for '{one}' and for '{other}': this map does not depend on the "
                "class. It does not show which features support this prediction."
            )
        elif rho > ALIKE:  # NaN is not
            level = "note"
            text = (
                f"The maps for '{one}' and '{other}' rank the units nearly alike ({same_order(rho)}): the map shows "
                "which units matter for the choice between the two classes, not which support one of them."
            )
        return (Finding(level, "class_dependence", "Other class", text, numbers),)


def class_dependence(exam: Exam) -> ClassDependence:
    """Compare the map with that of another class: the highest-scored one besides the explained one.

    Misleads when: both classes depend on the same features; similar maps are then correct.
    """
    with exam.borrowing():
        logits = [exam.run(row).logits[0].clone() for row in range(exam.size)]
    if exam.modality.mean.outcome == "objects" and not asks_each(exam.modality, len(logits[0])):
        logits = [logits_C[:-1] for logits_C in logits]  # the last class means: no object
    if logits[0].shape[0] < 2:
        raise NotOffered("the model has a single output: there is no other class to explain.")
    rivals = []
    for explanation, others in zip(exam.explanations, logits, strict=True):
        others[explanation.target.index] = -math.inf
        rivals.append(Target(int(others.argmax()), position=explanation.target.position))
    against = exam.explain(target=rivals)
    pairs = list(zip(exam.explanations, against, strict=True))
    names = tuple((a.target.label or str(a.target.index), b.target.label or str(b.target.index)) for a, b in pairs)
    scores = [(ordinary(a), ordinary(b)) for a, b in pairs]
    apart = tuple(float(np.abs(a - b).max() / max(1e-12, float(np.abs(a).max()))) for a, b in scores)
    return ClassDependence(exam.method.name, names, tuple(rank_agreement(a, b) for a, b in scores), apart)


@dataclass(frozen=True)
class CaptureAudit:
    """Captured attention, and the audit of its coverage."""

    sites: int
    heads: int
    unclaimed: tuple[str, ...]
    leak: float
    leak_path: str
    compared: int  # places that the leak audit looked at
    trouble: str

    def findings(self) -> tuple[Finding, ...]:
        numbers = {"sites": float(self.sites), "unclaimed": float(len(self.unclaimed)), "leak": self.leak}
        numbers["compared"] = float(self.compared)
        if not self.sites:
            text = "No attention was found in this model: attention-based methods cannot be used on it."
            return (Finding("warning", "capture_audit", "Capture", text, numbers),)
        warnings: dict[str, str] = {}
        if self.unclaimed:
            warnings["Unclaimed softmaxes"] = (
                f"{len(self.unclaimed)} softmaxes look like attention, but the values they weight were not found: "
                f"{self.unclaimed[0]}. Attention-based explanations would leave them out."
            )
        if self.leak:
            warnings["Leak"] = (
                f"Positions exchange information outside the captured attention (at {self.leak_path}: a change of "
                f"{self.leak:.1e}, expected 0): attention maps miss part of the computation."
            )
        if self.trouble:
            warnings["Capture"] = self.trouble
        if warnings:
            return tuple(Finding("warning", "capture_audit", title, text, numbers) for title, text in warnings.items())
        leaks = ". Leaks between positions cannot be tested with a single position."
        if self.compared:
            leaks = f". Positions do not exchange information outside of them ({self.compared} places compared)."
        text = f"All {self.sites} attention calls were captured ({self.heads} heads){leaks}"
        return (Finding("ok", "capture_audit", "Capture", text, numbers),)


def capture_audit(exam: Exam) -> CaptureAudit:
    """Test for attention that was not captured, and for exchange between positions outside the captured attention.

    Misleads when: an input has a single position: exchange between positions cannot be tested there.
    """
    study = exam.study
    return CaptureAudit(
        len(study.sites),
        sum(site.heads for site in study.sites),
        study.unclaimed,
        study.leak.amount,
        study.leak.path,
        study.leak.checked,
        "" if study.trouble is None else str(study.trouble),
    )


CHECKS: dict[str, Callable[..., Any]] = {
    "capture_audit": capture_audit,
    "faithfulness": faithfulness,
    "class_dependence": class_dependence,
    "randomisation": randomisation,
    "invariance": invariance,
    "stability": stability,
    "sinks": sinks,
    "jain_wallace": jain_wallace,
    "serrano_smith": serrano_smith,
    "wiegreffe_pinter": wiegreffe_pinter,
}
RESULTS.update((name, get_type_hints(check)["return"]) for name, check in CHECKS.items())
ABOUT_ATTENTION = ("jain_wallace", "serrano_smith", "wiegreffe_pinter")
Wanted = Sequence[str] | Mapping[str, Mapping[str, Any]] | str | None


def _require_numbers(model: nn.Module) -> None:
    """Raise if a weight holds NaN: a comparison with NaN is false, and a check would pass by it."""
    for name, weight in model.named_parameters():
        if type(weight) is nn.Parameter and weight.is_floating_point() and not weight.is_meta and weight.isnan().any():
            raise NonFinite(f"the weight {name} holds NaN: load or train the model anew, then check its explanations.")


@checked
def check(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    checks: Wanted = None,
    method: str | None = None,
    target: Aims = None,
    seed: Seed = 0,
    batch_size: BatchSize | None = None,
    progress: bool | None = None,
    cache: str | Path | None = None,
    attention_at: Mapping[str, str] | None = None,
    **options: Any,
) -> CheckUp:
    """Run sanity checks on explanations by ``method`` (default: the default method); ``options`` are passed to it.

    ``checks``: names, or names with options: ``{"jain_wallace": {"layers": "all"}, "sinks": {}}``; all by default. A
    check that does not support this model or method becomes a note with the reason. Ctrl-C keeps finished checks.
    ``cache``: a folder for finished work (a check, an input of it, a set of random weights); a stopped check-up resumes
    from it.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> wf.check(model, "I like the movie", tokenizer, checks=["class_dependence", "stability"]).show()
    """
    explainer = loaded_as(CoreExplainer, model, processor, attention_at)
    _require_numbers(explainer.model)
    wanted = _wanted(checks)
    if method is not None:
        get_method(method).checked(options)
    started = time.perf_counter()
    arguments: dict[str, Any] = {"seed": seed, "batch_size": batch_size, "progress": progress, "cache": cache}
    exam = Exam(explainer, inputs, method=method, options=options, target=target, **arguments)
    if options and method is None:
        exam.method.checked(options)
    if target is not None:
        with exam.borrowing():
            _ = exam.session.run([0]).targets  # a wrong one is refused before long work
    findings: list[Finding] = []
    results: dict[str, Any] = {}
    for name, settings in exam.track(list(wanted.items()), "checking"):
        try:
            results[name] = exam.cached(RESULTS[name], (name, settings), partial(CHECKS[name], exam, **settings))
            findings += [_concerning(f, exam) for f in results[name].findings()]
        except BadInput:
            raise
        except KeyboardInterrupt:
            if not results:
                raise
            left = ", ".join(n for n in wanted if n not in results)
            findings.append(Finding("note", name, "Stopped", f"Interrupted: these checks were not run: {left}."))
            break
        except WhyformerError as error:
            findings.append(Finding("note", name, f"{name.replace('_', ' ')} was not run", str(error)))
    try:
        name_of_method = method or exam.method.name
    except WhyformerError:  # capture can be checked where nothing can be explained
        name_of_method = "no method"
    return CheckUp(
        type(explainer.model).__name__,
        name_of_method,
        exam.size,
        tuple(sorted(findings, key=lambda f: -LEVELS.index(f.level))),
        results,
        seed,
        time.perf_counter() - started,
    )


def _concerning(finding: Finding, exam: Exam) -> Finding:
    """Turn a warning about attention into a note if the method does not use attention alone."""
    if finding.check in ABOUT_ATTENTION and exam.modality.mean.outcome == "similarity":
        finding = replace(finding, text=f"{finding.text} {IN_SHARES}")
    if finding.check not in ABOUT_ATTENTION or finding.level != "warning" or exam.method.needs == {"attention"}:
        return finding
    text = f"{finding.text} This concerns attention alone; {exam.method.name} does not use attention alone."
    return replace(finding, level="note", text=text)


def _wanted(checks: Wanted) -> dict[str, dict[str, Any]]:
    """Checks with their options; unknown names are refused before long work."""
    if checks is None:
        return {name: {} for name in CHECKS}
    chosen = [checks] if isinstance(checks, str) else checks
    options_of = {n: dict(chosen[n]) if isinstance(chosen, Mapping) else {} for n in chosen}
    if not options_of:
        raise BadInput("checks is empty: name at least one, or omit checks= for all of them.")
    for name, settings in options_of.items():
        if name not in CHECKS:
            raise UnknownName("check", name, CHECKS)
        options_of[name] = checked_options(CHECKS[name], name, settings)
    return options_of
