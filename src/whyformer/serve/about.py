"""Beside a result: the attention of every head, and how far the explanation can be trusted."""

from __future__ import annotations

import math
from base64 import b64encode
from typing import Any

import numpy as np

from whyformer.engines.perturbation.ranking import area, only_top, without_top
from whyformer.errors import BadInput, NotOffered, WhyformerError
from whyformer.evaluate.agreement import spearman
from whyformer.evaluate.games import games_of
from whyformer.evaluate.judge import random_scores
from whyformer.serve.drawn import results_of
from whyformer.serve.explaining import Working, cheap_methods, how_of
from whyformer.serve.models import ServedModel
from whyformer.serve.question import Explain
from whyformer.serve.store import Entry, Store
from whyformer.types import Explanation
from whyformer.views.image import shrunk

Array = np.ndarray[Any, Any]

FRACTIONS = tuple(i / 10 for i in range(11))
DRAWS = 10  # random orders that make the band
QUICK_CHECKS = ("capture_audit", "class_dependence", "sinks", "serrano_smith", "wiegreffe_pinter")
SLOW_CHECKS = ("invariance", "stability", "randomisation", "jain_wallace")
MOST_CELLS = 600_000  # of all heads together
WIDEST = 96  # rows and columns of one head; of longer inputs, neighbours stand together


def subject_of(store: Store, identity: str) -> tuple[Entry, Explain, Explanation]:
    """A stored explanation, and the question that it answers."""
    entry = store.get(identity)
    if entry is None:
        raise BadInput(f"there is no result {identity!r}.")
    results = results_of(entry) if entry.kind == "explanation" else []
    if not results or not isinstance(results[0], Explanation):
        raise BadInput("this is asked of an explanation of one prediction.")
    return entry, Explain.model_validate({**entry.question, "options": entry.question.get("options", {})}), results[0]


def stored(store: Store, entry: Entry, kind: str, about: dict[str, Any]) -> str:
    return store.add(Entry(entry.model, kind, entry.method, entry.title, entry.said, {}, [about], parent=entry.id))


# Heads


def heads(served: ServedModel, identity: str, store: Store) -> Working:
    """Layers × heads: who attends to whom in this input, and how much the score depends on each head."""
    entry, question, explanation = subject_of(store, identity)
    raw = served.opened(question.input, store)
    record = served.explainer.record([raw])
    units = explanation.units
    layers = []
    sites = [site for site in record.sites if site.kind == "self" and site.windows == 1]
    sizes = [site.attention_BHQK.shape[1] for site in sites]
    if not sites:
        raise NotOffered("this model attends within windows or between streams: its heads have no map over the input.")
    side = min(WIDEST, int(math.sqrt(MOST_CELLS / max(1, sum(sizes)))))
    for site in sites:
        maps_HQK = site.attention_BHQK[0].float().cpu().numpy()
        cells = np.stack([shrunk(map_QK, side) for map_QK in maps_HQK])
        steps = np.rint(cells / (cells.max(axis=(1, 2), keepdims=True) + 1e-12) * 255).clip(0, 255).astype(np.uint8)
        entropy_H = -(maps_HQK * np.log(maps_HQK + 1e-12)).sum(-1).mean(-1)
        layers.append(
            {
                "path": site.path,
                "heads": len(cells),
                "rows": cells.shape[1],
                "columns": cells.shape[2],
                "highest": [round(float(m.max()), 5) for m in maps_HQK],
                "entropy": [round(float(e), 4) for e in entropy_H],
                "data": b64encode(steps.tobytes()).decode(),
            }
        )
    yield
    about = {"layers": layers, "labels": list(units.labels), "importance": _importance(served, raw, question)}
    return stored(store, entry, "heads", about)


def _importance(served: ServedModel, raw: Any, question: Explain) -> list[list[float | None]] | None:
    from whyformer.heads.importance import head_importance

    explainer = served.explainer
    try:
        importance = head_importance(explainer.model, [raw], processor=explainer.processor, target=question.aim)
        return [_numbers(row) for row in importance.scores]
    except WhyformerError:  # the maps are there without it
        return None


# Trust


def trust_units(served: ServedModel, explanation: Explanation, thorough: bool) -> int:
    """Units of work: the curves, each method, each check."""
    methods = cheap_methods(served, len(explanation.units))
    return 1 + len(methods) + len(QUICK_CHECKS) + (len(SLOW_CHECKS) if thorough else 0)


def trust(served: ServedModel, identity: str, store: Store, thorough: bool) -> Working:
    """The curve of what is on screen in its random band, other methods beside it, and what the check-up says."""
    entry, question, explanation = subject_of(store, identity)
    raw = served.opened(question.input, store)
    explained = how_of(served, question)
    how = {"target": question.aim, "units": question.units, "seed": question.seed}
    curves = _curves(served, raw, explanation, how)
    yield
    others: list[dict[str, Any]] = []
    scores = [explanation.scores]
    with_same = {k: v for k, v in explained.items() if k in ("target", "scalar", "units", "seed")}
    for name in cheap_methods(served, len(explanation.units)):
        if name != explanation.method:
            try:
                other = served.explainer.explain(raw, method=name, **with_same)
                if isinstance(other, Explanation) and other.units.labels == explanation.units.labels:
                    others.append({"method": name, "area": _area(served, raw, other, how)})
                    scores.append(other.scores)
            except WhyformerError as reason:
                others.append({"method": name, "refused": str(reason)})
        yield
    ran = [other for other in others if "area" in other]
    parts = [i for i, special in enumerate(explanation.units.special) if not special]
    if ran and len(parts) > 1:
        agreeing = spearman(np.stack([s[parts] for s in scores]))[0]
        for other, value in zip(ran, agreeing[1:], strict=True):
            other["agreement"] = _number(value)
    findings: list[dict[str, Any]] = []
    for name in (*QUICK_CHECKS, *(SLOW_CHECKS if thorough else ())):
        findings += _findings(served, raw, name, explanation, how)
        yield
    about: dict[str, Any] = {"method": explanation.method, "curves": curves, "others": others, "findings": findings}
    about["thorough"] = thorough
    about["recommended"] = _recommended(served, explanation, curves, ran)
    return stored(store, entry, "trust", about)


def _curves(served: ServedModel, raw: Any, explanation: Explanation, how: dict[str, Any]) -> dict[str, Any]:
    """The probability as the highest scores go, and as nothing but them is there; and the same in random orders."""
    with games_of(served.explainer, [raw], **how) as games:
        parts, game = games.parts[0], games.game(0)
        if len(parts) < 2:
            raise NotOffered("the input has no two parts that could be taken away.")
        scores_P = explanation.scores[parts]
        drawn = random_scores(len(parts), 0, games.seed, DRAWS)
        told: dict[str, Any] = {"fractions": FRACTIONS, "parts": len(parts), "replacement": str(games.replacement)}
        for kind, make in (("remove", without_top), ("keep", only_top)):
            random = np.stack([game.values(make(order, FRACTIONS)) for order in drawn])
            curve = game.values(make(scores_P, FRACTIONS))
            areas = [area(each, FRACTIONS) for each in random]
            told[kind] = {
                "curve": _numbers(curve),
                "low": _numbers(random.min(0)),
                "high": _numbers(random.max(0)),
                "mean": _numbers(random.mean(0)),
                "area": _number(area(curve, FRACTIONS)),
                "random": [_number(min(areas)), _number(sum(areas) / len(areas)), _number(max(areas))],
            }
        return told


def _area(served: ServedModel, raw: Any, explanation: Explanation, how: dict[str, Any]) -> float | None:
    with games_of(served.explainer, [raw], **how) as games:
        curve = games.game(0).values(without_top(explanation.scores[games.parts[0]], FRACTIONS))
        return _number(area(curve, FRACTIONS))


def _findings(
    served: ServedModel, raw: Any, name: str, explanation: Explanation, how: dict[str, Any]
) -> list[dict[str, Any]]:
    try:
        checkup = served.explainer.check([raw], checks=[name], method=explanation.method, target=how["target"])
    except WhyformerError as reason:
        return [{"level": "note", "check": name, "title": f"{name.replace('_', ' ')} was not run", "text": str(reason)}]
    return [{"level": f.level, "check": f.check, "title": f.title, "text": f.text} for f in checkup.findings]


def _recommended(
    served: ServedModel, explanation: Explanation, curves: dict[str, Any], ran: list[dict[str, Any]]
) -> dict[str, Any]:
    """What names first what the prediction hangs on, on this input; and what explains unasked."""
    removed = curves["remove"]
    all_of = [{"method": explanation.method, "area": removed["area"]}, *ran]
    known = [each for each in all_of if each["area"] is not None]
    best = min(known, key=lambda each: each["area"])
    low, mean, _ = removed["random"]
    beats = best["area"] < low
    why = (
        f"taking away what it names first lowers the probability fastest here: mean {best['area']:.3f} on the way, "
        f"{removed['area']:.3f} for {explanation.method}, {mean:.3f} for random orders."
        if beats
        else f"none of {len(known)} methods beats all {DRAWS} random orders on this input: believe none of them here."
    )
    return {
        "method": best["method"] if beats else None,
        "why": f"{why} One input says little: measure on 50 with whyformer recommend.",
        "unasked": served.default,
        "unasked_why": "explains when no method is named, by tasks whose answer is known.",
    }


def _number(value: Any) -> float | None:
    return round(float(value), 5) if math.isfinite(float(value)) else None


def _numbers(values: Array) -> list[float | None]:
    return [_number(value) for value in values]
