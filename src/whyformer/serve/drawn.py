"""A stored answer as data or markup for the page, and as files to download."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from whyformer.errors import BadInput, NotOffered
from whyformer.inputs.families import SIDES
from whyformer.results.codec import from_plain
from whyformer.results.result import Result
from whyformer.results.types import Explanation, Explanations
from whyformer.serve.messages import Explain
from whyformer.serve.models import ServedModel, erasable, first_of
from whyformer.serve.store import Entry, Store
from whyformer.shapes import Array
from whyformer.views import Page, View, list_page, side_by_side, view_of
from whyformer.views.html.html_page import fragment
from whyformer.views.html.live import live_data
from whyformer.views.image_marks import frames_of
from whyformer.views.several import similarity_view, steps_view
from whyformer.views.view import Explained

FORMATS = {"html": "text/html", "json": "application/json", "png": "image/png", "csv": "text/csv"}
ABOUT = ("heads", "trust")  # what can be asked about a result
STEERING = ("=", "+", "-", "@", "\t", "\r")  # what spreadsheets take for a formula
_drawing = threading.Lock()  # matplotlib draws for one thread at a time


def results_of(entry: Entry) -> list[Any]:
    """Return the results of an entry as objects."""
    try:
        return [from_plain(Result, plain) for plain in entry.results]
    except Exception as error:  # the file may have been written by another version
        raise NotOffered(f"this result cannot be read ({error}): explain it again.") from error


def items_of(entry: Entry, results: Sequence[Any]) -> list[list[Explanation]]:
    """Return, per detected object or written token, one explanation per method; [] for other results."""
    if not entry.beside.get("count") or not all(isinstance(result, Explanation) for result in results):
        return []
    by_method: dict[str, list[Explanation]] = {}
    for result in results:
        by_method.setdefault(result.method, []).append(result)
    longest = max(map(len, by_method.values()))
    return [[each[i] for each in by_method.values() if i < len(each)] for i in range(longest)]


def overview_of(items: Sequence[Sequence[Explanation]]) -> list[View]:
    """Return a view of all objects, or of all written tokens and their sources; [] where neither fits."""
    of_one_method = [item[0] for item in items]
    if all(frames_of(each) for each in of_one_method):
        return [view for view in list_page(Explanations(of_one_method)).views if view.explained is None]
    streams = {stream for each in of_one_method for stream in each.units.stream}
    return [steps_view(of_one_method)] if streams == {"source", "target"} else []


def picture_of(entry: Entry, results: Sequence[Any]) -> View | Page:
    """Return one result, several of one input side by side, or an overview and a view per object or token."""
    items = items_of(entry, results)
    if items:
        left_out = _left_out(entry, items)
        return Page(entry.title, (*overview_of(items), *map(_together, items)), (left_out,) if left_out else ())
    if all(isinstance(result, Explanation) for result in results):
        return _together(results, entry.title)
    if len(results) == 1:
        return view_of(results[0])
    return Page(entry.title, tuple(view for result in results for view in view_of(result)._page().views))


def _together(results: Sequence[Explanation], title: str = "") -> View:
    return view_of(results[0]) if len(results) == 1 else side_by_side(list(results), title=title)


def _left_out(entry: Entry, items: Sequence[Any]) -> str:
    count = entry.beside.get("count", 0)
    return f"The first {len(items)} of {count} are explained here." if count > len(items) else ""


def drawn(entry: Entry) -> dict[str, Any]:
    """Return an answer as the page draws it, with its link. Trust and heads are drawn from their own numbers."""
    told: dict[str, Any] = entry.listed() | {"items": [], "html": None, "tabs": []}
    told |= {name: getattr(entry, name) for name in ("question", "failures", "beside", "parent", "picture")}
    if entry.kind in ("trust", "heads"):
        return told | {"about": entry.results[0], "views": []}
    results = results_of(entry)
    items = items_of(entry, results)
    if items:
        overview = overview_of(items)
        told["items"] = [_name(item[0]) for item in items]
        told["left_out"] = _left_out(entry, items)
        told["html"] = fragment(Page("", tuple(overview))) if overview else None
        told["tabs"] = list(ABOUT) if frames_of(items[0][0]) else []  # a written token hangs on those before it
        return told | {"views": [_live(_together(item)) for item in items]}
    picture = picture_of(entry, results)
    views = picture.views if isinstance(picture, Page) else (picture,)
    if all(view.explained is not None for view in views):
        if entry.kind == "explanation":  # of two texts that are compared, each has heads of its own
            told["tabs"] = ["trust"] if set(results[0].units.stream) == set(SIDES) else list(ABOUT)
        maps = [(each, each.matrix) for each in results if isinstance(each, Explanation)]
        paired = [each for each, matrix in maps if isinstance(matrix, dict) and SIDES in matrix]
        told["html"] = fragment(Page("", (similarity_view(paired[0]),))) if paired else None
        return told | {"views": [_live(view) for view in views]}
    return told | {"views": [], "html": fragment(picture if isinstance(picture, Page) else Page("", (picture,)))}


def _name(explanation: Explanation) -> str:
    query = explanation.target.position
    return f"{explanation.target}, query {query}" if frames_of(explanation) else str(explanation.target)


def _live(view: View) -> dict[str, Any]:
    """Return the data of a saved page's interactive view, and the texts around it."""
    told: dict[str, Any] = {
        "title": view.title,
        "facts": [[fact.name, fact.value] for fact in view.facts],
        "details": [[fact.name, fact.value] for fact in view.details],
        "doubts": list(view.doubts),
        "caption": view.caption,
        "data": live_data(view),
    }
    if not isinstance(view.explained, Explained):
        return told
    first: Explanation = view.explained.explanations[0]
    target = first.target
    # By number: two classes may have one name.
    told["predicted"] = first.prediction.index
    told["choices"] = [choice.index for choice in first.prediction.next or ()]
    told["target"] = {"index": target.index, "label": target.label or str(target.index), "versus": target.versus}
    told["target"]["versus_label"] = target.versus_label or str(target.versus)
    return told | {"erasable": erasable(first.units)}


def exported(entry: Entry, form: str) -> bytes:
    """Return an answer as a file: HTML, JSON, PNG or CSV."""
    if form not in FORMATS:
        raise BadInput(f"unknown file format {form!r}: choose {', '.join(FORMATS)}.")
    if form == "json":
        plain = entry.results[0] if len(entry.results) == 1 else entry.results
        return json.dumps(plain, ensure_ascii=False).encode("utf-8", "backslashreplace")
    if entry.kind in ("trust", "heads"):
        raise BadInput(f"{entry.kind} of a result can be downloaded as json only.")
    results = results_of(entry)
    if form == "csv":
        return _table(entry, results).encode("utf-8", "backslashreplace")
    picture = picture_of(entry, results)
    if form == "html":
        return picture.to_html().encode("utf-8", "backslashreplace")
    with _drawing, TemporaryDirectory() as folder:
        path = Path(folder) / "picture.png"
        picture.save(path)
        return path.read_bytes()


def _table(entry: Entry, results: Sequence[Any]) -> str:
    """Return one CSV table, with columns for the method and object where there are several."""
    items, parts = items_of(entry, results), []
    names = {id(result): f"{number}: {_name(result)}" for number, item in enumerate(items) for result in item}
    for number, result in enumerate(results):
        frame = result.to_frame()
        for name in frame.columns:
            frame[name] = [_harmless(value) for value in frame[name]]
        if names:
            frame.insert(0, "of", _harmless(names[id(result)]))
        if len(results) > 1:
            frame.insert(0, "method", getattr(result, "method", str(number)))
        parts.append(frame.to_csv(index=False, header=not number))
    return "".join(parts)


def _harmless(value: Any) -> Any:
    """Put a quote before text that a spreadsheet would take for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(STEERING) else value


# The stored explanation that something is asked about, and whether the model still says what it said then.

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
    """Return a stored explanation and its question. ``item``: the number of the object, of several."""
    entry = store.get(identity)
    if entry is None:
        raise BadInput(f"unknown result {identity!r}.")
    results = results_of(entry) if entry.kind == "explanation" else []
    if not results or not isinstance(results[0], Explanation):
        raise BadInput("this needs an explanation of one prediction.")
    items = items_of(entry, results)
    if items and results[0].target.position is None:
        raise BadInput("this needs an explanation of one prediction, not of generated tokens.")
    if item >= max(1, len(items)):
        raise BadInput(f"object {item} does not exist: there are {max(1, len(items))}, numbered from 0.")
    question = Explain.model_validate({**entry.question, "options": entry.question.get("options", {})})
    first = (items[item] if items else results)[0]
    same = [each for each in (items[item] if items else results) if each.target == first.target]
    return Subject(entry, question, same, item)


def aim_of(served: ServedModel, explanation: Explanation) -> Any:
    """Return the target that was explained, as ``explain`` takes it."""
    target = explanation.target
    return (target.position, target.index) if served.kind == "detector" else target


def require_same_answer(served: ServedModel, raw: Any, explanation: Explanation, units: str = "token") -> None:
    """Raise if the model's output changed: after a restart, another model may have this name."""
    options = {"target": aim_of(served, explanation), "scalar": explanation.scalar}
    options |= {} if units == "token" else {"units": units}
    now = first_of(served.explainer.explain(raw, method="random", **options))
    close = math.isclose(now.value, explanation.value, rel_tol=CLOSE, abs_tol=CLOSE)
    if not close or now.units.labels != explanation.units.labels:
        raise NotOffered(
            f"the output of {served.name!r} has changed since this was explained ({now.value:.4g}, was "
            f"{explanation.value:.4g}): another model or sample has its name. Explain it again."
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
