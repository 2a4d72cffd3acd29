"""Lists and dicts of explanations, rows of tables, and several streams, as pages."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whyformer as wf
from tests.models import CASES
from tests.support.processors import tokenizer
from tests.tables.models import LAYOUTS, NUMBERS, shared, table
from tests.tables.models import rows as table_rows
from tests.views import samples
from whyformer import views
from whyformer.errors import BadInput, UnknownName
from whyformer.results.types import ByMethod, Explanation, Explanations, Target, Units
from whyformer.views import Page, View, side_by_side, view_of
from whyformer.views.image_marks import boxes_drawn
from whyformer.views.marks import Bars, Matrix, Picture
from whyformer.views.report_view import _drawn
from whyformer.views.scales import scale_of
from whyformer.views.several import MOST, steps_view
from whyformer.views.terminal.terminal_page import text
from whyformer.views.view import TableRows


def rows(count: int = 30) -> Explanations:
    numbers = np.random.default_rng(0)
    one = samples.table()
    return Explanations(
        one.replace(
            scores=numbers.normal(size=3).astype(np.float32),
            units=replace(one.units, values=(str(i), f"{i / 7:.3f}", "Oslo")),
        )
        for i in range(count)
    )


def test_what_explain_returns_is_a_list_or_dict_that_is_drawn() -> None:
    case = CASES["bert"]
    model, inputs = case.build("sdpa"), case.inputs()
    several = wf.explain(model, inputs)
    assert isinstance(several, list) and several == list(several) and isinstance(several[0], Explanation)
    assert several._repr_html_().count("wf-data") == several.to_html().count("wf-data") >= len(several)
    by_method = wf.explain(model, inputs, method=["generic_attention", "grad_sam"])
    assert isinstance(by_method, dict) and list(by_method) == ["generic_attention", "grad_sam"]
    drawn = view_of(by_method)
    assert isinstance(drawn, Page) and len(drawn.views) == len(several)
    assert [panel.title for panel in drawn.views[0].panels] == ["generic_attention", "grad_sam"]


def test_many_inputs_are_not_all_drawn_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = Explanations([samples.text()] * (MOST + 5))
    page = view_of(many)
    assert len(page.views) == MOST and f"The first {MOST} of {MOST + 5}" in page.lead[0]
    many.show()
    assert page.lead[0] in capsys.readouterr().out
    with pytest.raises(UnknownName, match=r"\.html, \.png"):  # pictures alone
        many.save(tmp_path / "x.json")


def test_lists_within_lists_are_drawn_one_by_one() -> None:
    detections = Explanations([Explanations([samples.text(), samples.text()]), Explanations([samples.text()])])
    assert len(view_of(detections).views) == 3 and isinstance(detections[:1], Explanations)
    answers = ByMethod({"generic_attention": samples.generation(), "grad_sam": samples.generation(method="grad_sam")})
    assert len(view_of(answers).views) == 2
    both = view_of(ByMethod({m: samples.text(m) for m in ("generic_attention", "occlusion")}))  # of one input
    assert isinstance(both, View) and len(both.panels) == 2


def test_rows_of_a_table_begin_with_all_of_them_together() -> None:
    page = view_of(rows())
    assert isinstance(page.views[0].explained, TableRows) and page.views[0].title == "All 30 rows"
    sizes = np.abs([e.scores for e in rows()]).mean(0)
    bars = page.views[0].panels[0].marks[0].bars
    assert [b.score for b in bars] == pytest.approx(sorted(sizes, reverse=True))
    other = Explanations([*rows(2), samples.text()])
    assert not any(isinstance(view.explained, TableRows) for view in view_of(other).views)


ROW = table_rows(1)[0]


def test_bars_have_names_and_values_and_columns_that_attention_does_not_see_are_named() -> None:
    found = wf.explain(shared("rtdl"), ROW, processor=table())
    shown = text(views.view_of(found)._page(), 100)
    assert f"work = {ROW['work']}" in shown and f"age = {ROW['age']:.6g}" in shown and "to this row" in shown
    assert f"work = {ROW['work']}" in found.to_html()
    assert found.units.labels[4] == "work"  # the explanation itself keeps plain names
    data = found.to_shap().data
    assert data[1] == pytest.approx(float(f"{ROW['age']:.6g}")) and data[4] == ROW["work"]
    found = wf.explain(shared("lucidrains_tab"), ROW, processor=table(), method="raw_attention")
    for shown in (text(views.view_of(found)._page()), samples.still(found.to_html())):
        assert "columns outside attention" in shown and ", ".join(NUMBERS) in shown and "age = " not in shown


def test_limits_are_drawn() -> None:
    overall = wf.explain_global(shared("rtdl"), table_rows(20), processor=table(), method="occlusion", target=1)
    view = view_of(overall)
    bars = [m for p in view.panels for m in p.marks if isinstance(m, Bars)]
    assert len(bars) == 2  # mean size and mean, for signed scores
    first = bars[0].bars[0]
    best = overall.ranked()[0]
    assert (first.label, first.score) == (best[0], pytest.approx(best[1]))
    at = overall.labels.index(first.label)
    assert first.low == pytest.approx(overall.size_low[at]) and first.high == pytest.approx(overall.size_high[at])
    assert bars[0].scale.low == 0  # a size is not negative, whatever its limits
    assert overall.to_html().count("wf-limits") == 12
    assert re.search(rf"{first.label} +0\.\d+ ± 0\.\d+", text(view._page()))


def test_maps_between_columns(tmp_path: Path) -> None:
    model = LAYOUTS["cls_first"].build()
    found = wf.explain(model, ROW, processor=table(), method="raw_attention", layers=0)
    view = views.table_map(found)
    mark = view.panels[0].marks[0]
    np.testing.assert_allclose(mark.values, found.matrix)
    assert mark.row_labels[4] == f"work = {ROW['work']}" and mark.column_labels[4] == "work"
    assert view.save(tmp_path / "x.png").stat().st_size > 1000
    last = views.table_map(wf.explain(shared("rtdl"), ROW, processor=table(), method="raw_attention"))
    one_row = last.panels[0].marks[0]
    assert one_row.values.shape == (1, 6)
    with pytest.raises(BadInput, match="returned no map"):
        views.table_map(wf.explain(model, ROW, processor=table(), method="occlusion"))
    overall = wf.explain_global(model, table_rows(30), processor=table(), method="raw_attention", layers=0)
    kinds = [m for p in view_of(overall).panels for m in p.marks if isinstance(m, Matrix)]
    assert [m.values.shape for m in kinds] == [(6, 6), (24, 5)]
    assert kinds[1].column_labels == tuple(name for name, _ in overall.ranked())


def test_a_column_that_holds_the_typical_value_is_said_to_be_untried() -> None:
    scores = np.array([0.4, 0.0, 0.1], np.float32)
    found = samples.table(scores=scores, options={"replace": "mean"})
    told = "No effect (equal to the baseline, mean, or not used by the model): income."
    assert told in views.view_of(found).caption
    assert "No effect" not in views.view_of(samples.table(scores=scores)).caption  # nothing was replaced
    assert "No effect" not in views.view_of(samples.table(options={"replace": "mean"})).caption


@cache
def steps_of_t5() -> Any:
    return wf.explain(CASES["t5"].build("sdpa"), ("what is this", "a cat on the mat"), processor=tokenizer())


@cache
def of_boxes() -> Explanation:
    return wf.explain(CASES["lxmert"].build("eager"), CASES["lxmert"].inputs(), target=1)[0]


def test_boxes_are_coloured_by_their_score_and_the_strongest_is_on_top() -> None:
    scores = np.array([0.1, 1.0, 0.0], np.float32)
    boxes = [(0.0, 0.0, 0.5, 0.5), (0.0, 0.0, 0.5, 0.5), (0.6, 0.6, 0.9, 0.9)]
    drawn = boxes_drawn(np.full((60, 60, 3), 255, np.uint8), boxes, scores, scale_of([scores]))
    alone = boxes_drawn(np.full((60, 60, 3), 255, np.uint8), boxes[1:2], scores[1:2], scale_of([scores]))
    assert (drawn[0, 0] == alone[0, 0]).all()
    assert (drawn[15, 15] == 255).all()  # frames, not areas: the image stays visible
    assert np.abs(drawn[36, 45].astype(int) - 255).sum() < np.abs(drawn[0, 0].astype(int) - 255).sum()


def test_a_picture_is_drawn_wherever_it_is_given(tmp_path: Path) -> None:
    """Under boxes as well as under patches; where nothing could be drawn over it, it is refused."""
    explanation = of_boxes()
    image = np.random.default_rng(0).integers(0, 255, (48, 64, 3)).astype(np.uint8)
    for view in (view_of(explanation, image=image), side_by_side([explanation], image=image)):
        pictures = [m.image for panel in view.panels for m in panel.marks if isinstance(m, Picture)]
        assert any(p.shape == image.shape and (p != image).any() for p in pictures), "boxes over the picture"
        assert "box 3" in view.to_html()
    again = wf.load(explanation.save(tmp_path / "lxmert.json"))
    assert again.units == explanation.units and again.matrix["text", "image"].shape == (10, 6)
    plain = Explanation(np.ones(1), Units(("a",), (False,), ("text",)), Target(0), "logit", 1.0, Target(0), "random")
    with pytest.raises(BadInput, match="omit it"):
        view_of(plain, image=image)


def test_one_written_token_shows_both_texts() -> None:
    step = steps_of_t5()[3]
    for by in ("token", "word"):
        panels = {p.title: p for p in view_of(step, by=by).panels}
        written = "".join(piece.text for piece in panels["target"].marks[0].pieces)
        assert written.endswith("a cat on") and "what" not in written
        assert "".join(piece.text for piece in panels["source"].marks[0].pieces) == "what is this"
        assert {"a", "cat"} <= {b.label for b in panels["highest scores"].marks[0].bars}
    assert [word for word, _ in step.words()] == ["what", "is", "this", "a", "cat", "on"]
    runs = ["".join(piece.text for piece in mark.pieces) for mark in _drawn(step, scale_of([step.scores]))]
    assert runs == ["what is this", "a cat on"]  # in a check-up


def test_the_position_that_is_read_leaves_colours_to_the_others() -> None:
    step = steps_of_t5()[3]
    view = view_of(step)
    others = [s for s, special in zip(step.scores[:-1], step.units.special[:-1], strict=True) if not special]
    assert step.scores[-1] > 1 > view.legend.high == pytest.approx(max(others))
    assert "'on', where the output is read, received" in view.panels[-1].marks[0].folded
    both = side_by_side([step, step.replace(method="other")], shared=True)
    assert both.legend.high == pytest.approx(max(others) / sum(others))
    even = view_of(step.replace(scores=np.linspace(0.22, 0.2, len(step.units), dtype=np.float32)))
    assert "where the output is read" not in even.panels[-1].marks[0].folded
    signed = view_of(step.replace(signed=True))  # there it has a meaning of its own
    assert signed.legend.high == step.scores[-1] and "where the output is read" not in signed.panels[-1].marks[0].folded


def test_source_by_target() -> None:
    steps = steps_of_t5()
    view = steps_view(steps)
    source, prefix = (panel.marks[0] for panel in view.panels)
    assert source.values.shape == (6, 4) and prefix.values.shape == (6, 6)
    assert source.row_labels == ("a", "cat", "on", "the", "mat", "[EOS]")
    np.testing.assert_array_equal(source.values[2], steps[2].scores[:4])
    assert (np.triu(prefix.values, 1) == 0).all()  # a token is written from what stands before it
    own = np.diag(prefix.values)
    np.testing.assert_array_equal(own, [s.scores[-1] for s in steps])  # shown, though it does not stretch the scale
    below = prefix.values[np.tril_indices(6, -1)]
    assert source.scale == prefix.scale == view.legend
    assert view.legend.high == pytest.approx(max(source.values.max(), below.max())) and own.min() > view.legend.high
    assert "left out of the scale" in view.caption
    assert "leaves" not in steps_view([s.replace(signed=True) for s in steps]).caption
    assert {f.name: f.value for f in view.facts}["output position"] == "target: last position"
    assert "cat" in view.to_html()
    with pytest.raises(BadInput, match="encoder-decoder"):
        steps_view([])
