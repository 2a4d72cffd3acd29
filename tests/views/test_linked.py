"""Pages in a browser: maps that are pointed at, heads that are chosen, rows, and the evidence of a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.support.browser import Browser
from tests.views import samples
from tests.views.conftest import opened
from tests.views.results import check_up, report
from tests.views.test_page import chosen
from tests.views.test_several import rows
from whyformer.checks.exam import Finding
from whyformer.results.types import Explanation, Record, Site
from whyformer.views import heads_grid

SAID_UNIT = "document.querySelector('.wf-said-unit').textContent"


def over(browser: Browser, row: float, column: float, size: int, selector: str = "canvas.wf-matrix") -> None:
    """The mouse over a cell of a map without labels."""
    x, y = browser.does(
        f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect(); return "
        f"[b.left + b.width * {(column + 0.5) / size}, b.top + b.height * {(row + 0.5) / size}]; }})"
        f"(document.querySelector('{selector}'))"
    )
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)


def test_a_row_of_the_map_is_linked_to_text_and_bars(browser: Browser, tmp_path: Path) -> None:
    opened(browser, samples.long_text(60), tmp_path)
    over(browser, 30, 5, 60)
    assert chosen(browser)[0] == "w30" and browser.does(SAID_UNIT).startswith("w30 · ")
    browser.point("h2")
    assert chosen(browser) == []
    browser.does("document.querySelector('canvas.wf-matrix').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "ArrowDown"):
        browser.press(key)
    assert chosen(browser)[0] == "w1"
    assert browser.does("document.querySelector('.wf-row-of h3').textContent") == "row of w1"
    browser.press("Escape")
    assert chosen(browser) == []


def record(size: int = 70) -> Record:
    """Two sites; in each the first head looks at itself, the second at the word before."""
    heads = torch.stack([torch.eye(size), torch.eye(size).roll(-1, 1)])
    sites = [Site(f"layer.{i}", "self", ("text", "text"), heads[None] * (0.5 + 0.5 * i)) for i in range(2)]
    return Record(tuple(sites), torch.zeros(1, 2))


def test_heads_are_chosen_and_their_words_coloured(browser: Browser, tmp_path: Path) -> None:
    labels = [f"t{i}" for i in range(70)]
    opened(browser, heads_grid(record(), labels=labels), tmp_path)
    assert browser.does("document.querySelectorAll('.wf-head').length") == 4
    assert browser.does("[...document.querySelectorAll('.wf-still')].every(e => e.hidden)")
    title = "document.querySelector('.wf-head-large h3').textContent"
    assert browser.does(title) == "layer 0, head 0"
    browser.point(".wf-token[data-units='40']")
    assert browser.does(SAID_UNIT) == "t40 looks most at t40 (0.500)"
    browser.does("document.querySelector('.wf-head').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowDown")
    assert browser.does(title) == "layer 1, head 1"
    assert browser.does("document.activeElement.getAttribute('aria-label')") == "layer 1, head 1"
    browser.point(".wf-token[data-units='40']", click=True)
    assert browser.does(SAID_UNIT) == "t40 looks most at t39 (1.00)"
    strongest = "getComputedStyle(document.querySelector(\".wf-token[data-units='39']\")).backgroundColor"
    assert browser.does(strongest) == "rgb(33, 102, 172)"
    assert browser.does("document.querySelector('.wf-row-of .wf-label').textContent") == "t39"


def test_heads_without_labels_and_with_fewer_queries(browser: Browser, tmp_path: Path) -> None:
    few = replace(record().sites[0], attention_BHQK=torch.rand(1, 3, 1, 70))
    opened(browser, heads_grid(replace(record(), sites=(few,))), tmp_path, width=420, dark=True)
    assert browser.does("document.querySelectorAll('.wf-head').length") == 3
    assert browser.does("document.documentElement.scrollWidth") <= 420


def untouched() -> Explanation:
    return samples.table().replace(
        scores=np.array([0.5, 0.0, -0.2], np.float32), options={"replace": "mean"}, base=0.1, value=0.4, signed=True
    )


def test_columns_that_hold_the_typical_value_have_no_zero(browser: Browser, tmp_path: Path) -> None:
    opened(browser, untouched(), tmp_path)
    lines = browser.does(
        "[...document.querySelector('.wf-lines').children].map(l => [l.querySelector('.wf-label').textContent, "
        "l.querySelector('.wf-number').textContent])"
    )
    assert [number for _, number in lines] == ["0.500", "-0.200", "typical"]
    name = untouched().units.labels[1]
    steps = browser.does("[...document.querySelectorAll('.wf-waterfall .wf-label')].map(e => e.textContent)")
    assert lines[2][0].startswith(name) and not any(step.startswith(name) for step in steps)
    assert samples.still(untouched().to_html()).count("typical: not tried out") == 1


def test_many_rows_are_a_line_each_until_they_are_wanted(browser: Browser, tmp_path: Path) -> None:
    many: Any = rows(12)
    opened(browser, many, tmp_path)
    views = (
        "[...document.querySelectorAll('.wf-view')].map(v => v.querySelectorAll('.wf-live-view, canvas').length > 0)"
    )
    assert browser.does(views) == [True] * 4 + [False] * 9  # all together, three rows, and nine that are folded
    assert browser.does("document.querySelectorAll('.wf-folded')[5].clientHeight") < 80
    browser.does("document.querySelector('canvas').focus()")
    for _ in range(10):
        browser.press("ArrowRight")
    browser.press("Enter")  # goes to row 9, and opens it
    row = "document.querySelectorAll('.wf-view')[10]"
    assert browser.does(f"{row}.querySelectorAll('.wf-live-view .wf-line').length") > 2
    assert browser.does(f"{row}.querySelector('h2 button').getAttribute('aria-expanded')") == "true"
    browser.does(f"{row}.querySelector('h2 button').click()")
    assert browser.does(f"{row}.clientHeight") < 80
    browser.does("document.querySelector('.wf-theme').click()")
    opened(browser, many, tmp_path, scripts=False)
    browser.ask("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.does("document.querySelectorAll('.wf-folded').length") == 0  # all is there without scripts


def test_a_dot_leads_to_its_row(browser: Browser, tmp_path: Path) -> None:
    many: Any = rows(6)
    opened(browser, many, tmp_path)
    titles = browser.does("[...document.querySelectorAll('.wf-view > h2')].map(e => e.textContent)")
    assert [title.split(":")[0] for title in titles[1:]] == [f"row {i}" for i in range(6)]
    browser.does("document.querySelector('canvas').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown"):
        browser.press(key)
    order = np.argsort(-np.abs([e.scores for e in many]).mean(0))
    label, value = many[2].units.labels[order[1]], many[2].units.values[order[1]]
    assert browser.does(SAID_UNIT).startswith(f"row 2 · {label} = {value}: ")
    browser.press("Enter")
    top = "document.querySelectorAll('.wf-view > h2')[3].getBoundingClientRect().top"
    assert -5 <= browser.does(f"new Promise(r => setTimeout(() => r({top}), 1500))") <= 500


NASTY = "<img src=x onerror=document.title='hit'>"


def take_away(browser: Browser, count: int) -> None:
    slide = (
        "(i => { i.value = %d; i.dispatchEvent(new Event('input')); })(document.querySelector('.wf-evidence input'))"
    )
    browser.does(slide % count)


def away(browser: Browser) -> list[str]:
    return list(browser.does("[...document.querySelectorAll('.wf-run .wf-away')].map(e => e.textContent)"))


def test_a_badge_opens_its_evidence_and_the_slider_blanks_the_highest_units(browser: Browser, tmp_path: Path) -> None:
    opened(browser, report(), tmp_path)
    badges = browser.does("[...document.querySelectorAll('button.wf-badge')].map(b => b.textContent)")
    assert badges == ["✓1st of 2 on 2 texts, beats random", "?2nd of 2 on 2 texts, too few to tell it from random"]
    assert browser.does("document.querySelector('.wf-evidence').hidden")
    browser.point("button.wf-badge", click=True)
    assert browser.does("document.querySelector('.wf-badge').getAttribute('aria-expanded')") == "true"
    assert "below that of 19 of 20 random orders" in browser.does("document.querySelector('.wf-evidence').textContent")
    told = "document.querySelector('.wf-told').textContent"
    assert browser.does(told).startswith("probability of the target: 0.950.")
    take_away(browser, 2)
    assert away(browser) == ["not", "believable"]  # of this map alone
    assert browser.does(told) == (
        "Without the top 2: probability of the target 0.790, was 0.950. As many at random: 0.870 (0.860 to 0.880)."
    )
    assert browser.does("document.querySelector('.wf-evidence input').getAttribute('aria-valuetext')").startswith(
        "2 of"
    )
    browser.does("[...document.querySelectorAll('.wf-tools button')].find(b => b.textContent === 'words').click()")
    assert away(browser) == ["not"]  # drawn anew: a word is away when all of its pieces are
    take_away(browser, 3)
    assert away(browser) == ["not", "unbelievable"]
    browser.point("button.wf-badge", click=True)
    assert away(browser) == []


def test_patches_are_taken_away_from_the_picture(browser: Browser, tmp_path: Path) -> None:
    shown = report((samples.image("grad_sam"), samples.image("raw_attention")))
    opened(browser, shown, tmp_path)
    browser.point("button.wf-badge", click=True)
    take_away(browser, 2)
    pixels = "document.querySelector('.wf-gone').getContext('2d').getImageData(0, 0, 4, 3).data"
    ink = f"[...{pixels}].filter((_, i) => i % 4 === 3)"
    assert [i for i, alpha in enumerate(browser.does(ink)) if alpha] == [10, 11]  # the last two have the highest scores


def test_a_map_that_nobody_measured_has_no_badge_and_says_how_to_get_one(browser: Browser, tmp_path: Path) -> None:
    opened(browser, samples.text(), tmp_path)
    assert browser.does("document.querySelectorAll('.wf-badge').length") == 0
    assert "wf.report(model, inputs" in browser.does("document.querySelector('.wf-unmeasured').textContent")
    opened(browser, report(), tmp_path)
    assert browser.does("document.querySelector('.wf-unmeasured')") is None
    assert browser.does("document.querySelectorAll('p.wf-badge').length") == 2  # the row: a standing, and no curve


def test_it_opens_narrow_with_the_prediction_first(browser: Browser, tmp_path: Path) -> None:
    opened(browser, report(), tmp_path, dark=True, width=420)
    first = browser.does("document.querySelector('.wf-view').textContent.replace(/\\s+/g, ' ').trim()")
    assert first.startswith("What the model said") and "positive95.0 %negative (5.0 %)" in first
    assert browser.does("document.documentElement.scrollWidth") <= 420


def test_still_pages_have_the_curve_and_the_standing() -> None:
    page = samples.still(report().to_html())
    assert "1st of 2 on 2 texts, beats random" in page and "random orders" in page
    assert "When it misleads".lower() in page.lower() and "reads the features of an image" in page
    text = report().view()
    text.plot()  # pictures, too


def test_findings_are_cards_whose_rest_unfolds(browser: Browser, tmp_path: Path) -> None:
    long = Finding("warning", "sinks", "Sinks", f"Much of it goes to [SEP]. Read the rest among itself. {NASTY}")
    opened(browser, replace(check_up(), findings=(long, *check_up().findings)), tmp_path)
    card = "document.querySelector('.wf-findings.wf-warning details')"
    assert browser.does(f"{card}.querySelector('summary').textContent") == "Sinks Much of it goes to [SEP]."
    assert not browser.does(f"{card}.open")
    browser.point(".wf-findings summary", click=True)
    assert browser.does(f"{card}.open")
    assert browser.does(f"{card}.querySelector('p').textContent").endswith(NASTY)
    assert browser.does("document.querySelector('.wf-findings.wf-ok').closest('details').open") is False
    assert browser.does("document.title") != "hit"
