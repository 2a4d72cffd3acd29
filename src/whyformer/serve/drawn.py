"""A stored answer as the page draws it: the data of saved pages, or their markup; and as files to take away."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from whyformer.errors import BadInput, NotOffered
from whyformer.result import Result, from_plain
from whyformer.serve.store import Entry
from whyformer.types import Explanation
from whyformer.views import Page, View, side_by_side, view_of
from whyformer.views.html.live import live_html
from whyformer.views.html.page import fragment

FORMATS = {"html": "text/html", "json": "application/json", "png": "image/png", "csv": "text/csv"}
STEERING = ("=", "+", "-", "@", "\t", "\r")  # what spreadsheets take for a formula
_drawing = threading.Lock()  # matplotlib draws for one thread at a time


def results_of(entry: Entry) -> list[Any]:
    """As they were when they were made."""
    try:
        return [from_plain(Result, plain) for plain in entry.results]
    except Exception as error:  # the file may have been written by another version
        raise NotOffered(f"this result cannot be read ({error}): explain it again.") from error


def picture_of(results: Sequence[Any], title: str = "") -> View | Page:
    """One result, or several of one input side by side."""
    if len(results) == 1:
        drawn: View | Page = view_of(results[0])
        return drawn
    if all(isinstance(result, Explanation) for result in results):
        return side_by_side(list(results), title=title)
    views = [view for result in results for view in view_of(result)._page().views]
    return Page(title, tuple(views))


def drawn(entry: Entry) -> dict[str, Any]:
    """All that is known of an answer, with its link. Trust and heads are drawn from their own numbers."""
    told: dict[str, Any] = entry.listed() | {"question": entry.question, "failures": entry.failures}
    told |= {"beside": entry.beside, "parent": entry.parent, "picture": entry.picture}
    if entry.kind in ("trust", "heads"):
        return told | {"about": entry.results[0], "views": []}
    picture = picture_of(results_of(entry), entry.title)
    views = picture.views if isinstance(picture, Page) else (picture,)
    if all(view.explained is not None for view in views):
        return told | {"views": [_live(view) for view in views], "html": None}
    return told | {"views": [], "html": fragment(picture if isinstance(picture, Page) else Page("", (picture,)))}


def _live(view: View) -> dict[str, Any]:
    """What ``live_html`` writes beside the still picture of a saved page, without its element."""
    element = live_html(view)
    data = json.loads(element[element.index(">") + 1 : element.rindex("</script>")])
    facts = [[fact.name, fact.value] for fact in view.facts]
    return {"title": view.title, "facts": facts, "doubts": list(view.doubts), "caption": view.caption, "data": data}


def exported(entry: Entry, form: str) -> bytes:
    """A page, data, a picture or a table."""
    if form not in FORMATS:
        raise BadInput(f"{form!r} is no form to take away: choose {', '.join(FORMATS)}.")
    if form == "json":
        plain = entry.results[0] if len(entry.results) == 1 else entry.results
        return json.dumps(plain, ensure_ascii=False).encode("utf-8", "backslashreplace")
    if entry.kind in ("trust", "heads"):
        raise BadInput(f"{entry.kind} of a result can be taken away as json only.")
    results = results_of(entry)
    if form == "csv":
        return _table(results).encode("utf-8", "backslashreplace")
    picture = picture_of(results, entry.title)
    if form == "html":
        return picture.to_html().encode("utf-8", "backslashreplace")
    with _drawing, TemporaryDirectory() as folder:
        path = Path(folder) / "picture.png"
        picture.save(path)
        return path.read_bytes()


def _table(results: Sequence[Any]) -> str:
    """One table; of several methods, the name of each in front."""
    parts = []
    for number, result in enumerate(results):
        frame = result.to_frame()
        for name in frame.columns:
            frame[name] = [_harmless(value) for value in frame[name]]
        if len(results) > 1:
            frame.insert(0, "method", getattr(result, "method", str(number)))
        parts.append(frame.to_csv(index=False, header=not number))
    return "".join(parts)


def _harmless(value: Any) -> Any:
    """A word that a spreadsheet would compute begins with a quote, which it shows as text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(STEERING) else value
