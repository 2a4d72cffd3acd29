"""The page of ``whyformer serve`` in a real browser, before a real server. Skipped loudly without a browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest

from tests.serve.driving import choose, drop, explained, press, result, texts, until, up, visit, write
from tests.serve.served import TEXT, png, served
from tests.support.browser import Browser
from tests.views.test_accessible import BROKEN, axe
from whyformer.serve.app import Served


@pytest.fixture(scope="module")
def whole() -> Served:
    return served("text", "language", "image", "table")


@pytest.fixture(scope="module")
def at(whole: Served, one_browser: Browser) -> Iterator[str]:
    with up(whole, one_browser) as address:
        yield address


def test_the_first_visit_predicts_at_once_and_explains_on_a_click(browser: Browser, at: str) -> None:
    visit(browser, at)
    assert browser.does("document.querySelector('.sv-area').value") == TEXT
    until(browser, "document.querySelectorAll('.sv-class').length === 3")
    assert len(texts(browser, ".sv-said")) == 1
    assert "<b>maybe</b>" in " ".join(texts(browser, ".sv-class button")) and browser.does(
        "!document.querySelector('.sv-class b')"
    )
    identity = explained(browser)
    assert browser.does("location.pathname") == f"/r/{identity}"
    assert "anna" in texts(browser, ".sv-result .wf-token") and len(texts(browser, ".sv-result .wf-line")) > 5
    browser.point(".sv-result .wf-token[data-units='4']")
    assert texts(browser, ".wf-said-unit")[0].startswith("paris")
    until(browser, f"document.querySelector('.sv-list b')?.textContent === {json.dumps(TEXT)}")


def test_a_link_opens_the_result_and_an_edit_shows_the_difference(browser: Browser, at: str) -> None:
    visit(browser, at)
    write(browser, "anna lives in rome")
    first = explained(browser)
    visit(browser, f"{at}/r/{first}")
    assert browser.does("document.querySelector('.sv-area').value") == "anna lives in rome"
    assert result(browser) == first and "rome" in texts(browser, ".sv-result .wf-token")
    write(browser, "anna lives in paris")
    second = explained(browser, other_than=first)
    told = texts(browser, ".sv-difference")[0]
    assert "What the edit changed" in told and "paris" in told and "rome" in told
    browser.does("history.back()")
    assert result(browser, other_than=second) == first


def test_a_class_is_clicked_for_the_contrast_and_methods_stand_side_by_side(browser: Browser, at: str) -> None:
    visit(browser, at)
    first = explained(browser)
    other = texts(browser, ".sv-result .wf-class:not(.wf-first) .wf-label")[0]
    browser.point(".sv-result .wf-class:not(.wf-first) .wf-label", click=True)
    second = result(browser, other_than=first)
    assert f"rather than {json.dumps(other)[1:-1]}" in texts(browser, ".sv-result h2")[0].replace("'", "")
    sides = "[...document.querySelectorAll('.sv-question select')].map(s => s.selectedOptions[0].textContent)"
    assert browser.does(sides) == [texts(browser, ".sv-result .wf-first .wf-label")[0], other]
    visit(browser, f"{at}/r/{second}")  # the question comes back with its link
    until(browser, "document.querySelectorAll('.sv-class').length === 3")
    assert browser.does(sides)[1] == other
    until(browser, "document.querySelectorAll('.sv-grey').length === 2")  # the rehearsal is over
    assert "no image" in texts(browser, ".sv-grey small")[0] and browser.does(
        "document.querySelector('.sv-grey input').disabled"
    )
    for name in ("saliency", "attn_lrp"):
        browser.does(f"document.querySelector('.sv-methods input[value={name}]').click()")
    explained(browser, other_than=second)
    assert texts(browser, ".wf-map h3") == ["generic_attention", "saliency", "attn_lrp"]


def test_a_picture_is_dropped_and_a_patch_erased(browser: Browser, at: str) -> None:
    visit(browser, at)
    choose(browser, "image")
    until(browser, "document.querySelector('.sv-shown').naturalWidth === 60")
    drop(browser, png(48, 48), "x.png")
    until(browser, "document.querySelector('.sv-shown').naturalWidth === 48")
    first = explained(browser)
    assert browser.does("document.querySelector('.sv-result .wf-stage img').src").startswith("data:image/jpeg")
    browser.does("document.querySelector('.sv-erase').click()")
    browser.point(".sv-result .wf-stage", click=True)
    second = result(browser, other_than=first)
    assert "What the edit changed" in texts(browser, ".sv-difference")[0]
    assert "1 patch erased" in texts(browser, ".sv-form")[0]  # what is predicted is the picture without it
    assert browser.does("document.querySelector('.sv-erase').checked")  # the next click erases another
    press(browser, "restore")
    explained(browser, other_than=second)
    assert not any("erased" in words for words in texts(browser, ".sv-form p:not([hidden])"))


def test_a_row_is_picked_and_edited(browser: Browser, at: str) -> None:
    visit(browser, at)
    choose(browser, "table")
    before = until(browser, "document.querySelector('.sv-said span')?.textContent")
    browser.does(
        "(i => { i.value = 90; i.dispatchEvent(new Event('input')); })(document.querySelector('.sv-cell input'))"
    )
    until(browser, f"document.querySelector('.sv-said span').textContent !== {json.dumps(before)}")
    for name in ("saliency", "integrated_gradients"):  # the dear one away
        browser.does(f"document.querySelector('.sv-methods input[value={name}]').click()")
    first = explained(browser)
    browser.does("document.querySelector('.sv-result button.wf-more').click()")
    assert any(label.startswith("age = 90") for label in texts(browser, ".sv-result .wf-label"))
    browser.does(
        "(i => { i.value = 30; i.dispatchEvent(new Event('input')); })(document.querySelector('.sv-cell input'))"
    )
    explained(browser, other_than=first)
    assert any(label.startswith("age: 90") and "30" in label for label in texts(browser, ".sv-difference th"))


def test_a_language_model_is_asked_and_its_answer_clicked(browser: Browser, at: str) -> None:
    visit(browser, at)
    choose(browser, "language")
    browser.does("(i => { i.value = 3; })(document.querySelector('.sv-form input[type=number]'))")
    explained(browser)
    browser.does("document.querySelector('.wf-said button').click()")
    assert "←" in texts(browser, ".wf-from")[0]


def test_heads_and_trust_are_tabs_of_a_result(browser: Browser, at: str) -> None:
    visit(browser, at)
    write(browser, "anna lives in rome")
    explained(browser)
    press(browser, "layers × heads", ".sv-result")
    assert until(browser, "document.querySelectorAll('.sv-head-button').length") == 8
    browser.does("document.querySelectorAll('.sv-head-button')[5].click()")
    assert texts(browser, ".sv-large h3") == ["layer 1, head 1"]
    assert texts(browser, ".sv-rows span")[1:4] == ["anna", "lives", "in"]
    browser.point(".sv-large canvas")
    assert "attends to" in texts(browser, ".sv-large p:last-child")[0]
    press(browser, "trust", ".sv-result")
    until(browser, "document.querySelectorAll('.sv-curve').length === 2", 120)
    assert texts(browser, ".sv-advice b")[0].startswith(("Recommended", "No recommendation"))
    assert texts(browser, ".sv-this-row th")[0].startswith("generic_attention")
    quick = len(texts(browser, ".sv-findings li"))
    press(browser, "run the slow checks, too", ".sv-result")
    until(browser, f"document.querySelectorAll('.sv-findings li').length > {max(quick, 4)}", 120)
    press(browser, "explanation", ".sv-result")
    assert texts(browser, ".sv-result .wf-token")


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Opened in the end, whatever happens: what waits for it would hold up the tests that follow."""
    event = threading.Event()
    yield event
    event.set()


WAITING = "[...document.querySelectorAll('.sv-busy span')].some(s => /^explain( waits|:)/.test(s.textContent))"


def test_long_work_shows_its_progress_and_is_cancelled(
    browser: Browser, at: str, whole: Served, gate: threading.Event
) -> None:
    visit(browser, at)
    whole.jobs.add("text", "waits", lambda: gate.wait(60))
    press(browser, "Explain")
    until(browser, WAITING)
    visit(browser, at)  # a tab that is closed changes nothing: both go on, and are there again
    until(browser, "document.querySelectorAll('.sv-busy').length === 2")
    browser.does("document.querySelectorAll('.sv-cancel')[1].click()")
    until(browser, "document.querySelectorAll('.sv-busy').length === 1")
    gate.set()
    until(browser, "document.querySelectorAll('.sv-busy').length === 0")
    assert texts(browser, ".sv-result") == []
    explained(browser)


def test_many_jobs_do_not_take_all_connections(browser: Browser, at: str, whole: Served, gate: threading.Event) -> None:
    for _ in range(8):
        whole.jobs.add("text", "waits", lambda: gate.wait(60))
    visit(browser, at)
    until(browser, "document.querySelectorAll('.sv-busy').length === 8")
    choose(browser, "image")  # another model, which nobody asks
    explained(browser)
    gate.set()
    until(browser, "document.querySelectorAll('.sv-busy').length === 0")


def test_a_late_answer_does_not_replace_what_was_asked_later(
    browser: Browser, at: str, whole: Served, gate: threading.Event
) -> None:
    visit(browser, at)
    whole.jobs.add("text", "waits", lambda: gate.wait(60))
    write(browser, "ben works in paris")
    press(browser, "Explain")
    until(browser, WAITING)
    choose(browser, "image")  # what was asked of the other model is none of its business
    shown = explained(browser)
    gate.set()
    until(browser, "document.querySelectorAll('.sv-busy').length === 0")
    until(browser, "document.querySelector('.sv-list b').textContent === 'ben works in paris'")  # it is in the list
    assert result(browser) == shown and browser.does("document.querySelector('#sv-model').value") == "image"


def test_words_of_errors_are_shown_and_markup_stays_text(browser: Browser, at: str) -> None:
    visit(browser, at)
    nasty = "<img src=x onerror=document.title='hit'> anna"
    write(browser, nasty)
    explained(browser)
    until(browser, f"document.querySelector('.sv-list b').textContent.startsWith({json.dumps(nasty[:20])})")
    assert "hit" not in browser.does("document.title")[:3]
    assert browser.does("document.querySelectorAll('img[src=x]').length") == 0 and browser.errors == []
    write(browser, "   ")
    until(browser, "!!document.querySelector('.sv-prediction .sv-error')")
    assert "nothing to explain" in texts(browser, ".sv-prediction")[0]
    browser.errors.clear()  # the browser reports the 422 itself


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_all_of_it(browser: Browser, at: str, dark: bool) -> None:
    visit(browser, at, width=390, height=800, dark=dark)
    explained(browser)
    assert browser.does("document.documentElement.scrollWidth") <= 390
    assert browser.does("getComputedStyle(document.body).backgroundColor") == (
        "rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)"
    )
    named = (
        "[...document.querySelectorAll('input, select, textarea, button')].filter(e => !(e.textContent || "
        "e.labels?.length || e.getAttribute('aria-label') || e.querySelector('img[alt]'))).map(e => e.outerHTML)"
    )
    assert browser.does(named) == []  # everything that can be used has a name


def test_a_comparison_is_drawn_and_results_are_put_side_by_side(browser: Browser, at: str) -> None:
    visit(browser, at)
    write(browser, "who is anna")
    first = explained(browser)
    for name in ("saliency", "generic_attention"):
        browser.does(f"document.querySelector('.sv-methods input[value={name}]').click()")
    second = explained(browser, other_than=first)
    until(browser, f"document.querySelector('.sv-list a').href.endsWith('{second}')")
    browser.does("[...document.querySelectorAll('.sv-list input')].slice(0, 2).forEach(i => i.click())")
    press(browser, "side by side")
    third = result(browser, other_than=second)
    assert sorted(texts(browser, ".wf-map h3")) == ["generic_attention", "saliency"]
    browser.does("document.querySelector('.sv-methods input[value=raw_attention]').click()")
    press(browser, "Compare methods")
    result(browser, other_than=third)
    assert (
        "saliency" in texts(browser, ".sv-still table")[0] and "raw_attention" in texts(browser, ".sv-still table")[0]
    )
    search = "(s => { s.value = 'who comparison'; s.dispatchEvent(new Event('input')); })"
    browser.does(f"{search}(document.querySelector('.sv-history input[type=search]'))")
    until(browser, "document.querySelectorAll('.sv-list li').length === 1")


# WCAG rules, with everything unfolded


@pytest.mark.parametrize(
    ("model", "shown", "dark"),
    [("text", "trust", False), ("text", "Compare methods", True), ("table", "layers × heads", True)],
)
def test_no_rule_is_broken(browser: Browser, at: str, model: str, shown: str, dark: bool) -> None:
    visit(browser, at, dark=dark)
    choose(browser, model)
    for name in ("saliency", "input_x_gradient"):
        browser.does(f"document.querySelector('.sv-methods input[value={name}]').click()")
    if model == "table":
        browser.does("document.querySelector('.sv-methods input[value=integrated_gradients]').click()")
    first = explained(browser)
    press(browser, shown)
    if shown == "Compare methods":
        result(browser, other_than=first)
    until(browser, "!document.querySelector('.sv-body').textContent.startsWith('working')", 120)
    browser.does("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.ask("Runtime.evaluate", expression=axe())
    assert browser.does(BROKEN) == []
