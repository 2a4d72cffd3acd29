"""Pages in a browser: maps that are pointed at, heads that are chosen, rows, and the evidence of a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.support.browser import Browser
from tests.views import samples
from tests.views.conftest import chosen, opened
from tests.views.results import check_up, report
from tests.views.test_page import click, slide
from tests.views.test_several import rows
from whyformer.checks.exam import Finding
from whyformer.results.types import AttentionMaps, Record, Site, SiteMap
from whyformer.views import attention_map, heads_grid


def over(browser: Browser, selector: str, across: float, down: float) -> None:
    """The mouse over a place of a canvas, as shares of its width and height."""
    x, y = browser.does(
        f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect(); return "
        f"[b.left + b.width * {across}, b.top + b.height * {down}]; }})(document.querySelector('{selector}'))"
    )
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)


def test_a_row_of_the_map_is_linked_to_text_and_bars(browser: Browser, tmp_path: Path) -> None:
    opened(browser, samples.long_text(60), tmp_path)  # without labels: row 30, column 5
    over(browser, "canvas.wf-matrix", 5.5 / 60, 30.5 / 60)
    assert chosen(browser)[0] == "w30" and browser.text(".wf-said-unit").startswith("w30 · ")
    browser.point("h2")
    assert chosen(browser) == []
    browser.does("document.querySelector('canvas.wf-matrix').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "ArrowDown"):
        browser.press(key)
    assert chosen(browser)[0] == "w1" and browser.text(".wf-row-of h3") == "Relevance for w1"
    browser.press("Escape")
    assert chosen(browser) == []


def record(size: int = 70) -> Record:
    """Two sites; in each the first head looks at itself, the second at the word before."""
    heads = torch.stack([torch.eye(size), torch.eye(size).roll(-1, 1)])
    sites = [Site(f"layer.{i}", "self", ("text", "text"), heads[None] * (0.5 + 0.5 * i)) for i in range(2)]
    return Record(tuple(sites), torch.zeros(1, 2))


def test_heads_are_chosen_and_their_words_coloured(browser: Browser, tmp_path: Path) -> None:
    opened(browser, heads_grid(record(), labels=[f"t{i}" for i in range(70)]), tmp_path)
    assert browser.does("document.querySelectorAll('.wf-head').length") == 4
    assert browser.does("[...document.querySelectorAll('.wf-still')].every(e => e.hidden)")
    assert browser.text(".wf-head-large h3") == "layer 0, head 0"
    browser.point(".wf-token[data-units='40']")
    assert browser.text(".wf-said-unit") == "t40 attends most to t40 (weight 0.500)"
    browser.does("document.querySelector('.wf-head').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowDown")
    assert browser.text(".wf-head-large h3") == "layer 1, head 1"
    assert browser.does("document.activeElement.getAttribute('aria-label')") == "layer 1, head 1"
    browser.point(".wf-token[data-units='40']", click=True)
    assert browser.text(".wf-said-unit") == "t40 attends most to t39 (weight 1.00)"
    strongest = "getComputedStyle(document.querySelector(\".wf-token[data-units='39']\")).backgroundColor"
    assert browser.does(strongest) == "rgb(33, 102, 172)"
    assert browser.text(".wf-row-of .wf-label") == "t39"
    layer = "document.querySelector('input[aria-label=layer]')"
    assert browser.does(f"[{layer}.value, {layer}.max]") == ["1", "1"]
    slide(browser, "input[aria-label=layer]", 0)
    assert browser.text(".wf-head-large h3") == "layer 0, head 1"


def test_lines_join_tokens_and_hovering_one_leaves_its_own(browser: Browser, tmp_path: Path) -> None:
    names = [f"t{i}" for i in range(8)]
    opened(browser, heads_grid(record(8), names=names), tmp_path)
    assert browser.does("document.querySelectorAll('.wf-head').length") == 4  # names leave the maps small
    shown = "[...document.querySelectorAll('.wf-joins line')].filter(l => l.style.display !== 'none')"
    tips = f"{shown}.map(l => l.textContent)"
    assert sorted(browser.does(tips)) == [f"t{i} → t{i}: 0.500" for i in range(8)]
    browser.does("document.querySelectorAll('.wf-head')[1].click()")
    browser.point(".wf-touch:nth-of-type(4)")  # the fourth on the left: it attends to the one before
    assert browser.does(tips) == ["t3 → t2: 0.500"] and browser.text(".wf-said-unit").startswith(
        "t3 attends most to t2"
    )
    browser.point(".wf-touch:nth-of-type(9)")  # the first on the right: attended by the one after
    assert browser.does(tips) == ["t1 → t0: 0.500"]
    browser.point("h2")
    assert browser.does(f"{shown}.length") == 8
    assert "wf-map-small" in samples.still(heads_grid(record(8)).to_html())  # complete without scripts


def test_one_map_and_stored_maps_have_lines_too(browser: Browser, tmp_path: Path) -> None:
    names = [f"t{i}" for i in range(8)]
    opened(browser, attention_map(record(8), 1, 1, names), tmp_path)
    assert browser.texts(".wf-head-large h3") == ["head 1"] and browser.texts(".wf-head") == []
    assert len(browser.texts(".wf-joins line")) == 8
    maps = AttentionMaps("t", tuple(names), "mean", tuple(SiteMap(i, "p", "self", np.eye(8)) for i in (2, 3)))
    opened(browser, maps, tmp_path)
    assert browser.texts(".wf-head-large h3") == ["layer 2, mean over heads"]
    assert len(browser.texts(".wf-joins line")) == 8 and len(browser.texts(".wf-head")) == 2
    opened(browser, attention_map(record(8), 1, 1, names), tmp_path, scripts=False)  # and without scripts
    shown = "[...document.querySelectorAll('.wf-joined line')].filter(l => getComputedStyle(l).display !== 'none')"
    assert browser.does(f"{shown}.length") == 8
    browser.point(".wf-from-one:nth-of-type(4) .wf-touch")
    assert browser.does(f"{shown}.map(l => l.textContent)") == ["t3 → t2: 1"]


def test_heads_without_labels_and_with_fewer_queries(browser: Browser, tmp_path: Path) -> None:
    few = replace(record().sites[0], attention_BHQK=torch.rand(1, 3, 1, 70))
    opened(browser, heads_grid(replace(record(), sites=(few,))), tmp_path, width=420, dark=True)
    assert browser.does("document.querySelectorAll('.wf-head').length") == 3
    assert browser.does("document.documentElement.scrollWidth") <= 420


def test_a_dot_leads_to_its_row_which_is_a_line_until_then(browser: Browser, tmp_path: Path) -> None:
    many: Any = rows(12)
    opened(browser, many, tmp_path)
    titles = browser.texts(".wf-view > h2")
    assert [title.split(":")[0] for title in titles[1:]] == [f"row {i}" for i in range(12)]
    drawn = "[...document.querySelectorAll('.wf-view')].map(v => v.querySelector('.wf-live-view, canvas') !== null)"
    assert browser.does(drawn) == [True] * 4 + [False] * 9  # all together, three rows, and nine that are folded
    assert browser.does("document.querySelectorAll('.wf-folded')[5].clientHeight") < 80
    # The dot of row 0 on the first line: 170 of 760 px are labels.
    scores_RC = np.stack([e.scores for e in many])
    order, reach = np.argsort(-np.abs(scores_RC).mean(0)), np.abs(scores_RC).max()
    across = (170 + (760 - 170 - 12) * (0.5 + scores_RC[0, order[0]] / reach / 2)) / 760
    over(browser, "canvas", float(across), 17 / browser.does("document.querySelector('canvas').clientHeight"))
    units = ((many[0].units, order[0]), (many[9].units, order[1]))
    told = [f"{each.labels[at]} = {each.values[at]}: " for each, at in units]
    assert browser.text(".wf-said-unit").startswith(f"row 0 · {told[0]}")
    browser.does("document.querySelector('canvas').focus()")
    for key in (*["ArrowRight"] * 10, "ArrowDown"):
        browser.press(key)
    assert browser.text(".wf-said-unit").startswith(f"row 9 · {told[1]}")
    browser.press("Enter")  # goes to the row, and opens it
    row = "document.querySelectorAll('.wf-view')[10]"
    assert browser.does(f"{row}.querySelectorAll('.wf-live-view .wf-line').length") > 2
    assert browser.does(f"{row}.querySelector('h2 button').getAttribute('aria-expanded')") == "true"
    top = f"{row}.querySelector('h2').getBoundingClientRect().top"
    assert -5 <= browser.does(f"new Promise(r => setTimeout(() => r({top}), 1500))") <= 500
    browser.does(f"{row}.querySelector('h2 button').click()")
    assert browser.does(f"{row}.clientHeight") < 80
    browser.does("document.querySelector('.wf-theme').click()")


def unfold(browser: Browser) -> None:
    """Open the inputs of a report."""
    assert browser.does("document.querySelectorAll('.wf-folded').length") > 1
    browser.does("document.querySelectorAll('.wf-unfold').forEach(b => b.click())")


NASTY = "<img src=x onerror=document.title='hit'>"
COUNT = ".wf-evidence input"


def test_a_badge_opens_its_evidence_and_the_slider_blanks_the_highest_units(browser: Browser, tmp_path: Path) -> None:
    opened(browser, report(), tmp_path)
    first = " ".join(browser.text(".wf-view").split())
    assert first.startswith("Predictions") and "positive95.0 %negative (5.0 %)" in first
    unfold(browser)
    few = "?2 texts: too few to rank methods (30 needed)"
    assert [badge.startswith(few) for badge in browser.texts("button.wf-badge")] == [True] * 2
    assert browser.texts(".wf-unmeasured") == []
    assert len(browser.texts("p.wf-badge")) == 2  # the row: a standing, and no curve
    assert browser.does("document.querySelector('.wf-evidence').hidden")
    browser.point("button.wf-badge", click=True)
    assert browser.does("document.querySelector('.wf-badge').getAttribute('aria-expanded')") == "true"
    assert "below 19 of 20 random orders" in browser.text(".wf-evidence")
    assert browser.text(".wf-told").startswith("probability of the target: 0.950.")
    slide(browser, COUNT, 2)
    assert browser.texts(".wf-run .wf-away") == ["not", "believable"]  # of this map alone
    assert browser.text(".wf-told") == (
        "Top 2 masked: probability of the target 0.790 (before: 0.950). As many at random: 0.870 (0.860 to 0.880)."
    )
    assert browser.does(f"document.querySelector('{COUNT}').getAttribute('aria-valuetext')").startswith("2 of")
    click(browser, "word")
    assert browser.texts(".wf-run .wf-away") == ["not"]  # drawn anew: a word is away when all of its pieces are
    slide(browser, COUNT, 3)
    assert browser.texts(".wf-run .wf-away") == ["not", "unbelievable"]
    browser.point("button.wf-badge", click=True)
    assert browser.texts(".wf-run .wf-away") == []
    page = samples.still(report().to_html())
    assert "2 texts: too few to rank methods" in page and "random orders" in page
    assert "How to read this report" in page and "reads the features of an image" in page


def test_patches_are_taken_away_from_the_picture(browser: Browser, tmp_path: Path) -> None:
    opened(browser, report((samples.image("grad_sam"), samples.image("raw_attention"))), tmp_path)
    unfold(browser)
    browser.point("button.wf-badge", click=True)
    slide(browser, COUNT, 2)
    pixels = "document.querySelector('.wf-gone').getContext('2d').getImageData(0, 0, 4, 3).data"
    ink = f"[...{pixels}].filter((_, i) => i % 4 === 3)"
    assert [i for i, alpha in enumerate(browser.does(ink)) if alpha] == [10, 11]  # the last two have the highest scores


def test_findings_are_cards_whose_rest_unfolds(browser: Browser, tmp_path: Path) -> None:
    long = Finding("warning", "sinks", "Sinks", f"Much of it goes to [SEP]. Read the rest among itself. {NASTY}")
    opened(browser, replace(check_up(), findings=(long, *check_up().findings)), tmp_path)
    card = "document.querySelector('.wf-findings.wf-warning details')"
    assert browser.text(".wf-findings.wf-warning summary") == "Sinks Much of it goes to [SEP]."
    assert not browser.does(f"{card}.open")
    browser.point(".wf-findings summary", click=True)
    assert browser.does(f"{card}.open")
    assert browser.text(".wf-findings.wf-warning details p").endswith(NASTY)
    assert browser.does("document.querySelector('.wf-findings.wf-ok').closest('details').open") is False
    assert browser.does("document.title") != "hit"
