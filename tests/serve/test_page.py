"""The page of ``whyformer serve`` in a real browser, before a real server. Skipped loudly without a browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from tests.serve.served import (
    TEXT,
    choose,
    drop,
    explained,
    explainer,
    model_of,
    png,
    press,
    result,
    served,
    texts,
    tick,
    until,
    up,
    visit,
    write,
)
from tests.support.browser import Browser
from tests.support.processors import picture
from tests.views.test_accessible import BROKEN, axe
from whyformer.serve.app import Served
from whyformer.serve.jobs import Jobs
from whyformer.serve.models import Models, ServedModel
from whyformer.serve.safety import written_sound
from whyformer.serve.store import Store
from whyformer.verbs import Explainer


@pytest.fixture(scope="module")
def whole() -> Served:
    return served("text", "language", "image", "table")


@pytest.fixture(scope="module")
def at(whole: Served, chromium: Browser) -> Iterator[str]:
    with up(whole, chromium) as address:
        yield address


def test_the_first_visit_predicts_at_once_and_explains_on_a_click(browser: Browser, at: str) -> None:
    visit(browser, at)
    assert browser.does("document.querySelector('.sv-area').value") == TEXT
    until(browser, "document.querySelectorAll('.sv-class').length === 3")
    assert len(texts(browser, ".sv-said")) == 1
    assert "<b>maybe</b>" in " ".join(texts(browser, ".sv-class button"))
    example = result(browser)  # of the first sample, without a click
    assert texts(browser, ".sv-example")[0].startswith("Example: the first sample")
    assert browser.does("location.pathname") == "/" and "anna" in texts(browser, ".sv-result .wf-token")
    identity = explained(browser, other_than=example)
    assert browser.does("location.pathname") == f"/r/{identity}" and not texts(browser, ".sv-example")
    visit(browser, at)  # a second visit shows the same one
    assert result(browser) == example
    identity = explained(browser, other_than=example)
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
    footer = texts(browser, ".sv-result .wf-footer")[0]
    assert f"supports {other!r}" in footer and f"rather than {other!r} = " in footer and "probabilities " in footer
    sides = "[...document.querySelectorAll('.sv-question select')].map(s => s.selectedOptions[0].textContent)"
    assert browser.does(sides) == [texts(browser, ".sv-result .wf-first .wf-label")[0], other]
    visit(browser, f"{at}/r/{second}")  # the question comes back with its link
    until(browser, "document.querySelectorAll('.sv-class').length === 3")
    assert browser.does(sides)[1] == other
    until(browser, "document.querySelectorAll('.sv-grey').length === 2")  # the rehearsal is over
    assert "no image" in texts(browser, ".sv-grey small")[0]
    assert browser.does("document.querySelector('.sv-grey input').disabled")
    tick(browser, "saliency", "attn_lrp")
    explained(browser, other_than=second)
    assert [words.split(" ")[0] for words in texts(browser, ".wf-map h3")] == ["two_ended", "saliency", "attn_lrp"]


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
    write(browser, "90", ".sv-cell input")
    until(browser, f"document.querySelector('.sv-said span').textContent !== {json.dumps(before)}")
    tick(browser, "saliency", "integrated_gradients")  # the dear one away
    first = explained(browser)
    browser.does("document.querySelector('.sv-result button.wf-more').click()")
    assert any(label.startswith("age = 90") for label in texts(browser, ".sv-result .wf-label"))
    write(browser, "30", ".sv-cell input")
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
    assert "too few to rank methods" in texts(browser, ".sv-advice")[0]
    assert texts(browser, ".sv-this-row th")[0].startswith("two_ended")
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
    assert len(texts(browser, ".sv-result")) == len(texts(browser, ".sv-example"))  # the example at most
    explained(browser)


def test_many_jobs_do_not_take_all_connections(browser: Browser, at: str, whole: Served, gate: threading.Event) -> None:
    visit(browser, at)
    result(browser)  # of the first sample: a later visit does not ask for it
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
    assert "is empty" in texts(browser, ".sv-prediction")[0]
    browser.errors.clear()  # the browser reports the 422 itself


def test_a_comparison_is_drawn_and_results_are_put_side_by_side(browser: Browser, at: str) -> None:
    visit(browser, at)
    write(browser, "who is anna")
    first = explained(browser)
    tick(browser, "saliency")
    second = explained(browser, other_than=first)
    until(browser, f"document.querySelector('.sv-list a').href.endsWith('{second}')")
    browser.does("[...document.querySelectorAll('.sv-list input')].slice(0, 2).forEach(i => i.click())")
    press(browser, "side by side")
    third = result(browser, other_than=second)
    assert {words.split(" ")[0] for words in texts(browser, ".wf-map h3")} == {"two_ended", "saliency"}
    tick(browser, "raw_attention")
    press(browser, "Compare methods")
    result(browser, other_than=third)
    assert all(name in texts(browser, ".sv-still table")[0] for name in ("saliency", "raw_attention"))
    write(browser, "who comparison", ".sv-history input[type=search]")
    until(browser, "document.querySelectorAll('.sv-list li').length === 1")


# Pairs, sound, detectors and models that write; names of markup


KINDS = ("pair", "similarity", "sound", "detector", "translation")
NASTY = "<img src=x onerror=document.title='hit'>"


@pytest.fixture(scope="module")
def streams(chromium: Browser) -> Iterator[str]:
    with up(served(*KINDS), chromium) as address:
        yield address


def asked(browser: Browser, streams: str, model: str) -> str:
    visit(browser, streams)
    choose(browser, model)
    return explained(browser)


def test_a_picture_with_a_text(browser: Browser, streams: str) -> None:
    first = asked(browser, streams, "pair")
    assert browser.does("document.querySelector('.sv-result .wf-stage img').src").startswith("data:image/jpeg")
    assert "what" in texts(browser, ".sv-result .wf-token")
    links = "[...document.querySelectorAll('.sv-files a')].map(a => [a.textContent, a.getAttribute('href')])"
    files = {"page": "html", "JSON": "json", "PNG": "png", "CSV": "csv"}
    taken = [[name, f"/api/results/{first}/export?format={form}"] for name, form in files.items()]
    assert browser.does(links) == [*taken, ["link", f"/r/{first}"]]
    first = explained(browser, other_than=first)
    assert texts(browser, ".sv-difference") == []  # nothing was edited
    write(browser, "what is the cat")
    explained(browser, other_than=first)
    assert "cat" in texts(browser, ".sv-result .wf-token") and "cat" in texts(browser, ".sv-difference")[0]


def test_two_texts_and_how_alike_they_are(browser: Browser, streams: str) -> None:
    first = asked(browser, streams, "similarity")
    told = explainer("similarity").explain(("a cat on the mat", "two birds")).value
    assert texts(browser, ".sv-prediction p") == [f"similarity: {told:.3f} (cosine)"]
    assert "pairs of tokens" in texts(browser, ".sv-result")[0]  # what each pair adds
    write(browser, "a dog", ".sv-pair textarea")
    explained(browser, other_than=first)
    assert "cosine" in texts(browser, ".sv-difference")[0] and "dog" in texts(browser, ".sv-difference")[0]


def test_a_sound_is_decoded_by_the_browser_and_drawn_over_time(browser: Browser, streams: str) -> None:
    first = asked(browser, streams, "sound")
    assert len(texts(browser, ".sv-result .wf-moment")) > 50
    stereo = (np.sin(np.arange(4410) / 5) * 0.5).astype(np.float32)
    drop(browser, written_sound(stereo, 44_100), "x.wav")  # another rate than the model's
    until(browser, "document.querySelector('.sv-player').src.includes('/api/sounds/')")
    explained(browser, other_than=first)
    assert texts(browser, ".sv-result h2") == ["sound, 0.10 s"] and texts(browser, ".sv-difference") == []
    drop(browser, b"no sound", "x.mp3")
    until(browser, "document.querySelector('.sv-status').textContent.includes('cannot be read')")


def test_every_object_of_a_detector_is_explained(browser: Browser, streams: str) -> None:
    visit(browser, streams)
    choose(browser, "detector")
    write(browser, "0.99", ".sv-question input")
    until(browser, "document.querySelector('.sv-prediction').textContent.includes('no detection is above 0.99')")
    write(browser, "0.3", ".sv-question input")
    until(browser, "document.querySelectorAll('.sv-class').length > 1")  # what it says by this measure
    explained(browser)
    every = explainer("detector").explain(picture(), target=0.3)
    names = [f"{i + 1}: {each.target}, query {each.target.position}" for i, each in enumerate(every)]
    assert len(names) > 1 and texts(browser, ".sv-items button") == names
    assert f"{len(names)} detections" in texts(browser, ".sv-still h2, .sv-still h3")
    frame = "document.querySelector('.wf-stage .wf-frame').getAttribute('style')"
    first = browser.does(frame)
    visit(browser, browser.does("location.href"))  # by its link: all of them, and from which probability on
    assert texts(browser, ".sv-items button") == names
    assert browser.does("document.querySelector('.sv-question input').value") == "0.3"
    press(browser, names[-1])
    assert browser.does(frame) != first and texts(browser, ".wf-stage .wf-frame b")[0] == str(every[-1].target)
    press(browser, "trust", ".sv-result")  # of the one that is chosen
    until(browser, "document.querySelectorAll('.sv-curve').length === 2", 120)
    press(browser, names[0])
    until(browser, "!document.querySelector('.sv-curve')")
    until(browser, "document.querySelectorAll('.sv-curve').length === 2", 120)


def test_written_tokens_are_looked_at_one_by_one(browser: Browser, streams: str) -> None:
    asked(browser, streams, "translation")
    assert "generated:" in texts(browser, ".sv-prediction")[0]
    assert "The first 20 of" in texts(browser, ".sv-body > div > p")[0]
    assert len(texts(browser, ".sv-items button")) == 20
    browser.does("document.querySelectorAll('.sv-items button')[3].click()")
    shown = texts(browser, ".sv-result .wf-live-view .wf-line .wf-label")
    assert shown == ["cat", "the"]  # what it writes are no words
    browser.does("document.querySelector('.sv-result .wf-tools input[type=checkbox]').click()")
    assert len(texts(browser, ".sv-result .wf-live-view .wf-line")) == 3 + 4  # the source, and what was written before
    assert texts(browser, ".sv-tabs button") == []


# Names of markup


@cache
def nasty_models() -> Served:
    """A model, a column, a category and classes that are called so."""
    from whyformer.demo import load_adult
    from whyformer.inputs.table_schema import Table

    model, table = load_adult()
    renamed = lambda name: f"{NASTY} {name}"  # noqa: E731
    other = Table(
        numerical=tuple(map(renamed, table.numerical)),
        categorical={renamed(n): tuple(map(renamed, values)) for n, values in table.categorical.items()},
        classes=tuple(map(renamed, table.classes)),
        preprocess=table.preprocess,
    )
    table_model = ServedModel(renamed("table"), "table", Explainer(model, other))
    text = model_of("text")
    return Served(Models([table_model, ServedModel(renamed("text"), "text", text.explainer)]), Store(None), Jobs())


def test_names_of_models_columns_and_classes_stay_text_everywhere(browser: Browser) -> None:
    with up(nasty_models(), browser) as address:
        visit(browser, address)
        until(browser, "!!document.querySelector('.sv-class')")
        tick(browser, "integrated_gradients", "saliency")
        shown = explained(browser)
        write(browser, "60", ".sv-cell input")
        shown = explained(browser, other_than=shown)
        assert NASTY in texts(browser, ".sv-difference")[0]
        for tab, there in (("layers × heads", ".sv-head-button"), ("trust", ".sv-curve")):
            press(browser, tab, ".sv-result")
            until(browser, f"!!document.querySelector('{there}')", 120)
            assert browser.does("document.querySelectorAll('img[src=x]').length") == 0
        press(browser, "Compare methods")
        result(browser, other_than=shown)
        write(browser, "img", ".sv-history input[type=search]")
        until(browser, "document.querySelectorAll('.sv-list li').length === 4")  # the example, too
        assert browser.does("document.querySelectorAll('img[src=x]').length") == 0
        assert not browser.does("document.title").startswith("hit") and browser.errors == []
        page = browser.does(f"fetch('/api/results/{shown}/export?format=html').then(r => r.text())")
        assert "<img src=x" not in page and "&lt;img src=x" in page


# WCAG rules, with everything unfolded, on a phone in the dark


@pytest.mark.parametrize(
    ("model", "shown", "dark"),
    [
        ("text", "trust", False),
        ("text", "Compare methods", True),
        ("table", "layers × heads", True),
        ("pair", "layers × heads", False),
        ("detector", "trust", True),
        ("sound", "", False),
    ],
)
def test_no_rule_is_broken(browser: Browser, at: str, streams: str, model: str, shown: str, dark: bool) -> None:
    width = 390 if dark else 1300
    visit(browser, streams if model in KINDS else at, width=width, dark=dark)
    choose(browser, model)
    if model not in KINDS:
        tick(browser, "saliency", "input_x_gradient", *["integrated_gradients"] * (model == "table"))
    first = explained(browser)
    if shown:
        press(browser, shown)
    if shown == "Compare methods":
        result(browser, other_than=first)
    ground = browser.does("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
    until(browser, "!document.querySelector('.sv-body').textContent.startsWith('working')", 120)
    browser.does("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.does("document.documentElement.scrollWidth") <= width
    browser.ask("Runtime.evaluate", expression=axe())
    assert browser.does(BROKEN) == []
