"""Lists and dicts of explanations: several inputs below each other, several methods beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from whyformer.files.image_file import pixels_of_uri
from whyformer.types import ByMethod, Explanation, Explanations, Generation
from whyformer.views.explained import page, side_by_side, title_of
from whyformer.views.facts import explained, facts_about_input, facts_about_method
from whyformer.views.image import frames_of, gradient_space
from whyformer.views.marks import Picture, Table
from whyformer.views.table import global_bars
from whyformer.views.view import Fact, Page, Panel, Rows, View, view_of

MOST = 20  # inputs that are drawn; more are said to be there
FEWEST_ROWS = 2


@view_of.register(Explanations)
def list_page(explanations: Sequence[Any], title: str = "", **how: Any) -> Page:
    """One view per input; rows of one table begin with all of them together."""
    together = [rows_view(explanations)] if are_rows(explanations) else _detections(explanations)
    views = [view for item in explanations[:MOST] for view in _views(item, how)]
    if are_rows(explanations):
        views = [replace(v, title=title_of(e, i)) for i, (v, e) in enumerate(zip(views, explanations, strict=False))]
    count = sum(map(_count, explanations))
    told = f"{count} explanation{'s' * (count != 1)}"
    if count > len(explanations):  # detections of an image, tokens of an answer
        told += f" of {len(explanations)} input{'s' * (len(explanations) != 1)}"
    drawn = sum(min(_count(item), MOST) for item in explanations[:MOST])
    return Page(title or told, (*together, *views), _left_out(count, drawn))


@view_of.register(ByMethod)
def methods_page(explanations: Mapping[str, Any], title: str = "", **how: Any) -> Any:
    """Methods beside each other, input by input; answers of several tokens below each other."""
    first = next(iter(explanations.values()))
    if isinstance(first, Explanation):
        return side_by_side(explanations, title=title, **how)
    if isinstance(first, list) and not isinstance(first, Generation) and isinstance(first[0], Explanation):
        inputs = list(zip(*explanations.values(), strict=True))
        views = [side_by_side(list(each), **how) for each in inputs[:MOST]]
        told = f"{len(inputs)} inputs, {len(explanations)} methods"
        return Page(title or told, tuple(views), _left_out(len(inputs), len(views)))
    views = [view for item in explanations.values() for view in _views(item, how)]
    return Page(title or f"{len(explanations)} methods", tuple(views))


def _views(item: Any, how: dict[str, Any]) -> list[View]:
    if isinstance(item, (Explanation, Generation)) or not isinstance(item, list):
        return list(page([view_of(item, **how)]).views)
    return [*_detections(item), *(view for each in item[:MOST] for view in _views(each, how))]


def _detections(explanations: Sequence[Any]) -> list[View]:
    """All objects of one image that are explained, on the picture, where there are several."""
    if len(explanations) < 2 or not all(isinstance(e, Explanation) and frames_of(e) for e in explanations):
        return []
    first: Explanation = explanations[0]
    if any(e.picture != first.picture for e in explanations):
        return []
    pixels = None if first.picture is None else pixels_of_uri(first.picture)
    if pixels is None:
        return []
    frames = tuple(replace(f, label=f"{f.label} {e.target.position}") for e in explanations for f in frames_of(e))
    rows = tuple(
        (str(e.target.position), str(e.target), explained(e), gradient_space(f))
        for e in explanations
        for f in frames_of(e)
    )
    table = Table(("query", "object", "explained", "place"), rows)  # boxes that coincide are told apart here
    panels = (Panel((Picture(pixels, frames),)), Panel((table,)))
    facts = (Fact("model", first.model), Fact("numbers", "the query that found the object"))
    return [View(f"{len(explanations)} detections", panels, facts, columns=2)]


def _count(item: Any) -> int:
    """Pictures that an item of a list has; what a language model wrote is one."""
    return sum(map(_count, item)) if isinstance(item, list) and not isinstance(item, Generation) else 1


def _left_out(count: int, drawn: int) -> tuple[str, ...]:
    return (f"One by one, the first {drawn} of {count} are drawn.",) if count > drawn else ()


def are_rows(explanations: Sequence[Any]) -> bool:
    """Rows of one table under one method."""
    if len(explanations) < FEWEST_ROWS or not all(isinstance(e, Explanation) for e in explanations):
        return False
    one = {(e.method, e.units.labels) for e in explanations}
    return len(one) == 1 and set(explanations[0].units.stream) == {"table"}


def rows_view(explanations: Sequence[Explanation]) -> View:
    """All rows together: how strong each column is on average, and on live pages a dot per row."""
    first = explanations[0]
    scores_RU = np.stack([e.scores for e in explanations])
    model = [fact for fact in facts_about_input(first) if fact.name == "model"]
    told = [fact for fact in facts_about_method(first) if fact.name in ("method", "options")]
    return View(
        f"{len(explanations)} rows together",
        (Panel((global_bars(first.units, np.abs(scores_RU).mean(0)),), "mean size of the score", wide=True),),
        (*model, *told),
        caption="Each row is explained for its own target: a score raises or lowers the value of that one.",
        explained=Rows(list(explanations)),
    )
