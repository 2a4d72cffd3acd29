"""Tables, curves, points, numbers in maps, colours and scales, in every backend; scores that are not finite."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import pytest
from rich.color import Color, ColorSystem
from rich.console import Console

from tests.views import samples
from tests.views.results import ALL
from whyformer.errors import BadInput
from whyformer.results.result import Result
from whyformer.views import scales, side_by_side, view_of
from whyformer.views.html.charts import MOST_TIPS
from whyformer.views.marks import Bar, Bars, Heat, Line, Lines, Mark, Matrix, Points, Scale, Scatter, TableMark
from whyformer.views.terminal.terminal_page import PageOnTerminal, text
from whyformer.views.view import Page, Panel, View


def page_of(*drawn: Mark) -> Page:
    return Page("", (View("x", tuple(Panel((mark,)) for mark in drawn)),))


def test_wide_tables_and_maps_of_numbers_go_on_below() -> None:
    columns = ("method", *(f"a long heading {i}" for i in range(8)))
    wide = TableMark(columns, (("x", *(str(i) for i in range(8))),))
    shown = text(page_of(wide), width=60)
    assert all(len(line) <= 60 for line in shown.splitlines())
    assert shown.count("method") > 1 and all(f"a long heading {i}" in shown for i in range(8))
    mark = Matrix(np.full((2, 30), 0.5), Scale(0.0, 1.0), ("1", "0"), tuple(map(str, range(30))), numbers=True)
    shown = text(page_of(mark), width=60)
    assert shown.count("0.50") == 60 and max(map(len, shown.splitlines())) <= 60
    page = page_of(Matrix(np.array([[0.5, -0.25], [1.0, np.nan]]), Scale(-1.0, 1.0, True), numbers=True))
    assert all("1.00" in told and "nan" not in told for told in (text(page), samples.still(page.to_html())[-900:]))


def test_ticks_are_round_numbers() -> None:
    assert scales.ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert np.allclose(scales.ticks(0.27, 1.03), [0.4, 0.6, 0.8, 1.0])
    assert np.allclose(scales.ticks(-0.02, 0.02), [-0.02, -0.01, 0, 0.01, 0.02])
    low, high = scales.limits(Lines(np.array([0.0, 1.0]), (Line("flat", np.array([2.0, 2.0])),)))
    assert low < 2 < high
    axis = scales.Axis(0.001, 1.0, log=True)
    assert np.allclose(axis.ticks(), [0.001, 0.01, 0.1, 1.0])
    assert np.allclose(axis.shares([0.001, 0.1]), [0.0, 2 / 3]) and np.isnan(axis.shares([0.0]))[0]
    assert scales.axes_of(points())[0].start < 0.001


def pruned() -> Lines:
    places, other = np.array([100.0, 50.0, 0.0]), np.array([100.0, 0.0])
    values = np.array([0.9, 0.8, 0.5])
    first = Line("gradient", values, low=values - 0.1, high=values + 0.1, x=places)
    return Lines(places, (first, Line("chance", np.array([0.9, 0.3]), x=other)), "heads kept, %", "accuracy")


def test_axes_run_the_way_of_their_curves_or_have_whole_numbers() -> None:
    across, up = scales.axes_of(pruned())
    assert (across.start, across.end) == (100.0, 0.0)
    assert across.shares([100.0, 75.0, 0.0]).tolist() == [0.0, 0.25, 1.0]
    assert up.start < 0.3 and up.end > 1.0, "bands and all curves fit in"
    assert 0.0 in across.ticks() and 100.0 in across.ticks()
    mark = Lines(np.arange(3), (Line("entropy", np.array([0.5, np.nan, 0.7])),), "layer", whole_x=True, from_zero=True)
    across, up = scales.axes_of(mark)
    assert across.ticks() == [0.0, 1.0, 2.0] and up.start == 0.0
    assert "nan" not in samples.still(page_of(mark).to_html()).split("</style>")[1] and "entropy" in text(page_of(mark))
    one = Lines(np.arange(1), (Line("entropy", np.array([np.nan])),), "layer")
    assert scales.axes_of(one)[0].ticks() == [0.0] and scales.axes_of(one)[0].shares([0.0]).tolist() == [0.5]


def test_curves_with_limits_and_places_of_their_own() -> None:
    html = page_of(pruned()).to_html()
    assert html.count("<polygon") == 1 and html.count("<polyline") == 2 and html.count("<circle") == 3
    lines = [part.split('"')[0].split() for part in html.split('points="')[1:]]
    assert [len(points) for points in lines] == [6, 3, 2]
    assert lines[1][0].split(",")[0] == lines[2][0].split(",")[0], "both begin with all heads"
    assert lines[1][-1].split(",")[0] == lines[2][-1].split(",")[0]
    assert len(page_of(pruned()).plot().axes[0].collections) == 1  # the band


def points(count: int = 3) -> Scatter:
    x = np.geomspace(0.001, 1.0, count)
    crowd = Points("other", x, np.linspace(0, 1, count), quiet=True, labels=tuple(f"head <{i}>" for i in range(count)))
    return Scatter((crowd, Points("[CLS]", np.array([0.0, 0.1]), np.array([5.0, 0.5]))), "weight", "norm", log_x=True)


def test_points_in_every_backend() -> None:
    page = page_of(points())
    html = page.to_html()
    assert html.count("<circle") == 3 + 1, "what is not above zero has no place on a logarithmic axis"
    assert "head &lt;2&gt;" in html and "weight" in html and "norm" in html
    shown = text(page)
    plane = [line.partition("│")[2] for line in shown.splitlines() if "│" in line]
    assert sum(line.count("·") for line in plane) == 3 and sum(line.count("o") for line in plane) == 1
    assert "· other  o [CLS]" in shown and "norm, against weight" in shown
    drawn = page.plot().axes[0].collections
    assert [len(group.get_offsets()) for group in drawn[:2]] == [3, 2]
    assert scales.styles(points().groups)[0][0] != scales.styles(points().groups)[1][0]


def test_a_crowd_of_points_is_one_path() -> None:
    html = page_of(points(MOST_TIPS)).to_html()
    assert "<circle" not in html
    first, second = (part.split('"')[0] for part in html.split(' d="')[1:3])
    assert first.count("M") == MOST_TIPS and second.count("M") == 1


def test_bars_with_dots_notes_and_a_reference() -> None:
    bars = (Bar("striped", 0.9, low=0.8, high=1.0, dots=(0.7, 0.95), note="★ p < 0.01"), Bar("plain", 0.5, quiet=True))
    page = page_of(Bars(bars, Scale(0.0, 1.0), reference=0.5))
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


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{kind.__name__}.{name}" for kind, name in CASES])
def test_results_that_are_not_finite(kind: type[Result], name: str) -> None:
    result: Any = ALL[kind]()
    array = getattr(result, name)
    if not isinstance(array, np.ndarray):
        return
    first = np.arange(array.size).reshape(array.shape) == 0
    for changed in (np.where(first, -np.inf, array), np.full_like(array, np.nan)):
        view = dataclasses.replace(result, **{name: changed.astype(array.dtype)}).view()
        assert text(view._page())
        assert view.to_html()


def test_scales_are_from_zero_or_around_it_and_skip_what_is_not_finite() -> None:
    plain, signed = scales.scale_of([np.array([0.1, 0.5])]), scales.scale_of([np.array([0.1, -0.5])])
    assert plain == Scale(0.0, 0.5) and signed == Scale(-0.5, 0.5, True)
    assert scales.colour(signed, 0.0) == scales.colour(plain, 0.0) == (255, 255, 255)
    assert scales.scale_of([np.zeros(3)]).position(0.0) == 0.0
    assert scales.scale_of([np.zeros(3)], signed=True).position(0.0) == signed.position(0.0) == 0.5
    assert scales.scale_of([np.array([0.2, 0.5])], from_zero=False).low == 0.2
    assert scales.scale_of([np.array([])]).high == 0.0
    assert scales.scale_of([np.array([0.5, np.nan, 2.0, np.inf])]) == Scale(0.0, 2.0)
    assert scales.scale_of([np.array([np.nan])]) == Scale(0.0, 0.0)
    assert Scale(-np.inf, np.nan, True).position(3.0) == 0.5
    missing, zero = scales.colours(signed, np.array([np.nan, 0.0]))
    assert tuple(missing) == scales.MISSING and tuple(zero) == (255, 255, 255)
    assert (Scale(-1, 1, True).length(np.nan), Scale(-1, 1, True).length(np.inf)) == (0, 1)


def test_curves_and_points_that_are_not_finite() -> None:
    curves = Lines(
        np.arange(3.0), (Line("a", np.array([np.inf, 1.0, np.nan])), Line("none", np.array([]), x=np.array([])))
    )
    points = Scatter((Points("b", np.array([np.nan, 1.0]), np.array([0.0, 1.0]), labels=("lost", "there")),))
    page = page_of(curves, points)
    assert text(page) and "not finite" in text(samples.text(scores=np.full(12, np.nan)).view()._page())
    html = page.to_html()
    assert "<title>there</title>" in html and "lost" not in html


# Colours and by_panel

# Machado, Oliveira & Fernandes 2009, severity 1: what a deuteranope and a protanope see of linear RGB.
DEUTAN = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
PROTAN = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]


def luminances(pixels: np.ndarray) -> np.ndarray:
    linear = np.where(pixels <= 0.04045, pixels / 12.92, ((pixels + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def lightness(pixels: np.ndarray) -> np.ndarray:
    luminance = luminances(pixels)
    return np.where(luminance > 0.008856, 116 * np.cbrt(luminance) - 16, 903.3 * luminance)


@pytest.mark.parametrize("anchors", [scales.SEQUENTIAL, scales.HEAT, scales.DIVERGING[4:], scales.DIVERGING[4::-1]])
def test_lightness_runs_one_way_so_that_no_hue_is_needed_also_with_256_colours(anchors: tuple[str, ...]) -> None:
    pixels = scales.ramp(anchors, np.linspace(0, 1, 33))
    drawn = [Color.from_rgb(*(float(c) for c in each)).downgrade(ColorSystem.EIGHT_BIT) for each in pixels]
    few = np.array([each.get_truecolor() for each in drawn])
    assert len({tuple(each) for each in few.tolist()}) >= 8
    for shown, unseen in ((pixels, 0.2), (few, 1)):  # a hundredth of the way from black to white is not seen
        steps = np.diff(lightness(shown / 255))
        assert (steps <= unseen).all() or (steps >= -unseen).all()


@pytest.mark.parametrize("eye", [DEUTAN, PROTAN])
def test_the_two_ends_of_the_signed_scale_differ_for_colour_blind_readers(eye: list[list[float]]) -> None:
    seen = [
        np.clip(np.array(eye) @ (np.array(scales.rgb(end)) / 255), 0, 1)
        for end in (scales.DIVERGING[0], scales.DIVERGING[-1])
    ]
    assert np.abs(seen[0] - seen[1]).max() > 0.4


def test_ink_contrasts_with_every_background() -> None:
    for background in scales.colours(Scale(-1, 1, True), np.linspace(-1, 1, 41)):
        ink = 0.0 if scales.ink_on(tuple(int(c) for c in background)) == "#000000" else 1.0
        luminance = float(luminances(background / 255))
        assert (max(luminance, ink) + 0.05) / (min(luminance, ink) + 0.05) >= 4.5


def test_one_scale_for_maps_side_by_side() -> None:
    first, second = samples.text(), samples.text("grad_sam", scores=np.array(samples.SCORES)[::-1] * 1e-3)
    view = side_by_side([first, second], shared=True)
    assert {m.scale for m in view.marks} == {view.legend}
    for panel, explanation in zip(view.panels, (first, second), strict=True):
        run = panel.marks[0]
        told = [p.score for p in run.pieces if p.score is not None]
        assert sum(told) == pytest.approx(1.0)  # shares of what is not special
        assert told == pytest.approx(list(explanation.scores[1:-1] * scales.share(explanation)))
        ranked = panel.marks[1]
        assert [b.score for b in ranked.bars] == pytest.approx(sorted(told)[::-1])
    one = samples.image()  # of one method: the scale of its scores
    both = side_by_side([one, samples.image(target=samples.Target(0, "horse"), scores=one.scores * 2)], shared=True)
    assert [m.scale.high for m in both.marks if isinstance(m, Heat)] == pytest.approx([2.0, 2.0])
    titles = ["logit of 'zebra' = 3.431", "logit of 'horse' = 3.431 (not the prediction)"]
    assert [p.title for p in both.panels] == titles
    for wrong, words in (([first, one], "one input"), ([], "at least one explanation")):
        with pytest.raises(BadInput, match=words):
            side_by_side(wrong)


def test_an_explanation_is_drawn_beside_others_as_it_is_drawn_alone() -> None:
    first, second = samples.text(), samples.text("occlusion", signed=True, scores=np.array(samples.SCORES)[::-1] * 1e-3)
    together = side_by_side([first, second])
    for panel, explanation in zip(together.panels, (first, second), strict=True):
        alone = view_of(explanation)
        assert panel.marks == (alone.panels[0].marks[0], alone.panels[1].marks[0]), "the same text, bars and numbers"
        assert alone.caption in together.caption or scales.OWN_SCALE in alone.caption
    assert scales.OWN_SCALE in together.caption and "cannot be compared between maps" in together.caption
    assert together.legend is None


def test_methods_without_a_sign_are_not_drawn_as_raising_the_value() -> None:
    bare, signed = samples.text("grad_sam"), samples.text("occlusion", signed=True)
    view = side_by_side([bare, signed, samples.text("raw_attention")], shared=True)
    by_panel = [{m.scale for m in p.marks} for p in view.panels]
    assert [len(s) for s in by_panel] == [1, 1, 1]
    assert by_panel[0] == by_panel[2] == {view.second_legend} and by_panel[1] == {view.legend}
    assert view.legend.signed and not view.second_legend.signed
    assert view.legend.high == view.second_legend.high  # shares can still be compared
    assert samples.still(view.to_html()).count('<div class="wf-legend') == 2
    assert side_by_side([bare, signed]).legends == ()
    alone = side_by_side([bare, samples.text("raw_attention")])
    assert alone.second_legend is None and "sign" not in alone.caption and "Blue" not in alone.caption


@pytest.mark.parametrize(("system", "coloured"), [("standard", False), ("256", True)])
def test_with_sixteen_colours_blocks_say_it(system: Any, coloured: bool) -> None:
    buffer = io.StringIO()
    Console(file=buffer, width=80, force_terminal=True, color_system=system).print(
        PageOnTerminal(view_of(samples.text())._page())
    )
    assert ("▃" in buffer.getvalue()) is not coloured and ("\x1b[38" in buffer.getvalue()) is coloured
