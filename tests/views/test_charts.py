"""Tables, curves, points, and numbers in maps, in every backend; scores that are not finite."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.views import samples
from tests.views.results import ALL
from whyformer.results.result import Result
from whyformer.views.html.charts import MOST_TIPS
from whyformer.views.marks import Bar, Bars, Line, Lines, Matrix, Points, Scale, Scatter, TableMark
from whyformer.views.scales import MISSING, Axis, axes_of, colours, limits, scale_of, styles, ticks
from whyformer.views.terminal.terminal_page import text
from whyformer.views.view import Page, Panel, View


def test_wide_tables_go_on_below() -> None:
    columns = ("method", *(f"a long heading {i}" for i in range(8)))
    wide = TableMark(columns, (("x", *(str(i) for i in range(8))),))
    shown = text(Page("", (View("wide", (Panel((wide,)),)),)), width=60)
    assert all(len(line) <= 60 for line in shown.splitlines())
    assert shown.count("method") > 1
    assert all(f"a long heading {i}" in shown for i in range(8))


def test_ticks_are_round_numbers() -> None:
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert np.allclose(ticks(0.27, 1.03), [0.4, 0.6, 0.8, 1.0])
    assert np.allclose(ticks(-0.02, 0.02), [-0.02, -0.01, 0, 0.01, 0.02])
    flat = Lines(np.array([0.0, 1.0]), (Line("flat", np.array([2.0, 2.0])),))
    assert limits(flat)[0] < 2 < limits(flat)[1]


# Curves with limits, on axes that run backwards


def pruned() -> Lines:
    places, other = np.array([100.0, 50.0, 0.0]), np.array([100.0, 0.0])
    values = np.array([0.9, 0.8, 0.5])
    first = Line("gradient", values, low=values - 0.1, high=values + 0.1, x=places)
    return Lines(places, (first, Line("chance", np.array([0.9, 0.3]), x=other)), "heads kept, %", "accuracy")


def test_an_axis_runs_the_way_of_its_curve() -> None:
    across, up = axes_of(pruned())
    assert (across.start, across.end) == (100.0, 0.0)
    assert across.shares([100.0, 75.0, 0.0]).tolist() == [0.0, 0.25, 1.0]
    assert up.start < 0.3 and up.end > 1.0, "bands and all curves fit in"
    assert 0.0 in across.ticks() and 100.0 in across.ticks()


def test_curves_with_limits_and_places_of_their_own() -> None:
    html = View("x", (Panel((pruned(),)),)).to_html()
    assert html.count("<polygon") == 1 and html.count("<polyline") == 2 and html.count("<circle") == 3
    lines = [part.split('"')[0].split() for part in html.split('points="')[1:]]
    assert [len(points) for points in lines] == [6, 3, 2]
    assert lines[1][0].split(",")[0] == lines[2][0].split(",")[0], "both begin with all heads"
    assert lines[1][-1].split(",")[0] == lines[2][-1].split(",")[0]
    figure = View("x", (Panel((pruned(),)),)).plot()
    assert len(figure.axes[0].collections) == 1  # the band


def test_axes_of_layers_have_whole_numbers_and_begin_at_zero() -> None:
    mark = Lines(np.arange(3), (Line("entropy", np.array([0.5, np.nan, 0.7])),), "layer", whole_x=True, from_zero=True)
    across, up = axes_of(mark)
    assert across.ticks() == [0.0, 1.0, 2.0]
    assert up.start == 0.0
    assert "nan" not in samples.still(View("x", (Panel((mark,)),)).to_html()).split("</style>")[1]
    assert "entropy" in text(Page("", (View("x", (Panel((mark,)),)),)))
    one = Lines(np.arange(1), (Line("entropy", np.array([np.nan])),), "layer")
    assert axes_of(one)[0].ticks() == [0.0] and axes_of(one)[0].shares([0.0]).tolist() == [0.5]


# Points


def points(count: int = 3) -> Scatter:
    x = np.geomspace(0.001, 1.0, count)
    crowd = Points("other", x, np.linspace(0, 1, count), quiet=True, labels=tuple(f"head <{i}>" for i in range(count)))
    return Scatter((crowd, Points("[CLS]", np.array([0.0, 0.1]), np.array([5.0, 0.5]))), "weight", "norm", log_x=True)


def test_points_in_every_backend() -> None:
    page = Page("", (View("x", (Panel((points(),)),)),))
    html = page.to_html()
    assert html.count("<circle") == 3 + 1, "what is not above zero has no place on a logarithmic axis"
    assert "head &lt;2&gt;" in html and "weight" in html and "norm" in html
    shown = text(page)
    plane = [line.partition("│")[2] for line in shown.splitlines() if "│" in line]
    assert sum(line.count("·") for line in plane) == 3 and sum(line.count("o") for line in plane) == 1
    assert "· other  o [CLS]" in shown and "norm, against weight" in shown
    drawn = page.plot().axes[0].collections
    assert [len(group.get_offsets()) for group in drawn[:2]] == [3, 2]
    assert styles(points().groups)[0][0] != styles(points().groups)[1][0]


def test_a_crowd_of_points_is_one_path() -> None:
    html = View("x", (Panel((points(MOST_TIPS),)),)).to_html()
    assert "<circle" not in html
    first, second = (part.split('"')[0] for part in html.split(' d="')[1:3])
    assert first.count("M") == MOST_TIPS and second.count("M") == 1


def test_logarithmic_axes() -> None:
    axis = Axis(0.001, 1.0, log=True)
    assert np.allclose(axis.ticks(), [0.001, 0.01, 0.1, 1.0])
    assert np.allclose(axis.shares([0.001, 0.1]), [0.0, 2 / 3]) and np.isnan(axis.shares([0.0]))[0]
    assert axes_of(points())[0].start < 0.001


# Numbers in maps, and bars with dots and words


def test_maps_write_numbers_and_leave_out_what_is_not_there() -> None:
    scores = np.array([[0.5, -0.25], [1.0, np.nan]])
    mark = Matrix(scores, Scale(-1.0, 1.0, True), ("1", "0"), ("0", "1"), "layer", "head", numbers=True)
    page = Page("", (View("x", (Panel((mark,)),)),))
    assert [w for w in text(page).split() if w[-1].isdigit()] == ["0", "1", "1", "0.50", "-0.25", "0", "1.00"]
    html = page.to_html()
    assert all(f">{number}</text>" in html for number in ("0.50", "-0.25", "1.00")) and "nan<" not in html
    words = [t.get_text() for t in page.plot().axes[0].texts]
    assert {"0.50", "-0.25", "1.00", "layer", "head"} <= set(words)
    assert tuple(colours(mark.scale, scores)[1, 1]) == MISSING
    assert tuple(colours(mark.scale, np.array([0.0]))[0]) == (255, 255, 255)


def test_wide_maps_of_numbers_go_on_below() -> None:
    mark = Matrix(np.full((2, 30), 0.5), Scale(0.0, 1.0), ("1", "0"), tuple(map(str, range(30))), numbers=True)
    shown = text(Page("", (View("x", (Panel((mark,)),)),)), width=60)
    assert shown.count("0.50") == 60 and max(map(len, shown.splitlines())) <= 60


def test_bars_with_dots_notes_and_a_reference() -> None:
    bars = (Bar("striped", 0.9, low=0.8, high=1.0, dots=(0.7, 0.95), note="★ p < 0.01"), Bar("plain", 0.5, quiet=True))
    page = Page("", (View("x", (Panel((Bars(bars, Scale(0.0, 1.0), reference=0.5),)),)),))
    html = page.to_html()
    assert html.count('class="wf-dot"') == 2 and html.count('class="wf-reference"') == 2
    assert "★ p &lt; 0.01" in html and "#b8c4d0" in html
    assert text(page).splitlines()[1].endswith("★ p < 0.01")
    axes = page.plot().axes[0]
    assert "★ p < 0.01" in [t.get_text() for t in axes.texts]
    assert len(axes.collections[0].get_offsets()) == 2


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
