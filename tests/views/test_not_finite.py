"""Scores that are no numbers or have no end are drawn as missing or full, and leave the others their colours."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.views import samples
from tests.views.results import ALL
from whyformer.results.result import Result
from whyformer.views.marks import Line, Lines, Points, Scale, Scatter
from whyformer.views.scales import scale_of
from whyformer.views.terminal.terminal_page import text
from whyformer.views.view import Page, Panel, View

DRAWN = ("scores", "matrix", "copying", "previous_token", "positional", "mean", "shares", "weights_LHR", "gates")
CASES = [
    (kind, field.name)
    for kind in sorted(ALL, key=lambda kind: kind.__name__)
    for field in dataclasses.fields(kind)  # type: ignore[arg-type]
    if field.name in DRAWN
]


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{kind.__name__}.{name}" for kind, name in CASES])
def test_results(kind: type[Result], name: str, odd: float) -> None:
    result: Any = ALL[kind]()
    array = getattr(result, name)
    if not isinstance(array, np.ndarray):
        return
    for changed in (np.where(np.arange(array.size).reshape(array.shape) == 0, odd, array), np.full_like(array, odd)):
        view = dataclasses.replace(result, **{name: changed.astype(array.dtype)}).view()
        assert text(view._page())
        assert view.to_html()


def test_the_others_keep_their_scale() -> None:
    assert scale_of([np.array([0.5, np.nan, 2.0, np.inf])]) == Scale(0.0, 2.0)
    assert scale_of([np.array([np.nan])]) == Scale(0.0, 0.0)
    assert Scale(-np.inf, np.nan, True).position(3.0) == 0.5
    assert Scale(-1, 1, True).length(np.nan) == 0
    assert Scale(-1, 1, True).length(np.inf) == 1


def test_curves_and_points() -> None:
    curves = Lines(
        np.arange(3.0), (Line("a", np.array([np.inf, 1.0, np.nan])), Line("none", np.array([]), x=np.array([])))
    )
    points = Scatter((Points("b", np.array([np.nan, 1.0]), np.array([0.0, 1.0]), labels=("lost", "there")),))
    page = Page("", (View("odd", (Panel((curves,)), Panel((points,)))),))
    assert text(page)
    html = page.to_html()
    assert "<title>there</title>" in html and "lost" not in html


def test_an_explanation_without_a_finite_score() -> None:
    assert "nan" in text(samples.text(scores=np.full(12, np.nan)).view()._page())
