"""The page of a report in a real browser: badges, the evidence behind them, what is taken away; findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.browser import Browser
from tests.views import samples
from tests.views.conftest import opened
from tests.views.results import check_up, report
from whyformer.checks.checkup import Finding

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
    assert away(browser) == [] and browser.errors == []


def test_patches_are_taken_away_from_the_picture(browser: Browser, tmp_path: Path) -> None:
    shown = report((samples.image("grad_sam"), samples.image("raw_attention")))
    opened(browser, shown, tmp_path)
    browser.point("button.wf-badge", click=True)
    take_away(browser, 2)
    pixels = "document.querySelector('.wf-gone').getContext('2d').getImageData(0, 0, 4, 3).data"
    ink = f"[...{pixels}].filter((_, i) => i % 4 === 3)"
    assert [i for i, alpha in enumerate(browser.does(ink)) if alpha] == [10, 11]  # the last two have the highest scores
    assert browser.errors == []


def test_a_map_that_nobody_measured_has_no_badge_and_says_how_to_get_one(browser: Browser, tmp_path: Path) -> None:
    opened(browser, samples.text(), tmp_path)
    assert browser.does("document.querySelectorAll('.wf-badge').length") == 0
    assert "wf.report(model, inputs" in browser.does("document.querySelector('.wf-unmeasured').textContent")
    opened(browser, report(), tmp_path)
    assert browser.does("document.querySelector('.wf-unmeasured')") is None
    assert browser.does("document.querySelectorAll('p.wf-badge').length") == 2  # the row: a standing, and no curve


@pytest.mark.parametrize("dark", [False, True])
def test_it_opens_narrow_with_the_prediction_first(browser: Browser, tmp_path: Path, dark: bool) -> None:
    opened(browser, report(), tmp_path, dark=dark, width=420)
    first = browser.does("document.querySelector('.wf-view').textContent.replace(/\\s+/g, ' ').trim()")
    assert first.startswith("What the model said") and "positive95.0 %negative (5.0 %)" in first
    assert browser.does("document.documentElement.scrollWidth") <= 420
    assert browser.errors == []


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
    assert browser.does("document.title") != "hit" and browser.errors == []
