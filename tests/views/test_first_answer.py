"""What every picture says first and last, in words: the answer for every task, the method, what to doubt."""

from __future__ import annotations

import numpy as np
import pytest

from tests.views import samples
from whyformer.registry import list_methods
from whyformer.types import Choice, Explanation, Generation, Target
from whyformer.views import view_of
from whyformer.views.facts import answer, details, doubts
from whyformer.views.folding import folded_units, folded_words
from whyformer.views.plain_words import MEANINGS, check_words, method_words

SAID = Target(1, "positive", probability=0.9687, next=(Choice(0, "negative", 0.0313),))
ANSWERS = {
    "classes": (samples.text(prediction=SAID), "positive (96.9 %), next negative (3.1 %)"),
    "a token": (
        samples.text(prediction=Target(7, " Paris", probability=0.5, next=(Choice(8, " Lyon", 0.25),))),
        "' Paris' (50.0 %), next ' Lyon' (25.0 %)",
    ),
    "a number": (samples.text(target=Target(0, "LABEL_0"), prediction=Target(0, "LABEL_0"), value=2.5), "2.5"),
    "a named number": (
        samples.text(target=Target(0, "price"), prediction=Target(0, "price"), value=2.5),
        "price = 2.5",
    ),
    "another class": (samples.text(target=Target(0, "negative"), prediction=Target(1, "positive")), "positive"),
    "similarity": (samples.text(scalar="cosine", value=0.8123), "similarity 0.8123"),
    "an answer": (
        samples.text(scalar="log_probability", value=np.log(0.25), target=Target(0, "Paris"), prediction=Target(0)),
        "Paris (25.0 % likely as a whole)",
    ),
}


@pytest.mark.parametrize("task", ANSWERS)
def test_the_answer_has_what_the_model_knows_of_it(task: str) -> None:
    explanation, words = ANSWERS[task]
    assert answer(explanation).value == words and view_of(explanation).facts == (answer(explanation),)


def test_every_method_has_a_meaning_in_plain_words() -> None:
    assert set(MEANINGS) == {name for name, m in list_methods().items() if m.run.__module__.startswith("whyformer.")}
    assert all(len(words) <= 80 and words[0].islower() and not words.endswith(".") for words in MEANINGS.values())


def test_the_default_is_named() -> None:
    assert method_words("generic_attention", "text").startswith("generic_attention, the default for texts: attention")
    assert method_words("generic_attention", None).startswith("generic_attention: attention")
    assert method_words("of_a_plugin", "sound") == "of_a_plugin, the default for such models"


def test_what_was_not_tested_says_so_and_what_is_doubtful_says_that() -> None:
    assert details(samples.text())[-1].name == "doubt" and "not tested" in details(samples.text())[-1].value
    warned = samples.text(warnings=("the text was cut.",))
    assert all(fact.name != "doubt" for fact in details(warned)) and doubts(warned) == ("the text was cut.",)


def test_an_error_is_told_with_what_it_means_and_its_figures() -> None:
    words = check_words("conservation error", "3.101", "98.1 %")
    assert "98.1 % of it is missing (conservation error 3.101)" in words and "not how much each one counts" in words
    assert "off by 0.3 (5.0 % of the largest score) (new error)" in check_words("new error", "0.3", "5.0 %")


def test_folded_units_are_what_has_no_bar() -> None:
    text: Explanation = samples.text()
    assert folded_units(text) == [0, 11]
    assert folded_words(text) == (
        "[CLS] and [SEP], added by the tokenizer, hold 58.5 % of all scores (1.29) and have no bar."
    )
    assert folded_words(samples.image()).startswith("[CLS], added by the model, holds ")
    only = text.replace(scores=np.ones(12, np.float32), units=text.units.__class__(**{
        **{name: getattr(text.units, name) for name in ("labels", "stream")}, "special": (True,) * 12
    }))  # fmt: skip
    assert folded_units(only) == [] and folded_words(only) == ""  # nothing else is there to be listed


def test_an_answer_of_several_tokens_says_how_sure_the_model_was() -> None:
    said = samples.generation()
    tokens = [
        e.replace(
            prediction=Target(e.target.index, e.target.label, probability=0.9 - i / 10, next=(Choice(99, "so", 0.05),))
        )
        for i, e in enumerate(said.tokens)
    ]
    (fact,) = view_of(Generation(tuple(tokens), said.text)).facts
    assert fact.value == "70.0 % per token on average; least sure of ' him.' (50.0 %), next so (5.0 %)"
