"""Lists and dicts of explanations are drawn as pages, and stay lists and dicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whyformer as wf
from tests.support.browser import ABSENT, Browser, browser_path
from tests.views import samples
from whyformer.errors import UnknownName
from whyformer.results.types import ByMethod, Explanation, Explanations
from whyformer.views import Page, View, view_of
from whyformer.views.several import MOST
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
    from tests.models import CASES

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


def test_methods_of_one_input_stand_side_by_side() -> None:
    both = ByMethod({m: samples.text(m) for m in ("generic_attention", "occlusion")})
    view = view_of(both)
    assert isinstance(view, View) and len(view.panels) == 2


def test_many_inputs_are_not_all_drawn_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    many = Explanations([samples.text()] * (MOST + 5))
    page = view_of(many)
    assert len(page.views) == MOST and f"the first {MOST} of {MOST + 5}" in page.lead[0]
    many.show()
    assert page.lead[0] in capsys.readouterr().out


def test_lists_within_lists_are_drawn_one_by_one() -> None:
    detections = Explanations([Explanations([samples.text(), samples.text()]), Explanations([samples.text()])])
    assert len(view_of(detections).views) == 3
    answers = ByMethod({"generic_attention": samples.generation(), "grad_sam": samples.generation(method="grad_sam")})
    assert len(view_of(answers).views) == 2


def test_pictures_are_saved_and_data_refused(tmp_path: Path) -> None:
    assert rows(2).save(tmp_path / "x.png").stat().st_size > 1000
    with pytest.raises(UnknownName, match=r"\.html, \.png"):
        rows(2).save(tmp_path / "x.json")


def test_rows_of_a_table_begin_with_all_of_them_together() -> None:
    page = view_of(rows())
    assert isinstance(page.views[0].explained, TableRows) and page.views[0].title == "30 rows together"
    sizes = np.abs([e.scores for e in rows()]).mean(0)
    bars = page.views[0].panels[0].marks[0].bars
    assert [b.score for b in bars] == pytest.approx(sorted(sizes, reverse=True))
    other = Explanations([*rows(2), samples.text()])
    assert not any(isinstance(view.explained, TableRows) for view in view_of(other).views)


def test_dots_of_rows_are_pointed_at(tmp_path: Path) -> None:
    if browser_path() is None:
        pytest.skip(ABSENT)
    many: Any = rows()
    with Browser(tmp_path / "browser") as browser:
        browser.open(many.save(tmp_path / "x.html"))
        strongest = int(np.abs([e.scores for e in many]).mean(0).argmax())
        score = float(many[0].scores[strongest])
        reach = float(np.abs([e.scores for e in many]).max())
        # The dot of row 0 on the first line: 170 px of labels, 760 px in all.
        across = 170 + (760 - 170 - 12) * (0.5 + score / reach / 2)
        box = browser.does(
            "(b => [b.left, b.top, b.width / 760])(document.querySelector('canvas').getBoundingClientRect())"
        )
        browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + across * box[2], y=box[1] + 17 * box[2])
        said = browser.does("document.querySelector('.wf-said-unit').textContent")
        label, value = many[0].units.labels[strongest], many[0].units.values[strongest]
        assert said.startswith(f"row 0 · {label} = {value}: ")
        assert browser.errors == []
