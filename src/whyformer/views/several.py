"""Lists and dicts of explanations: several inputs below each other, several methods beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from whyformer.types import ByMethod, Explanation, Explanations, Generation
from whyformer.views.explained import page, side_by_side
from whyformer.views.facts import facts_about_input, facts_about_method
from whyformer.views.table import global_bars
from whyformer.views.view import Page, Panel, Rows, View, view_of

MOST = 20  # inputs that are drawn; more are said to be there
FEWEST_ROWS = 2


@view_of.register(Explanations)
def list_page(explanations: Sequence[Any], title: str = "", **how: Any) -> Page:
    """One view per input; rows of one table begin with all of them together."""
    together = [rows_view(explanations)] if are_rows(explanations) else []
    views = [view for item in explanations[:MOST] for view in _views(item, how)]
    count = len(explanations)
    return Page(title or f"{count} explanation{'s' * (count != 1)}", (*together, *views), _left_out(count))


@view_of.register(ByMethod)
def methods_page(explanations: Mapping[str, Any], title: str = "", **how: Any) -> Any:
    """Methods beside each other, input by input; answers of several tokens below each other."""
    first = next(iter(explanations.values()))
    if isinstance(first, Explanation):
        return side_by_side(explanations, title=title, **how)
    if isinstance(first, list) and not isinstance(first, Generation) and isinstance(first[0], Explanation):
        inputs = list(zip(*explanations.values(), strict=True))
        views = [side_by_side(list(each), **how) for each in inputs[:MOST]]
        return Page(title or f"{len(inputs)} inputs, {len(explanations)} methods", tuple(views), _left_out(len(inputs)))
    views = [view for item in explanations.values() for view in _views(item, how)]
    return Page(title or f"{len(explanations)} methods", tuple(views))


def _views(item: Any, how: dict[str, Any]) -> list[View]:
    if isinstance(item, (Explanation, Generation)) or not isinstance(item, list):
        return list(page([view_of(item, **how)]).views)
    return [view for each in item[:MOST] for view in _views(each, how)]


def _left_out(count: int) -> tuple[str, ...]:
    return (f"One by one, the first {MOST} of {count} are drawn.",) if count > MOST else ()


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
    kept = [fact for fact in facts_about_method(first) if fact.name in ("method", "options")]
    return View(
        f"{len(explanations)} rows together",
        (Panel((global_bars(first.units, np.abs(scores_RU).mean(0)),), "mean size of the score", wide=True),),
        (*model, *kept),
        caption="Each row is explained for its own target: a score raises or lowers the value of that one.",
        explained=Rows(list(explanations)),
    )
