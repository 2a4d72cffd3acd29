"""Pictures of tables: columns with their values, limits, maps, and what attention does not see."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import whyformer as wf
from tests.tables.models import LAYOUTS, NUMBERS, rows, shared, table
from tests.views import samples
from whyformer import views
from whyformer.errors import BadInput
from whyformer.views import view_of
from whyformer.views.marks import Bars, Matrix
from whyformer.views.terminal.terminal_page import text

ROW = rows(1)[0]


def test_bars_have_names_and_values() -> None:
    found = wf.explain(shared("rtdl"), ROW, processor=table())
    shown = text(views.view_of(found)._page(), 100)
    assert f"work = {ROW['work']}" in shown and f"age = {ROW['age']:.6g}" in shown and "strongest scores" in shown
    assert f"work = {ROW['work']}" in found.to_html()
    assert found.units.labels[4] == "work"  # the explanation itself keeps plain names


def test_columns_that_attention_does_not_see_are_named() -> None:
    found = wf.explain(shared("lucidrains_tab"), ROW, processor=table())
    for shown in (text(views.view_of(found)._page()), samples.still(found.to_html())):
        assert "not explained by attention" in shown and ", ".join(NUMBERS) in shown
        assert "age = " not in shown


def test_methods_side_by_side() -> None:
    methods = ["raw_attention", "generic_attention"]
    found = wf.explain(shared("rtdl"), ROW, processor=table(), method=methods)
    shown = samples.still(views.side_by_side(found).to_html())
    assert shown.count(f">work = {ROW['work']}<") == 2  # bars in the order of the columns, no ranked list besides
    three = wf.explain(shared("rtdl"), ROW, processor=table(), method=[*methods, "occlusion"])
    assert f"work = {ROW['work']}" in views.side_by_side(three).to_html()


def test_limits_are_drawn() -> None:
    overall = wf.explain_global(shared("rtdl"), rows(20), processor=table(), method="occlusion", target=1)
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


def test_shap_gets_names_and_values() -> None:
    found = wf.explain(shared("rtdl"), rows(3), processor=table(), method="occlusion")
    made = wf.to_shap(found)
    assert list(made.feature_names) == list(found[0].units.labels)
    assert made.data[0, 1] == pytest.approx(float(f"{ROW['age']:.6g}")) and made.data[0, 4] == ROW["work"]
    assert found[0].to_shap().data[4] == ROW["work"]


def test_maps_between_columns(tmp_path: Path) -> None:
    model = LAYOUTS["cls_first"].build()
    found = wf.explain(model, ROW, processor=table(), method="raw_attention", layers=0)
    view = views.table_map(found)
    mark = view.panels[0].marks[0]
    assert isinstance(mark, Matrix)
    np.testing.assert_allclose(mark.values, found.matrix)
    assert mark.row_labels[4] == f"work = {ROW['work']}" and mark.column_labels[4] == "work"
    assert view.save(tmp_path / "x.png").stat().st_size > 1000
    last = views.table_map(wf.explain(shared("rtdl"), ROW, processor=table(), method="raw_attention"))
    one_row = last.panels[0].marks[0]
    assert isinstance(one_row, Matrix) and one_row.values.shape == (1, 6)
    with pytest.raises(BadInput, match="returned no map"):
        views.table_map(wf.explain(model, ROW, processor=table(), method="occlusion"))
    overall = wf.explain_global(model, rows(30), processor=table(), method="raw_attention", layers=0)
    kinds = [m for p in view_of(overall).panels for m in p.marks if isinstance(m, Matrix)]
    assert [m.values.shape for m in kinds] == [(6, 6), (24, 5)]
    assert kinds[1].column_labels == tuple(name for name, _ in overall.ranked())


def test_a_column_that_holds_the_typical_value_is_said_to_be_untried() -> None:
    scores = np.array([0.4, 0.0, 0.1], np.float32)
    found = samples.table(scores=scores, options={"replace": "mean"})
    told = "Exactly 0 (income): the row holds what stands for an absent value there (mean)"
    assert told in views.view_of(found).caption
    assert "Exactly 0" not in views.view_of(samples.table(scores=scores)).caption  # nothing was replaced
    assert "Exactly 0" not in views.view_of(samples.table(options={"replace": "mean"})).caption
