"""wf.check: a check-up of a model's explanations, from capture to the attention debate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from whyformer.checks.attention_debate import serrano_smith, wiegreffe_pinter
from whyformer.checks.attention_rows import IN_SHARES
from whyformer.checks.checkup import LEVELS, CheckUp, Finding
from whyformer.checks.exam import Exam
from whyformer.checks.invariance import invariance, stability
from whyformer.checks.jain_wallace import jain_wallace
from whyformer.checks.randomisation import randomisation
from whyformer.checks.sanity import capture_audit, class_dependence, sinks
from whyformer.errors import BadInput, UnknownName, WhyformerError
from whyformer.explainer import CoreExplainer
from whyformer.parameters import BatchSize, Seed, checked, checked_options
from whyformer.registry import get_method
from whyformer.targets import Aims

CHECKS: dict[str, Callable[..., Any]] = {
    "capture_audit": capture_audit,
    "class_dependence": class_dependence,
    "randomisation": randomisation,
    "invariance": invariance,
    "stability": stability,
    "sinks": sinks,
    "jain_wallace": jain_wallace,
    "serrano_smith": serrano_smith,
    "wiegreffe_pinter": wiegreffe_pinter,
}
RESULTS: dict[str, Any] = {name: get_type_hints(check)["return"] for name, check in CHECKS.items()}
ABOUT_ATTENTION = ("jain_wallace", "serrano_smith", "wiegreffe_pinter")
Wanted = Sequence[str] | Mapping[str, Mapping[str, Any]] | str | None


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
    """Should this explanation be believed? See ``check_with`` for what is checked.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> wf.check(model, "I like the movie", tokenizer, checks=["class_dependence", "stability"]).show()
    """
    explainer = CoreExplainer(model, processor, attention_at=attention_at)
    arguments: dict[str, Any] = {"checks": checks, "method": method, "target": target, "seed": seed, "cache": cache}
    return check_with(explainer, inputs, batch_size=batch_size, progress=progress, **arguments, **options)


@checked
def check_with(
    explainer: CoreExplainer,
    inputs: Any,
    *,
    checks: Wanted = None,
    method: str | None = None,
    target: Aims = None,
    seed: Seed = 0,
    batch_size: BatchSize | None = None,
    progress: bool | None = None,
    cache: str | Path | None = None,
    **options: Any,
) -> CheckUp:
    """Run the checks on ``method`` (the default of the modality; ``options`` go to it) and these inputs.

    ``checks``: names, or names with options: ``{"jain_wallace": {"layers": "all"}, "sinks": {}}``; all by default. A
    check that this model or method does not allow becomes a note that says why. Ctrl-C keeps what is done.
    ``cache``: a folder in which every finished piece is kept (a check, an input of it, a set of random weights); a
    stopped check-up goes on from there.
    """
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
            findings.append(Finding("note", name, "Stopped", f"Interrupted: what was done is here, without {left}."))
            break
        except WhyformerError as error:
            findings.append(Finding("note", name, f"{name.replace('_', ' ')} was not run", str(error)))
    return CheckUp(
        type(explainer.model).__name__,
        method or _default(exam),
        exam.size,
        tuple(sorted(findings, key=lambda f: -LEVELS.index(f.level))),
        results,
        seed,
        time.perf_counter() - started,
    )


def _concerning(finding: Finding, exam: Exam) -> Finding:
    """What is wrong with attention is a note where the method weighs it with something else, or goes without."""
    if finding.check in ABOUT_ATTENTION and exam.modality.compares:
        finding = replace(finding, text=f"{finding.text} {IN_SHARES}")
    if finding.check not in ABOUT_ATTENTION or finding.level != "warning" or exam.method.needs == {"attention"}:
        return finding
    text = f"{finding.text} This is about attention by itself; {exam.method.name} does not rest on it alone."
    return replace(finding, level="note", text=text)


def _wanted(checks: Wanted) -> dict[str, dict[str, Any]]:
    """Checks with their options; unknown names are refused before long work."""
    if checks is None:
        return {name: {} for name in CHECKS}
    chosen = [checks] if isinstance(checks, str) else checks
    options_of = {n: dict(chosen[n]) if isinstance(chosen, Mapping) else {} for n in chosen}
    if not options_of:
        raise BadInput("checks is empty: name at least one, or leave it out for all of them.")
    for name, settings in options_of.items():
        if name not in CHECKS:
            raise UnknownName("check", name, CHECKS)
        options_of[name] = checked_options(CHECKS[name], name, settings)
    return options_of


def _default(exam: Exam) -> str:
    try:
        return exam.method.name
    except WhyformerError:  # capture can be checked where nothing can be explained
        return "no method"
