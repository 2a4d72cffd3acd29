"""The saved page in a real browser: what is pointed at, chosen, typed and switched. Skipped loudly without one."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.browser import Browser
from tests.views import samples
from tests.views.conftest import chosen, opened
from tests.views.results import report
from whyformer.language.traces import Trace
from whyformer.results.types import ByMethod, Choice, Explanation, Generation, Target, Units
from whyformer.views import side_by_side, view_of
from whyformer.views.html.live import script
from whyformer.views.marks import TableMark
from whyformer.views.terminal.terminal_page import text
from whyformer.views.text_marks import folded_words
from whyformer.views.view import Panel, View

SAID = Target(1, "positive", probability=0.9687, next=(Choice(0, "negative", 0.0313),))
NASTY = "<img src=x onerror=document.title='hit'></script><script>document.title='hit'</script>"
ROOT = Path(__file__).parents[2]


def explanation(**changes: Any) -> Explanation:
    matrix = np.random.default_rng(0).random((12, 12)).astype(np.float32)
    return samples.text(prediction=SAID, matrix=matrix, **changes)


def labels(browser: Browser, inside: str = ".wf-lines") -> list[str]:
    read = "[...document.querySelector('%s').querySelectorAll('.wf-label')].map(e => e.textContent)"
    return list(browser.does(read % inside))


def click(browser: Browser, words: str) -> None:
    browser.does(f"[...document.querySelectorAll('.wf-tools button')].find(b => b.textContent === '{words}').click()")


def slide(browser: Browser, which: str, value: Any) -> None:
    browser.does(
        f"(i => {{ i.value = {value}; i.dispatchEvent(new Event('input')); }})(document.querySelector('{which}'))"
    )


def test_the_bundle_is_what_the_sources_give_and_small() -> None:
    subprocess.run([sys.executable, "frontend/build.py", "--check"], cwd=ROOT, check=True)
    assert len(gzip.compress(script().encode())) <= 150_000
    assert len(explanation().to_html()) <= 250_000


def test_a_walk_through_the_page_of_a_text(browser: Browser, tmp_path: Path) -> None:
    opened(browser, explanation(), tmp_path)
    assert browser.does("document.querySelector('.wf-still').hidden")  # the still picture gave way
    assert browser.text(".wf-class") == "positive96.9 %"
    assert browser.texts(".wf-badge") == [] and "wf.report(model, inputs" in browser.text(".wf-unmeasured")
    # The mouse: text, bars and map show the same unit, and a click holds it.
    browser.point(".wf-token[data-units='3']")
    assert chosen(browser)[0] == "not" and len(chosen(browser)) == 2
    assert browser.text(".wf-said-unit") == "not · 0.300 (1. of 10)"
    assert browser.text(".wf-row-of h3") == "Relevance for not"
    browser.point(".wf-line[data-units='4']", click=True)
    browser.point("h2")
    assert chosen(browser)[0] == "like"
    # Keys.
    browser.press("Escape")
    browser.does("document.querySelector('.wf-maps .wf-token').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert chosen(browser)[0] == "not"
    assert browser.does("document.activeElement.getAttribute('aria-selected')") == "true"
    assert browser.does("document.activeElement.getAttribute('aria-label')") == "not, 0.300"
    browser.press("End")
    assert chosen(browser)[0] == "!"
    browser.press("Escape")
    assert chosen(browser) == []
    # Bars: sorted, joined to words, with special tokens, filtered.
    assert labels(browser)[:3] == ["not", "##believable", "un"]
    click(browser, "in order")
    assert labels(browser) == list(samples.TOKENS[1:-1])
    click(browser, "word")
    click(browser, "highest")
    assert labels(browser)[:2] == ["unbelievable", "not"] and "[SEP]" not in labels(browser)
    assert "[CLS]" not in browser.text(".wf-maps .wf-run")
    assert browser.texts(".wf-folded-words") == [folded_words(explanation())]
    browser.does("document.querySelector('.wf-tools input[type=checkbox]').click()")
    assert labels(browser)[:3] == ["[CLS]", "unbelievable", "not"] and browser.texts(".wf-folded-words") == []
    slide(browser, "input[type=search]", "'LIK'")
    assert labels(browser) == ["like"]
    click(browser, "copy as image")
    said = (
        "new Promise(r => { const b = [...document.querySelectorAll('.wf-tools button')].pop(); "
        "new MutationObserver(() => r(b.textContent)).observe(b, {childList: true}); })"
    )
    assert browser.does(said) in ("copied", "saved")


def test_bars_of_scores_that_are_little_beside_the_value_are_short(browser: Browser, tmp_path: Path) -> None:
    e = explanation(signed=True)
    together = float(np.abs(e.scores).sum())
    widths = "Math.max(...[...document.querySelectorAll('.wf-maps .wf-bar')].map(b => parseFloat(b.style.width)))"
    for part, width in ((1.0, 50.0), (0.01, 10.0)):
        opened(browser, e.replace(value=together / part), tmp_path)
        assert browser.does(widths) == pytest.approx(width, rel=1e-3)


NUMBERS = {
    "signed": lambda: samples.text("occlusion", signed=True),
    "image": samples.image,
    "large": lambda: samples.text(scores=np.array(samples.SCORES) * 3.3e9),
    "small": lambda: samples.text(scores=np.array(samples.SCORES) * 7.7e-8, value=1e-6),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_printed_are_those_that_are_drawn(name: str, browser: Browser, tmp_path: Path) -> None:
    shown = NUMBERS[name]()
    printed = [
        [*re.match(r" *\d+\. (.*?) +(-?[\d.e-]+)(?: |$)", part).groups()]  # type: ignore[union-attr]
        for line in text(view_of(shown)._page(), 100).splitlines()
        for part in re.findall(r" *\d+\. \S.*", line)
    ]
    opened(browser, shown, tmp_path)
    words = "[...l.children].slice(0, 2).map(e => e.textContent)"
    assert browser.does(f"[...document.querySelector('.wf-lines').children].map(l => {words})") == printed
    assert len(printed) in (8, 10)


READ_BARS = (
    "[...document.querySelectorAll('.wf-map')].map(m => [...m.querySelector('.wf-lines').children].map(l => "
    "[parseFloat(l.querySelector('.wf-number').textContent), "
    "l.querySelector('.wf-bar').getBoundingClientRect().width / "
    "l.querySelector('.wf-track').getBoundingClientRect().width, l.querySelector('.wf-beyond') !== null]))"
)


def test_side_by_side_bars_are_as_long_as_alone_and_on_one_scale_if_wanted(browser: Browser, tmp_path: Path) -> None:
    other = samples.text("occlusion", scores=np.array(samples.SCORES)[::-1] * 7, signed=True, base=1.0)
    opened(browser, side_by_side([explanation(), other]), tmp_path)
    beside = browser.does(READ_BARS)
    caption = browser.text(".wf-footer .wf-caption")
    assert "relative to the largest |score| on display" in caption and "on one scale" not in caption
    assert browser.texts(".wf-legend:not([hidden])")[1].startswith("-2.1")
    browser.point(".wf-token[data-units='3']")
    said = browser.text(".wf-said-unit")
    assert "generic_attention 0.300 (1. of 10) · occlusion" in said
    click(browser, "one scale")
    browser.point(".wf-token[data-units='3']")
    assert "generic_attention 32.8 % (1. of 10)" in browser.text(".wf-said-unit")
    for signed, lines in zip((False, True), browser.does(READ_BARS), strict=True):
        for told, length, beyond in lines:
            if not beyond and abs(told) > 1:
                assert length * (2 if signed else 1) == pytest.approx(abs(told) / 32.8, abs=0.03)
    assert "share of the method's total |score|, hidden tokens left out, on one scale" in browser.text(".wf-footer")
    for each, lines in zip((explanation(), other), beside, strict=True):
        opened(browser, each, tmp_path)
        alone = browser.does(READ_BARS)[0]
        assert [line[0] for line in lines] == [line[0] for line in alone]
        assert [line[1] for line in lines] == pytest.approx([line[1] for line in alone], abs=0.01)


def test_nothing_found_is_a_sentence_on_the_page(browser: Browser, tmp_path: Path) -> None:
    empty = explanation(method="occlusion", scores=np.full(12, 1e-8))
    opened(browser, empty, tmp_path)
    assert browser.texts(".wf-nothing") == [empty.nothing_found] and browser.texts(".wf-lines .wf-line") == []
    assert browser.does("document.querySelectorAll('.wf-legend:not([hidden]), .wf-canvas').length") == 0
    opened(browser, side_by_side([explanation(), empty]), tmp_path)
    assert browser.texts(".wf-nothing") == [empty.nothing_found] and len(browser.texts(".wf-lines")) == 1


def test_standard_errors_layers_and_text_outside_all_units(browser: Browser, tmp_path: Path) -> None:
    layers = np.zeros((30, 12, 12), np.float32)
    layers[2, 0, 4] = 1
    errors = np.where(np.arange(12) == 3, 0.05, 0).astype(np.float32)
    units = replace(samples.text().units, text=samples.TEXT + " and a long rest that was cut off")
    shown = explanation(layers=layers, errors=errors, units=units)
    opened(browser, shown, tmp_path)
    line = "document.querySelector('.wf-line[data-units=\"3\"]')"
    assert browser.does("document.querySelectorAll('.wf-whisker').length") == 1
    assert "0.300 ± 0.098" in browser.does(f"{line}.getAttribute('aria-label')")
    box = f"{line}.querySelector(c).getBoundingClientRect()"
    edges = browser.does(f"['.wf-bar', '.wf-whisker'].map(c => {box}).map(b => [b.left, b.right])")
    (_, end), (low, high) = edges
    assert low < end <= high + 1
    slide(browser, "input[aria-label=layer]", 2)
    assert browser.text(".wf-tools output") == "layer 2"  # each of many layers can be chosen
    assert browser.does("document.querySelector('.wf-row-of .wf-line')") is None  # the bars say what is read
    browser.does("document.querySelector('.wf-matrix').focus()")
    browser.press("ArrowDown")
    assert labels(browser, ".wf-row-of")[0] == "like"
    assert browser.text(".wf-unread") == " and a long rest that was cut off"  # and is not drawn as zero
    assert "… [32 characters after the last scored token]" in samples.still(shown.to_html())
    assert "scored token" not in samples.still(explanation().to_html())
    spans = tuple((a + 4, b + 4) if b > a else (0, 0) for a, b in samples.text().units.spans)
    opened(browser, explanation(units=replace(units, text="So: " + samples.TEXT, spans=spans)), tmp_path)
    assert browser.texts(".wf-unread") == ["So: "]


def test_a_waterfall_ends_at_the_value(browser: Browser, tmp_path: Path) -> None:
    signed = samples.text("integrated_gradients", signed=True)
    base = signed.value - float(signed.scores.sum()) + 1
    opened(browser, signed.replace(base=base), tmp_path)
    told = browser.texts(".wf-waterfall .wf-number")
    assert (float(told[0]), float(told[-1])) == (pytest.approx(base, abs=0.01), pytest.approx(3.43, abs=0.01))
    assert sum(map(float, told[:-1])) == pytest.approx(3.431, abs=0.06)  # as rounded
    assert "not accounted for" in labels(browser, ".wf-waterfall")


def test_a_row_opens_with_its_waterfall(browser: Browser, tmp_path: Path) -> None:
    scores = np.array([0.5, 0.1, -0.2], np.float32)
    row = samples.table(scores=scores, method="two_ended", value=1.0, checks={"baseline_value": 0.4})
    opened(browser, row, tmp_path)
    assert browser.texts("details.wf-part > summary")[:2] == [
        "Waterfall: from the baseline (0.400) to the explained value (1.00)",
        "Scores per column",
    ]
    unfolded = browser.does("[...document.querySelectorAll('details.wf-part')].map((part) => part.open)")
    assert unfolded[:2] == [True, False]
    assert labels(browser, ".wf-waterfall") == ["baseline", "age", "city", "income", "interactions", "explained value"]
    assert browser.texts(".wf-waterfall .wf-number") == ["0.40", "+0.50", "-0.20", "+0.10", "+0.20", "1.00"]
    assert "three or more columns" in browser.text(".wf-live-view")
    opened(browser, samples.table(), tmp_path)  # without a value to start from
    assert not browser.texts(".wf-waterfall")


def test_columns_whose_masking_changed_nothing_have_no_zero(browser: Browser, tmp_path: Path) -> None:
    scores = np.array([0.5, 0.0, -0.2], np.float32)
    shown = samples.table(scores=scores, options={"replace": "mean"}, base=0.1, value=0.4)
    opened(browser, shown, tmp_path)
    assert browser.texts(".wf-lines:not(.wf-waterfall) .wf-number")[:3] == ["0.500", "-0.200", "no effect"]
    assert labels(browser, ".wf-lines:not(.wf-waterfall)") == ["age", "city", "income"]
    assert not {"income", "not accounted for"} & set(labels(browser, ".wf-waterfall"))
    assert samples.still(shown.to_html()).count("no effect") == 1


def test_patches_are_pointed_at_and_the_overlay_fades(browser: Browser, tmp_path: Path) -> None:
    opened(browser, samples.image(), tmp_path, image=samples.picture())
    assert browser.does("document.querySelector('.wf-stage img').src").startswith("data:image/jpeg")
    browser.point(".wf-line[data-units='12']")
    assert browser.does("document.querySelector('.wf-patch').style.left") == "75%"
    browser.does("document.querySelector('.wf-stage').focus()")
    browser.press("ArrowLeft")
    assert "patch 3,3" in browser.text(".wf-said-unit")
    slide(browser, "input[aria-label=overlay]", 20)
    slide(browser, "input[aria-label=zoom]", 3)
    assert browser.does("document.querySelector('.wf-heat').style.opacity") == "0.2"
    assert browser.does("document.querySelector('.wf-stage').style.width") == "300%"


def test_dark_as_the_system_has_it_as_a_picture_and_by_the_switch(browser: Browser, tmp_path: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    opened(browser, explanation(), tmp_path, dark=True)
    assert browser.does(ground) == "rgb(13, 17, 23)"
    weak = "getComputedStyle(document.querySelector(\".wf-token[data-units='6']\")).backgroundColor"
    assert browser.does(weak) == "rgb(22, 27, 34)"  # the weakest score is dark, too
    # Where the clipboard refuses, the picture goes into a file: its pixels are looked at.
    browser.does(
        "navigator.clipboard.write = () => Promise.reject(new Error('no')); "
        "URL.createObjectURL = (blob) => { window.picture = blob; return 'data:,'; }; "
        "HTMLAnchorElement.prototype.click = () => {}; 1"
    )
    click(browser, "copy as image")
    read = (
        "new Promise(async (done) => { while (!window.picture) await new Promise(r => setTimeout(r, 50)); "
        "const image = await createImageBitmap(window.picture); "
        "const c = new OffscreenCanvas(image.width, image.height); "
        "const pen = c.getContext('2d'); pen.drawImage(image, 0, 0); const seen = {}; "
        "const d = pen.getImageData(0, 0, c.width, c.height).data; for (let i = 0; i < d.length; i += 4) { "
        "const k = `${d[i]} ${d[i + 1]} ${d[i + 2]}`; seen[k] = (seen[k] ?? 0) + 1; } done([image.width, seen]); })"
    )
    width, seen = browser.does(read)
    assert width > 1500 and max(seen, key=seen.get) == "13 17 23"  # twice as fine as the screen
    assert seen["76 159 220"] > 5000  # bars, in their colour
    browser.does("document.querySelector('.wf-theme').click()")
    assert browser.does(ground) == "rgb(255, 255, 255)" and browser.does(weak) == "rgb(255, 255, 255)"


def test_without_scripts_the_still_picture_is_there(browser: Browser, tmp_path: Path) -> None:
    opened(browser, explanation(), tmp_path, scripts=False, dark=True)
    browser.ask("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.does("document.querySelector('.wf-theme')") is None
    assert browser.text(".wf-still .wf-token") == "I"
    assert browser.does("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_markup_in_tokens_and_labels_stays_text(browser: Browser, tmp_path: Path) -> None:
    units = samples.text().units
    marked = replace(units, labels=tuple(f"{NASTY}{i}" for i in range(len(units))), spans=None, text=None)
    said = Target(1, NASTY, probability=0.9, next=(Choice(0, NASTY, 0.1),))
    odd = explanation(warnings=(NASTY,), model=NASTY).replace(units=marked, prediction=said, target=said)
    opened(browser, side_by_side([odd, odd.replace(method=f"m{NASTY}")], title=NASTY), tmp_path)
    browser.point(".wf-maps .wf-token", click=True)
    browser.does("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.does("document.title") == NASTY
    assert browser.does("[...document.images].length") == 0
    assert browser.does("document.querySelectorAll('script').length") == 2
    assert browser.text(".wf-class .wf-label") == NASTY
    table = samples.table()
    columns = replace(table.units, labels=(NASTY, "b", "c"), values=(NASTY, "1", "2"))
    opened(browser, table.replace(units=columns), tmp_path)
    assert f"{NASTY} = {NASTY}" in labels(browser) and browser.does("[...document.images].length") == 0


def test_long_texts_are_drawn_piece_by_piece(browser: Browser, tmp_path: Path) -> None:
    opened(browser, samples.long_text(4096), tmp_path)
    assert browser.does("document.querySelectorAll('.wf-maps .wf-token').length") == 4096
    assert len(labels(browser)) == 8 and labels(browser)[0] == "w4095"
    browser.does("document.querySelector('button.wf-more').click()")
    assert len(labels(browser)) == 32
    assert "8 neighbours share a cell" in browser.text(".wf-canvas")
    browser.point(".wf-token[data-units='4000']")
    assert "w4000" in browser.text(".wf-said-unit")


SHOWN: dict[str, Callable[[], Any]] = {
    "dict": lambda: ByMethod({"a": explanation(), "occlusion": samples.text("occlusion", signed=True)}),
    "report": report,
}


@pytest.mark.parametrize("name", SHOWN)
def test_in_a_notebook_the_frame_is_as_high_as_the_page(browser: Browser, tmp_path: Path, name: str) -> None:
    host = tmp_path / "host.html"
    bad = "<style>table,td,th{border:3px solid red!important;padding:20px!important} *{font-size:40px}</style>"
    cell = '<div class="jp-RenderedHTMLCommon" style="width:900px">%s</div>'
    host.write_text(f"<!doctype html>{bad}<body>{cell % SHOWN[name]()._repr_html_()}</body>", encoding="utf-8")
    browser.open(host)
    inner = "document.querySelector('iframe').contentDocument"
    high = browser.does("new Promise(r => setTimeout(() => r(document.querySelector('iframe').clientHeight), 300))")
    assert high == pytest.approx(browser.does(f"{inner}.body.scrollHeight"), abs=2) and high > 400
    browser.does(f"{inner}.querySelectorAll('.wf-unfold').forEach(b => b.click())")
    assert browser.does(f"getComputedStyle({inner}.querySelector('.wf-line')).fontSize") != "40px"
    browser.does(f"{inner}.querySelector('.wf-line[data-units]').click()")  # it can be asked there, too
    assert browser.does(f"{inner}.querySelectorAll('.wf-here').length") > 0


def test_tables_are_sorted_by_their_headings(browser: Browser, tmp_path: Path) -> None:
    rows = (("b", "0.2 (0.1–0.3)"), ("a", "10.5"), ("c", "–"), ("d", "-3"))
    opened(browser, View("Methods", (Panel((TableMark(("method", "score"), rows),)),)), tmp_path)
    for order in ("abdc", "dbac"):
        browser.point("th:nth-child(2)", click=True)
        assert "".join(browser.texts("td:first-child")) == order
    browser.does("document.querySelector('th').focus()")
    browser.press("Enter")
    assert "".join(browser.texts("td:first-child")) == "abcd"
    assert browser.does("document.querySelector('th').getAttribute('aria-sort')") == "ascending"


def test_an_answer_says_what_each_token_came_from(browser: Browser, tmp_path: Path) -> None:
    opened(browser, samples.generation(), tmp_path, dark=True)
    tom = "getComputedStyle([...document.querySelectorAll('[data-piece]')].find(e => e.textContent === 'Tom')).%s"
    browser.point(".wf-said button", click=True)
    assert browser.text(".wf-from").startswith("“In” ← Tom")
    assert browser.does(tom % "backgroundColor") == "rgb(140, 203, 247)"  # the strongest on a dark ground
    browser.press("ArrowRight")
    assert browser.text(".wf-from").startswith("“Lis” ← moved")


def test_a_run_is_walked_back_step_by_step(browser: Browser, tmp_path: Path) -> None:
    trace = Trace.load(samples.STORED / "Trace.json")
    opened(browser, trace, tmp_path)
    names = [f"step {number}, {step.kind}" for number, step in enumerate(trace.steps)]
    drawn = "[...document.querySelectorAll('.wf-line-chosen')].map(e => [+e.dataset.from, +e.dataset.to])"
    assert browser.text(".wf-why h4") == f"What drove {names[4]}?"
    browser.does("document.querySelectorAll('.wf-step')[3].click()")
    assert browser.text(".wf-why h4") == f"What drove {names[3]}?"
    best = trace.why(3)
    assert browser.does(drawn) == [[driver.source, trace.steps[3].source] for driver in best[:4]]
    said = browser.texts(".wf-why li")
    assert len(said) == 6 and all(d.text in words for d, words in zip(best, said, strict=False))
    assert said[0].startswith("52\u00a0%") and "log-probability \u221212.25" in said[1]
    browser.does("document.querySelector('.wf-why li button').click()")  # the thought, which came first
    assert browser.texts(".wf-trail button") == ["step 3", "step 2"]
    assert browser.text(".wf-why h4") == f"What drove {names[2]}?"
    browser.does("document.querySelector('.wf-why li button').click()")  # a tool result leads on to its call
    assert browser.texts(".wf-trail button") == ["step 3", "step 2", "step 1"]
    browser.does("document.querySelectorAll('.wf-trail button')[0].click()")
    browser.does("document.querySelectorAll('.wf-chooser button')[1].click()")
    assert (
        browser.texts(".wf-why li")[0].startswith("70\u00a0%") and trace.cause().text in browser.texts(".wf-why li")[0]
    )
    browser.does("document.querySelector('.wf-step').focus()")
    browser.press("ArrowDown")
    browser.press("Enter")
    assert browser.text(".wf-why h4") == f"What drove {names[1]}?"
    browser.press("Escape")
    assert browser.text(".wf-why h4") == f"What drove {names[4]}?"
    odd = replace(trace, sources=tuple(replace(source, text=NASTY) for source in trace.sources))
    opened(browser, odd, tmp_path)
    assert browser.does("[...document.images].length") == 0 and browser.texts(".wf-step") == [NASTY] * 5


def test_patches_of_an_answers_image_are_pointed_at(browser: Browser, tmp_path: Path) -> None:
    patches = [f"patch {row},{column}" for row in (1, 2, 3) for column in (1, 2, 3)]
    units = Units((*patches, "what", "is"), (False,) * 11, ("image",) * 9 + ("text",) * 2, grid=(3, 3))
    steps = []
    for number, word in enumerate(("red", " cross")):
        scores = np.full(11, 0.05, np.float32)
        scores[[number, 4, 9 + number]] = 0.6, 0.2, 0.3  # a patch, the one in the middle, a word: 1.5 in all
        said = Target(number, word)
        step = samples.prompt(np.ones(2), ["what", "is"]).replace(units=units, scores=scores, target=said)
        steps.append(step.replace(prediction=said, checks={"first_token_share": 0.0}))
    opened(browser, Generation(tuple(steps), "red cross", ((0, 2),)), tmp_path)
    note, pixel = (
        ".wf-answer-image .wf-note",
        "[...document.querySelector('.wf-heat').getContext('2d').getImageData(%d, 0, 1, 1).data]",
    )
    assert "whole answer ← image" in browser.text(note)
    browser.point(".wf-said button:nth-of-type(2)")
    assert browser.text(note).endswith("strongest: patch 1,2, 40.0\u00a0%")
    assert browser.text(".wf-from").startswith("“cross” ← ")
    strongest, weak = browser.does(pixel % 1), browser.does(pixel % 0)
    assert sum(strongest) > sum(weak) + 300  # bright on dark
    browser.point(".wf-stage")
    assert browser.text(note) == "whole answer ← patch 2,2: 13.3\u00a0%"
    assert browser.does("document.querySelector('.wf-patch').style.left").startswith("33.3")
    browser.point("svg[data-first='0']")  # the still picture of the first token
    assert browser.text("svg[data-first='0'] + .wf-note") == "patch 2,2: 13.3\u00a0%"
    assert browser.text(".wf-from").startswith("“red” ← ") and "“red” ← patch 2,2" in browser.text(note)
    browser.does("document.querySelector('.wf-stage').focus()")
    browser.press("ArrowRight")
    assert "patch 2,3: 3.3" in browser.text(note)
    assert not browser.errors


def test_sound_has_a_time_axis(browser: Browser, tmp_path: Path) -> None:
    size = 31
    units = Units(tuple(f"frame {i}" for i in range(size)), (False,) * size, ("audio",) * size)
    scores = np.arange(size, dtype=np.float32) % 7
    timed = replace(units, seconds=3.1, wave=(0.0, 1.0, 0.5))
    opened(browser, samples.text(scores=scores).replace(units=timed, readout=""), tmp_path)
    read = "[...document.querySelectorAll('.wf-moment')].map(m => [m.getBoundingClientRect().left, parseFloat("
    frames = browser.does(read + "m.firstChild.style.height)])")
    assert [high for _, high in frames] == pytest.approx(list(100 * scores / 6), abs=0.1)
    assert np.all(np.diff([left for left, _ in frames]) > 0)  # in time, not by rank
    browser.point(".wf-moment[data-units='12']")
    assert browser.text(".wf-said-unit").startswith("frame 12 · 5.00")
    ticks = browser.does("[...document.querySelectorAll('.wf-ticks span')].map(s => [s.textContent, s.style.left])")
    assert ticks[:3] == [["0.0 s", "0%"], ["0.5 s", "16.129%"], ["1.0 s", "32.2581%"]]
    ink = "document.querySelector('.wf-wave').getContext('2d').getImageData(%d, 4, 1, 1).data[3]"
    assert [browser.does(ink % x) for x in (0, 2, 4)] == [0, 255, 0]  # loud in the middle
    assert browser.does("document.querySelector('.wf-still').hidden")
