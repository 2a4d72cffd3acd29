"""What readers need on a page: legends, the input image, room for sentences, few colours, words for what is empty."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.browser import Browser
from tests.views import samples
from tests.views.conftest import opened
from tests.views.results import STORED, comparison, report
from tests.views.test_page import SAID, explanation
from whyformer.language.citations import Citations
from whyformer.results.types import Choice, Target
from whyformer.views import relevance_map, side_by_side
from whyformer.views.comparison_view import COLOURED, curves_view
from whyformer.views.marks import Lines, Matrix, Scale
from whyformer.views.scales import FAINT, MISSING, colours, styles
from whyformer.views.terminal.terminal_page import text

METHODS = ("generic_attention", "integrated_gradients", "attention_x_gradient", "occlusion")


@pytest.mark.parametrize("width", [420, 1200])
def test_a_hovered_token_stays_under_the_mouse(width: int, browser: Browser, tmp_path: Path) -> None:
    opened(browser, side_by_side([samples.text(name) for name in METHODS]), tmp_path, width=width)
    top = "document.querySelector(\".wf-token[data-units='9']\").getBoundingClientRect().top + scrollY"
    before = browser.does(f"new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r({top}))))")
    for unit in (9, 3):
        browser.point(f".wf-token[data-units='{unit}']")
        assert browser.text(".wf-said-unit").count("·") == 4
        assert browser.does(top) == before


def test_every_card_has_a_legend_with_its_meaning(browser: Browser, tmp_path: Path) -> None:
    both = [samples.text("occlusion", signed=True), samples.text()]
    opened(browser, side_by_side(both), tmp_path)
    signed, unsigned = browser.texts(".wf-card .wf-legend")
    assert "orange lowers, blue raises the logit of 'positive'" in signed and "… 0 …" in signed
    assert unsigned.endswith("score (stronger colour: higher score)")
    still = samples.still(side_by_side(both).to_html())
    assert still.count('class="wf-legend"') == 2 and still.count("(orange: below 0, blue: above 0)") == 1


def test_the_input_image_is_beside_its_scores(browser: Browser, tmp_path: Path) -> None:
    image = samples.picture()
    opened(browser, samples.image(), tmp_path, image=image)
    assert browser.texts(".wf-titled figcaption") == ["Input image", "Scores per patch"]
    edges = "[...document.querySelectorAll('.wf-titled')].map(e => e.getBoundingClientRect().top)"
    assert len(set(browser.does(edges))) == 1
    opened(browser, side_by_side([samples.image(), samples.image("occlusion", signed=True)], image=image), tmp_path)
    assert browser.texts(".wf-card h3") == ["Input image", "generic_attention", "occlusion"]


def test_a_diagonal_beyond_the_scale_is_grey_and_its_number_is_told(browser: Browser, tmp_path: Path) -> None:
    values = np.full((12, 12), 0.2, np.float32) + np.eye(12, dtype=np.float32)
    matrix = Matrix(values, Scale(0.0, 0.5))
    drawn = colours(matrix.scale, matrix.coloured())
    assert (drawn[np.eye(12, dtype=bool)] == MISSING).all() and (drawn[0, 1] != MISSING).any()
    assert not np.isnan(Matrix(values, Scale(0.0, 2.0)).coloured()).any()  # on the scale: coloured as all others
    shown = samples.text(prediction=SAID, matrix=values)
    assert "Token-to-token relevance" in text(relevance_map(shown)._page(), 100)
    opened(browser, shown, tmp_path)
    legend = browser.texts(".wf-canvas .wf-legend")[0]
    assert "0 … 0.2" in legend and "grey: relevance to itself, beyond the scale (up to 1.20)" in legend
    assert "Token-to-token relevance" in browser.texts("details.wf-part > summary")


def test_long_class_names_break_and_wide_tables_show_that_they_go_on(browser: Browser, tmp_path: Path) -> None:
    long = "Chesapeake Bay retriever, " * 4 + "x" * 60
    said = Target(1, long, probability=0.7, next=(Choice(0, "other", 0.3),))
    opened(browser, samples.text(prediction=said, target=said), tmp_path, width=420)
    whole = "(e => e.scrollWidth <= e.clientWidth)(document.querySelector('.wf-first .wf-label'))"
    assert browser.text(".wf-first .wf-label") == long and browser.does(whole)
    assert browser.does("document.documentElement.scrollWidth") <= 420
    opened(browser, comparison(), tmp_path, width=420)
    fade = "getComputedStyle(document.querySelector('.wf-scroll')).getPropertyValue('--wf-cut')"
    assert browser.does(fade) == "48px"
    browser.does("(e => { e.scrollLeft = e.scrollWidth; })(document.querySelector('.wf-scroll'))")
    assert browser.does(f"new Promise(r => requestAnimationFrame(() => setTimeout(() => r({fade}), 50)))") == "0px"
    opened(browser, comparison(), tmp_path, width=1300)
    assert browser.does(fade) == "0px"


def many(count: int) -> Any:
    """A comparison of many methods."""
    made = comparison()
    row = next(row for row in made.rows if not row.baseline)
    rows = [replace(row, name=f"method{i}") for i in range(count)]
    curves = {kind: each | {r.name: each[row.name] for r in rows} for kind, each in made.curves.items()}
    return replace(made, rows=(*rows, *(r for r in made.rows if r.baseline)), curves=curves)


def test_at_most_eight_curves_have_a_colour_or_a_name() -> None:
    (view,) = curves_view(many(12), shown=["method9"])
    (lines,) = [mark for mark in view.panels[0].marks if isinstance(mark, Lines)]
    named = [line.name for line in lines.lines if not line.faint and not line.quiet]
    assert len(named) == COLOURED and named[0] == "method0" and "method9" in named
    assert sum(ink != FAINT for ink, _ in styles(lines.lines)) <= 8
    assert "the other 6 methods" in view.caption
    page = view.to_html()
    assert ">method9</title>" in page and "</svg> method9</span>" in page and "</svg> method8</span>" not in page
    assert "method8" not in text(view._page(), 100) and view.plot() is not None


def test_a_report_opens_with_its_verdict_and_folded_inputs(browser: Browser, tmp_path: Path) -> None:
    opened(browser, report(), tmp_path)
    titles = browser.texts(".wf-view > h2")
    assert titles[:2] == ["Predictions", "Faithfulness of the methods"]
    folded = "[...document.querySelectorAll('.wf-view')].map(v => v.classList.contains('wf-folded'))"
    assert browser.does(folded) == [False] * 2 + [True] * (len(titles) - 2)
    assert browser.does("document.querySelector('main > p.wf-words').getBoundingClientRect().top") < 200
    opened(browser, report(), tmp_path, scripts=False)
    assert not browser.texts(".wf-folded")  # without scripts nothing is hidden


def test_citations_without_support_say_so() -> None:
    cited = Citations.load(STORED / "Citations.json")
    assert "No source supports" not in cited.to_html()
    unsupported = replace(cited, drops=np.zeros_like(cited.drops))
    page = text(unsupported.view()._page(), 200)
    assert "No source supports the answer" in page and "drop ↑" not in page


def test_controls_are_above_what_they_change(browser: Browser, tmp_path: Path) -> None:
    for shown in (explanation(), side_by_side([samples.text(), samples.text("occlusion")])):
        opened(browser, shown, tmp_path)
        order = browser.does("[...document.querySelector('.wf-live-view').children].map(e => e.className)")
        assert order.index("wf-tools") < next(i for i, name in enumerate(order) if "wf-maps" in name)
        assert len(re.findall("wf-tools", " ".join(order))) == 1
