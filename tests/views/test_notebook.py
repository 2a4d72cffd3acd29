"""Results in a notebook: short words, a frame, and a widget whose questions a kernel answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whyformer as wf
from tests.support.browser import Browser
from tests.views import samples
from tests.views.conftest import opened
from whyformer.errors import BadInput, NotOffered
from whyformer.results.types import ByMethod, Choice, Explanation, Explanations, Target
from whyformer.views import side_by_side
from whyformer.views.html import live as notebook
from whyformer.views.html.live import answer, as_json, widget_of

SAID = Target(1, "positive", probability=0.9, next=(Choice(0, "negative", 0.08), Choice(2, "neutral", 0.02)))


def explanation(method: str = "generic_attention", **changes: Any) -> Explanation:
    return samples.text(method, **({"prediction": SAID} | changes))


def rather_than(other: int, method: str = "generic_attention", scores: Any = None) -> Explanation:
    """Why positive, and not another class: scores the other way round, so that they can be told from the first."""
    label = {0: "negative", 2: "neutral"}[other]
    target = Target(1, "positive", versus=other, versus_label=label)
    turned = np.array(samples.SCORES, np.float32)[::-1].copy() if scores is None else scores
    return explanation(method, target=target, scores=turned, value=1.25, signed=True)


def test_of_an_explanation_it_says_what_matters() -> None:
    assert repr(explanation()) == (
        "Explanation(generic_attention of 'I did not like it, but unbelievable!',\n"
        "    positive: not 0.3, ##believable 0.2, un 0.15, …)"
    )


def test_parts_of_a_list_are_drawn_as_well() -> None:
    several = Explanations([explanation(), explanation(), explanation()])
    assert isinstance(several[:2], Explanations) and len(several[:2]) == 2
    assert isinstance(several[0], Explanation)


def test_a_class_is_clicked_and_its_maps_are_shown(browser: Browser, tmp_path: Path) -> None:
    shown = explanation().view(others=[rather_than(0)])
    opened(browser, shown, tmp_path)
    first = "document.querySelector('.wf-lines .wf-number').textContent"
    before = browser.does(first)
    browser.point(".wf-asks[data-label=negative]", click=True)
    assert browser.does("document.querySelector('.wf-why').textContent").startswith(
        "Why positive rather than negative? logit of 'positive' rather than 'negative' = 1.25"
    )
    footer = browser.text(".wf-footer")
    assert "explainedlogit of 'positive' rather than 'negative' = 1.25" in " ".join(footer.split())
    assert "Blue supports 'positive', orange supports 'negative'" in footer
    assert "logit of 'positive' = 3.431" not in footer
    assert browser.does("document.querySelector('.wf-asks').getAttribute('aria-pressed')") == "true"
    scores = browser.does("document.querySelector('.wf-token[data-units=\"8\"]').getAttribute('aria-label')")
    assert scores.endswith(f"{samples.SCORES[3]:.3f}")
    browser.does("document.querySelector('.wf-why button').click()")
    assert "logit of 'positive' = 3.431" in browser.text(".wf-footer") and "it supports" not in browser.text(
        ".wf-footer"
    )
    assert browser.does(first) == before and browser.does("document.querySelector('.wf-why').textContent") == ""
    # Of a class that nobody explained the page says how to ask.
    browser.point(".wf-asks[data-label=neutral]", click=True)
    assert 'target=("positive", "neutral")' in browser.does("document.querySelector('.wf-why code').textContent")


def test_side_by_side_all_methods_turn_to_the_other_class(browser: Browser, tmp_path: Path) -> None:
    names = ("generic_attention", "occlusion")
    both = side_by_side([explanation(n) for n in names], others=[rather_than(0, n) for n in reversed(names)])
    opened(browser, both, tmp_path)
    browser.point(".wf-asks[data-label=negative]", click=True)
    assert browser.does("[...document.querySelectorAll('.wf-map h3')].map(e => e.textContent)") == list(names)


def test_others_must_be_of_this_input() -> None:
    short = rather_than(0).replace(units=replace(samples.table().units), scores=np.zeros(3, np.float32))
    with pytest.raises(BadInput, match="same input"):
        explanation().view(others=[short])
    with pytest.raises(BadInput, match="occlusion"):
        explanation().view(others=[rather_than(0, "occlusion")])


def test_without_a_kernel_the_widget_is_the_page_itself() -> None:
    shown = explanation().view()
    assert widget_of(shown) is shown
    assert explanation().widget()._repr_html_().startswith("<iframe")


def test_the_kernel_is_asked_for_the_class_that_was_clicked() -> None:
    asked: list[Any] = []

    def ask(target: Any) -> Any:
        asked.append(target)
        return Explanations([explanation(), rather_than(target[1])])

    page = Explanations([explanation(), explanation()]).view()
    told = answer(page, ask, {"number": "7", "label": "neutral", "place": 1})
    assert asked == [(None, 2)] and told["number"] == "7"
    assert told["question"]["words"] == "Why positive rather than neutral?" and told["question"]["label"] == "neutral"
    assert answer(page, ask, {"number": "8", "label": "negative", "place": 0})["question"] is None  # the prediction

    def refuses(target: Any) -> Any:
        raise NotOffered("not of this model")

    assert "not of this model" in answer(page, refuses, {"number": "9", "label": "negative"})["error"]
    by_method = ByMethod({"generic_attention": rather_than(0), "occlusion": rather_than(0, "occlusion")})
    both = answer(page, lambda target: by_method, {"number": "1", "label": "negative"})
    assert [m["name"] for m in both["question"]["maps"]] == ["generic_attention", "occlusion"]
    json.loads(as_json(told))


def test_a_widget_hands_questions_on_and_answers_back(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its module in a browser, with a model that stands for the notebook's."""
    monkeypatch.setattr(notebook, "_has_kernel", lambda: True)
    shown = explanation()
    widget = shown.widget(ask=lambda target: rather_than(target[1]))
    assert "data-asks" in widget.page and "data-asks>" not in shown.widget().page
    told = answer(shown.view(), lambda target: rather_than(target[1]), {"number": "NUMBER", "label": "negative"})
    host = tmp_path / "host.html"
    module = widget._esm.replace("export default", "const module =")
    host.write_text(
        f"<!doctype html><body><div id=cell></div><script type=module>{module}"
        "const hear = {}; const model = {get: () => JSON.parse(document.getElementById('page').textContent),"
        "on: (name, call) => { hear[name] = call; }, off: () => {}, send: (question) => { window.asked = question; "
        f"hear['msg:custom']({{...{as_json(told)}, number: question.number}}); }}}};"
        "module.render({model, el: document.getElementById('cell')});</script>"
        f"<script id=page type=application/json>{as_json(widget.page)}</script></body>",
        encoding="utf-8",
    )
    browser.open(host)
    inner = "document.querySelector('iframe').contentDocument"
    ready = f"new Promise(r => {{ const t = setInterval(() => {{ const b = {inner}.querySelector('.wf-asks'); "
    browser.does(ready + "if (b) { clearInterval(t); b.click(); setTimeout(r, 200); } }, 50); })")
    assert browser.does("window.asked.label") == "negative"
    assert "rather than negative" in browser.does(f"{inner}.querySelector('.wf-why').textContent")


def test_a_real_question_is_answered() -> None:
    from functools import partial

    from whyformer.demo import load_sentiment

    model, tokenizer = load_sentiment()
    ask = partial(wf.explain, model, "I cannot wait for next time", processor=tokenizer)
    shown = ask()
    other = str(shown.prediction.next[0])
    told = answer(shown.view(), ask, {"number": "1", "label": other})
    expected = ask(target=(None, other))
    assert told["question"]["maps"][0]["scores"] == pytest.approx(expected.scores, rel=1e-4)
