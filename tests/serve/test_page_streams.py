"""Pairs, sound, detectors and models that write, on the page; names of markup; WCAG rules. In a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from tests.serve.driving import choose, drop, explained, press, result, texts, until, up, visit, write
from tests.serve.served import explainer, model_of, served
from tests.support.browser import Browser
from tests.support.processors import picture
from tests.views.test_accessible import BROKEN, axe
from whyformer.serve.app import Served
from whyformer.serve.jobs import Jobs
from whyformer.serve.models import Models, ServedModel
from whyformer.serve.safety import written_sound
from whyformer.serve.store import Store
from whyformer.verbs import Explainer

KINDS = ("pair", "similarity", "sound", "detector", "translation")
NASTY = "<img src=x onerror=document.title='hit'>"


@pytest.fixture(scope="module")
def at(one_browser: Browser) -> Iterator[str]:
    with up(served(*KINDS), one_browser) as address:
        yield address


def asked(browser: Browser, at: str, model: str) -> str:
    visit(browser, at)
    choose(browser, model)
    return explained(browser)


def test_a_picture_with_a_text(browser: Browser, at: str) -> None:
    first = asked(browser, at, "pair")
    assert browser.does("document.querySelector('.sv-result .wf-stage img').src").startswith("data:image/jpeg")
    assert "what" in texts(browser, ".sv-result .wf-token")
    first = explained(browser, other_than=first)
    assert texts(browser, ".sv-difference") == []  # nothing was edited
    write(browser, "what is the cat")
    explained(browser, other_than=first)
    assert "cat" in texts(browser, ".sv-result .wf-token") and "cat" in texts(browser, ".sv-difference")[0]


def test_two_texts_and_how_alike_they_are(browser: Browser, at: str) -> None:
    first = asked(browser, at, "similarity")
    told = explainer("similarity").explain(("a cat on the mat", "two birds")).value
    assert texts(browser, ".sv-prediction p") == [f"similarity: {told:.3f} (cosine)"]
    assert "pairs of tokens" in texts(browser, ".sv-result")[0]  # what each pair adds
    write(browser, "a dog on the mat", ".sv-pair textarea")
    explained(browser, other_than=first)
    assert "cosine" in texts(browser, ".sv-difference")[0] and "dog" in texts(browser, ".sv-difference")[0]


def test_a_sound_is_decoded_by_the_browser_and_drawn_over_time(browser: Browser, at: str) -> None:
    first = asked(browser, at, "sound")
    assert len(texts(browser, ".sv-result .wf-moment")) > 50
    stereo = (np.sin(np.arange(4410) / 5) * 0.5).astype(np.float32)
    drop(browser, written_sound(stereo, 44_100), "x.wav")  # another rate than the model's
    until(browser, "document.querySelector('.sv-player').src.includes('/api/sounds/')")
    explained(browser, other_than=first)
    assert texts(browser, ".sv-result h2") == ["sound, 0.10 s"] and texts(browser, ".sv-difference") == []
    drop(browser, b"no sound", "x.mp3")
    until(browser, "document.querySelector('.sv-status').textContent.includes('cannot be read')")


def test_every_object_of_a_detector_is_explained(browser: Browser, at: str) -> None:
    visit(browser, at)
    choose(browser, "detector")
    assert "no detection is above 0.5" in texts(browser, ".sv-prediction")[0]
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


def test_written_tokens_are_looked_at_one_by_one(browser: Browser, at: str) -> None:
    asked(browser, at, "translation")
    assert "it writes:" in texts(browser, ".sv-prediction")[0]
    assert (
        "The first 20 of" in texts(browser, ".sv-body > div > p")[0] and len(texts(browser, ".sv-items button")) == 20
    )
    browser.does("document.querySelectorAll('.sv-items button')[3].click()")
    assert texts(browser, ".sv-result .wf-live-view .wf-line .wf-label") == [
        "cat",
        "the",
    ]  # what it writes are no words
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
        browser.does("document.querySelector('.sv-methods input[value=integrated_gradients]').click()")
        browser.does("document.querySelector('.sv-methods input[value=saliency]').click()")
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
        until(browser, "document.querySelectorAll('.sv-list li').length === 3")
        assert browser.does("document.querySelectorAll('img[src=x]').length") == 0
        assert not browser.does("document.title").startswith("hit") and browser.errors == []
        page = browser.does(f"fetch('/api/results/{shown}/export?format=html').then(r => r.text())")
        assert "<img src=x" not in page and "&lt;img src=x" in page


# WCAG rules, with everything unfolded


@pytest.mark.parametrize(
    ("model", "tab", "dark"),
    [("pair", "layers × heads", False), ("similarity", "trust", True), ("detector", "explanation", False),
     ("translation", "", True), ("sound", "explanation", True)],
)  # fmt: skip
def test_no_rule_is_broken(browser: Browser, at: str, model: str, tab: str, dark: bool) -> None:
    width = 390 if dark else 1300  # a phone, too
    visit(browser, at, width=width, dark=dark)
    choose(browser, model)
    explained(browser)
    if tab:
        press(browser, tab, ".sv-result")
        until(browser, "!document.querySelector('.sv-body').textContent.startsWith('working')", 120)
    browser.does("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.does("document.documentElement.scrollWidth") <= width
    browser.ask("Runtime.evaluate", expression=axe())
    assert browser.does(BROKEN) == []


def test_what_is_on_screen_is_taken_away(browser: Browser, at: str) -> None:
    shown = asked(browser, at, "pair")
    links = browser.does(
        "[...document.querySelectorAll('.sv-files a')].map(a => [a.textContent, a.getAttribute('href')])"
    )
    assert [words for words, _ in links] == ["page", "JSON", "PNG", "CSV", "link"] and links[-1][1] == f"/r/{shown}"
    kinds = browser.does(
        f"Promise.all({json.dumps([to for _, to in links[:-1]])}.map(to => fetch(to).then(r => "
        "[r.status, r.headers.get('content-type').split(';')[0], r.headers.get('content-disposition').split(';')[0]])))"
    )
    assert kinds == [[200, kind, "attachment"] for kind in ("text/html", "application/json", "image/png", "text/csv")]
