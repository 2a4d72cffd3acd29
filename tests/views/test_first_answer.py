"""What every picture says first and last, in words: the answer for every task, the method, what to doubt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.views import samples
from whyformer.registry import list_methods
from whyformer.results.types import Choice, Cost, Explanation, Generation, Target, Units
from whyformer.views import view_of
from whyformer.views.explained import side_by_side
from whyformer.views.header import (
    answer,
    check_words,
    cost_of,
    decimals,
    ends,
    explained,
    fixed,
    method_words,
    options,
)  # fmt: skip
from whyformer.views.marks import Scale
from whyformer.views.text_marks import folded_units, folded_words

SAID = Target(1, "positive", probability=0.9687, next=(Choice(0, "negative", 0.0313), Choice(2, "none", 1e-5)))
PARIS = Target(7, " Paris")
ANSWERS = {
    "classes": (samples.text(prediction=SAID), "positive (96.9 %), next negative (3.1 %)"),
    "a token": (
        samples.text(target=PARIS, prediction=replace(PARIS, probability=0.5, next=(Choice(8, " Lyon", 0.25),))),
        "' Paris' (50.0 %), next ' Lyon' (25.0 %)",
    ),
    "a number": (samples.text(target=Target(0, "LABEL_0"), prediction=Target(0, "LABEL_0"), value=2.5), "2.5"),
    "a named number": (
        samples.text(target=Target(0, "price"), prediction=Target(0, "price"), value=2.5),
        "price = 2.5",
    ),
    "another class": (
        samples.text(target=Target(0, "negative"), prediction=SAID),
        "positive (96.9 %), next negative (3.1 %); explained is negative",
    ),
    "similarity": (samples.text(scalar="cosine", value=0.8123), "similarity 0.8123"),
    "an answer": (
        samples.text(scalar="log_probability", value=np.log(0.25), target=Target(0, "Paris"), prediction=Target(0)),
        "Paris (25.0 % likely as a whole)",
    ),
}


EXPLAINED = {
    "logit of 'positive' = 3.431": {},
    "log-odds of 'negative' = -1.5 (not the prediction)": {
        "target": Target(0, "negative"), "scalar": "log_odds", "value": -1.5},
    "logit of 'positive' rather than 'negative' = 3.431": {"target": Target(1, "positive", 0, "negative")},
    "logit of '7' = 3.431": {"target": Target(7), "prediction": Target(7)},
}  # fmt: skip
OPTIONS = {"options": {"steps": 20, "baseline": None, "heads": "max"}}
WORDS = [
    *((explained, how, words) for words, how in EXPLAINED.items()),
    (options, OPTIONS, "steps=20, heads=max"),  # all, where it is not known which were changed
    (options, OPTIONS | {"changed": ("steps",)}, "steps=20"),
    (options, OPTIONS | {"changed": ()}, ""),
    (lambda e: cost_of(e.cost), {}, "1 forward + 1 backward, 12 ms"),
    (lambda e: cost_of(e.cost), {"cost": Cost(52, 50, 2.34)}, "52 forwards + 50 backwards, 2.3 s"),
    (lambda e: cost_of(e.cost), {"cost": Cost(1, 0, 0.0001)}, "1 forward, < 1 ms"),
    (lambda e: cost_of(e.cost), {"cost": Cost()}, "no pass, < 1 ms"),
]


@pytest.mark.parametrize(("tell", "how", "words"), WORDS)
def test_what_was_explained_how_and_at_what_cost(tell: Callable[..., str], how: dict[str, Any], words: str) -> None:
    assert tell(samples.text(**how)) == words


@pytest.mark.parametrize("task", ANSWERS)
def test_the_answer_has_what_the_model_knows_of_it(task: str) -> None:
    explanation, words = ANSWERS[task]
    assert answer(explanation).value == words
    for view in (view_of(explanation), side_by_side([explanation, explanation.replace(method="other")])):
        assert view.facts == (answer(explanation),)


@pytest.mark.parametrize("target", [Target(0, "negative"), Target(1, "positive"), Target(0, "negative", 1, "positive")])
def test_what_is_not_the_prediction_is_asked_for_in_the_title(target: Target) -> None:
    """Before any score is read; also where methods stand side by side."""
    explanation = samples.text(target=target, prediction=SAID)
    question = {None: "Why 'negative'? · ", 1: "Why 'negative' rather than 'positive'? · "}[target.versus]
    asked = question if target.index == 0 else ""
    for view in (view_of(explanation), side_by_side([explanation, explanation.replace(method="other")])):
        assert view.title == asked + view_of(explanation.replace(target=SAID)).title
        others = target.index == 0 and target.versus is None
        assert view.facts[0].value.endswith("; explained is negative") == others


def test_the_ends_of_a_scale_are_numbers_as_bars_have_them() -> None:
    assert ends(Scale(0.0, 0.037849)) == ("0", fixed(0.037849, decimals([0.037849, 0.01]))) == ("0", "0.0378")
    assert ends(Scale(-3.4567, 3.4567, True)) == ("-3.46", "3.46")
    for high, told in ((1.0, "1"), (0.8, "0.8"), (0.0, "0")):
        assert ends(Scale(0.0, high)) == ("0", told)
    assert ends(Scale(0.99123, 0.99131)) == ("0.99123", "0.99131")  # not 0.991 twice
    assert ends(Scale(0.0, 8.1234e14)) == ("0", "8.12e14") and ends(Scale(0, 120000.0)) == ("0", "120000")
    assert ends(Scale(-0.5, 0.5, True, shares=True)) == ("-50.0 %", "50.0 %")


def test_scores_of_a_column_have_the_same_decimals_or_one_power_of_ten() -> None:
    """A product of norms through many layers reaches 8e14."""
    columns = ([0.00099815], [1.03, 0.1], [12345.6], [0.0], [])
    assert [decimals(column) for column in columns] == [6, 2, 0, 1, 1]
    scores = [8.1234e14, -3.1e13, 1.0]
    assert [fixed(score, decimals(scores)) for score in scores] == ["8.12e14", "-0.31e14", "0.00e14"]
    assert [fixed(score, decimals([12345.6, 1.0])) for score in (12345.6, 1.0)] == ["12346", "1"]


def test_every_method_has_a_meaning_in_plain_words() -> None:
    meanings = [m.meaning for m in list_methods().values() if m.run.__module__.startswith("whyformer.")]
    assert all(0 < len(words) <= 80 and words[0].islower() and not words.endswith(".") for words in meanings)


def test_the_default_is_named() -> None:
    assert method_words("generic_attention", "text").startswith("generic_attention, the default for texts: attention")
    assert method_words("generic_attention", None).startswith("generic_attention: attention")
    assert method_words("of_a_plugin", "sound") == "of_a_plugin, the default for such models"


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
    only = text.replace(scores=np.ones(12, np.float32), units=replace(text.units, special=(True,) * 12))
    assert folded_units(only) == [] and folded_words(only) == ""  # nothing else is there to be listed


@pytest.mark.parametrize("spans", [((0, 3), (3, 6), (6, 10), (0, 0)), None])
def test_special_tokens_that_were_written_are_not_said_to_be_added(spans: tuple[tuple[int, int], ...] | None) -> None:
    units = Units(
        ("<s>", "the", "<im>", "</s>"), (True, False, True, True), ("text",) * 4, text="<s>the<im>", spans=spans
    )
    shown = samples.text(units=units, scores=np.array([0.5, 1, 0.5, 2], np.float32), matrix=None)
    assert folded_words(shown) == (
        "<s> and <im>, special and written in the text, hold 25.0 % of all scores (1) and have no bar. "
        "</s>, added by the tokenizer, holds 50.0 % of all scores (2) and has no bar."
    )


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
