"""The stored explanation that something is asked about, and whether the model still says what it said then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whyformer.errors import BadInput, NotOffered
from whyformer.serve.drawn import items_of, results_of
from whyformer.serve.models import ServedModel, first_of
from whyformer.serve.question import Explain
from whyformer.serve.store import Entry, Store
from whyformer.types import Explanation

Array = np.ndarray[Any, Any]
CLOSE = 1e-3  # of a value that is computed again


@dataclass(frozen=True)
class Subject:
    """An entry of the store, its question, and the explanations of it that are on screen: one per method."""

    entry: Entry
    question: Explain
    explanations: Sequence[Explanation]
    item: int = 0

    @property
    def first(self) -> Explanation:
        return self.explanations[0]


def subject_of(store: Store, identity: str, item: int = 0) -> Subject:
    """A stored explanation, and the question that it answers. ``item``: of several objects, which."""
    entry = store.get(identity)
    if entry is None:
        raise BadInput(f"there is no result {identity!r}.")
    results = results_of(entry) if entry.kind == "explanation" else []
    if not results or not isinstance(results[0], Explanation):
        raise BadInput("this is asked of an explanation of one prediction.")
    items = items_of(entry, results)
    if items and results[0].target.position is None:
        raise BadInput("this is asked of one prediction, and these are tokens that a model wrote one after the other.")
    if item >= max(1, len(items)):
        raise BadInput(f"there are {max(1, len(items))} objects, numbered from 0: there is no {item}.")
    question = Explain.model_validate({**entry.question, "options": entry.question.get("options", {})})
    first = (items[item] if items else results)[0]
    same = [each for each in (items[item] if items else results) if each.target == first.target]
    return Subject(entry, question, same, item)


def aim_of(served: ServedModel, explanation: Explanation) -> Any:
    """What was explained, as ``explain`` takes it: never what is predicted now."""
    target = explanation.target
    return (target.position, target.index) if served.kind == "detector" else target


def require_same_answer(served: ServedModel, raw: Any, explanation: Explanation, units: str = "token") -> None:
    """Another model may have this name since the server was started anew, or other samples these numbers."""
    how = {"target": aim_of(served, explanation), "scalar": explanation.scalar}
    how |= {} if units == "token" else {"units": units}
    now = first_of(served.explainer.explain(raw, method="random", **how))
    close = math.isclose(now.value, explanation.value, rel_tol=CLOSE, abs_tol=CLOSE)
    if not close or now.units.labels != explanation.units.labels:
        raise NotOffered(
            f"{served.name!r} says something else now ({now.value:.4g}) than when this was explained "
            f"({explanation.value:.4g}): another model or sample has its name. Explain it again."
        )


def stored(store: Store, subject: Subject, kind: str, about: dict[str, Any]) -> str:
    entry, question = subject.entry, {"item": subject.item}
    return store.add(
        Entry(entry.model, kind, entry.method, entry.title, entry.said, question, [about], parent=entry.id)
    )


def number_of(value: Any) -> float | None:
    return round(float(value), 5) if math.isfinite(float(value)) else None


def numbers_of(values: Array) -> list[float | None]:
    return [number_of(value) for value in values]
