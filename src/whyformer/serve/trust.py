"""Evaluation of the explanation on screen: its deletion curves, other methods, and the check-up."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.checks.check import check
from whyformer.checks.exam import options_of_tokens
from whyformer.engines.perturbation.players import area, only_top, without_top
from whyformer.errors import NotOffered, WhyformerError
from whyformer.evaluate.candidate import random_scores
from whyformer.evaluate.comparison import spearman
from whyformer.evaluate.games import Games, games_of
from whyformer.evidence import too_few
from whyformer.registry import get_method
from whyformer.results.types import Explanation
from whyformer.serve.drawn import Subject, aim_of, number_of, numbers_of, require_same_answer, stored, subject_of
from whyformer.serve.explaining import Working, cheap_methods
from whyformer.serve.models import ServedModel
from whyformer.serve.store import Store

FRACTIONS = tuple(i / 10 for i in range(11))
DRAWS = 10  # random orders that make the band
QUICK_CHECKS = ("capture_audit", "class_dependence", "sinks", "serrano_smith", "wiegreffe_pinter")
SLOW_CHECKS = ("invariance", "stability", "randomisation", "jain_wallace")


def trust_units(served: ServedModel, subject: Subject, thorough: bool) -> int:
    """Units of work: the curves, each method, each check."""
    methods = _others(served, subject)
    return 1 + len(methods) + len(QUICK_CHECKS) + (len(SLOW_CHECKS) if thorough else 0)


def _others(served: ServedModel, subject: Subject) -> list[str]:
    shown = {explanation.method for explanation in subject.explanations}
    return [name for name in cheap_methods(served, len(subject.first.units)) if name not in shown]


def trust(served: ServedModel, identity: str, store: Store, thorough: bool, item: int = 0) -> Working:
    """Return deletion curves of the explanation, of random orders and of other methods, and the check-up."""
    subject = subject_of(store, identity, item)
    explanation, question = subject.first, subject.question
    raw = served.opened(question.input, store)
    require_same_answer(served, raw, explanation, question.units)
    settings = {"target": aim_of(served, explanation), "units": question.units, "seed": question.seed}
    # Features held by the method on screen are also held by the evaluation, and by other methods with hold=.
    hold = next((e.options["hold"] for e in subject.explanations if e.options.get("hold") is not None), None)
    judged = settings | {"hold": hold}
    shown = list(subject.explanations)
    others: list[Explanation] = []
    refused: list[dict[str, Any]] = []
    for name in _others(served, subject):
        try:
            asked = judged if hold is not None and "hold" in get_method(name).options else settings
            other = served.explainer.explain(raw, method=name, **asked, scalar=explanation.scalar)
            if isinstance(other, Explanation) and other.units.labels == explanation.units.labels:
                others.append(other)
        except WhyformerError as reason:
            refused.append({"method": name, "refused": str(reason)})
        yield
    # Other jobs run between two units of work, so the model is borrowed within one: all curves are drawn here.
    with games_of(served.explainer, [raw], **judged) as games:
        # What the curves are of (evaluate/games.py): a model without classes has no probability.
        likely = explanation.prediction.probability is not None or served.kind == "detector"
        curves = _curves(games, shown, "probability" if likely else "value")
        parts, game, held = games.parts[0], games.game(0), list(games.warnings()) if games.hold is not None else []
        areas = [area(game.values(without_top(each.scores[parts], FRACTIONS)), FRACTIONS) for each in others]
    yield
    ran: list[dict[str, Any]] = [
        {"method": line["method"], "shown": True, "area": line["area"]} for line in curves["remove"]["lines"]
    ]
    ran += [
        {"method": each.method, "shown": False, "area": number_of(size)}
        for each, size in zip(others, areas, strict=True)
    ]
    ordinary = [i for i, special in enumerate(explanation.units.special) if not special]
    compared = ordinary if games.hold is None else parts.tolist()
    if len(ran) > 1 and len(compared) > 1:
        agreeing = spearman(np.stack([each.scores[compared] for each in (*shown, *others)]))[0]
        for row, value in zip(ran, agreeing, strict=True):
            row["agreement"] = number_of(value)
    findings = [{"level": "note", "check": "curves", "title": "Held features", "text": text} for text in held]
    for name in (*QUICK_CHECKS, *(SLOW_CHECKS if thorough else ())):
        findings += _findings(served, raw, name, explanation, settings)
        yield
    about: dict[str, Any] = {"method": explanation.method, "curves": curves, "ran": ran, "refused": refused}
    about |= {"findings": findings, "thorough": thorough, "statement": _statement(curves), "unasked": served.default}
    return stored(store, subject, "trust", about)


def _curves(games: Games, explanations: list[Explanation], value: str) -> dict[str, Any]:
    """The model's output as the highest scores are removed, and as only they are kept; the same in random orders."""
    parts, game = games.parts[0], games.game(0)
    if len(parts) < 2:
        raise NotOffered("the input has fewer than two features that can be masked.")
    drawn = random_scores(len(parts), 0, games.seed, DRAWS)
    told: dict[str, Any] = {"fractions": FRACTIONS, "parts": len(parts), "replacement": str(games.replacement)}
    told |= {"value": value, "draws": DRAWS}
    for kind, make in (("remove", without_top), ("keep", only_top)):
        random = np.stack([game.values(make(order, FRACTIONS)) for order in drawn])
        areas = [area(each, FRACTIONS) for each in random]
        lines = []
        for explanation in explanations:
            curve = game.values(make(explanation.scores[parts], FRACTIONS))
            size = number_of(area(curve, FRACTIONS))
            sign = 1 if kind == "remove" else -1  # a low curve is good, or a high one
            worse = 0 if size is None else sum(sign * each > sign * size for each in areas)
            lines.append({"method": explanation.method, "curve": numbers_of(curve), "area": size, "worse": worse})
        told[kind] = {
            "lines": lines,
            "low": numbers_of(random.min(0)),
            "high": numbers_of(random.max(0)),
            "mean": numbers_of(random.mean(0)),
            "random": [number_of(min(areas)), number_of(sum(areas) / len(areas)), number_of(max(areas))],
        }
    return told


def _findings(
    served: ServedModel, raw: Any, name: str, explanation: Explanation, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Run one sanity check on the method on screen, with its options."""
    method = explanation.method
    options = {k: v for k, v in explanation.options.items() if k in get_method(method).options}
    options = options_of_tokens(options, settings["units"])
    try:
        checkup = check(served.explainer, [raw], checks=[name], method=method, target=settings["target"], **options)
    except WhyformerError as reason:
        return [{"level": "note", "check": name, "title": f"{name.replace('_', ' ')} was not run", "text": str(reason)}]
    return [{"level": f.level, "check": f.check, "title": f.title, "text": f.text} for f in checkup.findings]


def _statement(curves: dict[str, Any]) -> str:
    """Return the result of the method on screen on this input, without a rank, which needs more inputs."""
    line = curves["remove"]["lines"][0]
    if line["area"] is None:
        return f"{line['method']} cannot be compared with random orders here."
    return (
        f"On this input, the {curves['value']} falls faster by the ranking of {line['method']} than in "
        f"{line['worse']} of {DRAWS} random orders. {too_few(1)}. To test on more inputs, use whyformer recommend."
    )
