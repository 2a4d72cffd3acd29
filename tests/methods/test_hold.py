"""hold: what is said to be always there does not play, whatever it is called by; the rest is a game in its company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.support import language
from whyformer.errors import BadInput, NotAllowed

PROMPT = "The dog ran home . The cat sat on the mat . Where sat the cat ?"
QUESTION = "Where sat the cat ?"


class OnlyTogether(nn.Module):
    """The second part counts where the first is there; the third counts by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        score = (x[:, 0] * x[:, 1] + x[:, 2]) * self.scale
        return torch.stack([score, torch.zeros_like(score)], 1)


def of_three(method: str, **how: Any) -> wf.Explanation:
    return wf.explain(OnlyTogether(), (torch.ones(1, 3),), method=method, target=0, replace="zero", **how)[0]


@pytest.mark.parametrize("method", ["two_ended", "shap"])
def test_what_is_held_is_company_for_the_others(method: str) -> None:
    np.testing.assert_allclose(of_three(method).scores, [0.5, 0.5, 1], atol=1e-6)
    held = of_three(method, hold=0)
    np.testing.assert_allclose(held.scores, [0, 1, 1], atol=1e-6)
    np.testing.assert_allclose(of_three(method, hold=[0, -1]).scores, [0, 1, 0], atol=1e-6)
    assert held.options["hold"] == 0 and held.cost.forwards < of_three(method).cost.forwards


def test_of_shapley_values_the_base_is_what_is_held_alone() -> None:
    held = of_three("shap", hold=2)
    assert any("was held" in words for words in held.warnings) and not of_three("shap").warnings
    assert held.base == pytest.approx(1) and held.checks["additivity_error"] < 1e-6


def test_a_stretch_of_text_a_label_and_a_number_are_the_same() -> None:
    model, tokenizer = wf.demo.load_sentiment()

    def held(hold: Any) -> wf.Explanation:
        return wf.explain(model, "a gorgeous film with a dull end", tokenizer, method="two_ended", hold=hold)

    labels = list(held("gorgeous").units.labels)
    first, last = labels.index("gorgeous"), labels.index("film")
    stretch = held("gorgeous film")
    assert not stretch.scores[[first, last]].any() and stretch.scores.any()
    assert "'gorgeous film' was held: always there" in stretch.warnings[-1]
    for same in (["gorgeous", "film"], [first, last], [first, "film"], [first - len(labels), last]):
        np.testing.assert_array_equal(held(same).scores, stretch.scores)
    assert held("gorgeous fil").scores[last] == 0, "a token that the text ends in the middle of is held, too"


@pytest.mark.parametrize("method", ["two_ended", "shap"])
def test_the_question_of_a_prompt(method: str) -> None:
    """Sentences come and go before a question that stays: by hand, with the texts that are left."""
    lm, tokenizer = language.model("llama"), language.tokenizer()
    how = {"processor": tokenizer, "units": "sentence", "replace": "delete", "target": "mat"}
    found = wf.explain(lm, PROMPT, method=method, hold=QUESTION, **how)
    np.testing.assert_allclose(wf.explain(lm, PROMPT, method=method, hold=-1, **how).scores, found.scores, atol=1e-6)

    def value(*sentences: str) -> float:
        ids = tokenizer(" ".join([*sentences, QUESTION]), return_tensors="pt").input_ids
        with torch.no_grad():
            return float(lm(input_ids=ids).logits[0, -1, tokenizer.convert_tokens_to_ids("mat")])

    dog, cat = "The dog ran home .", "The cat sat on the mat ."
    of_dog = (value(dog, cat) - value(cat) + value(dog) - value()) / 2
    of_cat = (value(dog, cat) - value(dog) + value(cat) - value()) / 2
    np.testing.assert_allclose(found.scores, [of_dog, of_cat, 0], atol=1e-4)


def test_of_an_answer_nothing_goes_anyway() -> None:
    """The last unit of prompt and answer is not the question: to hold it would change nothing, and not be noticed."""
    lm, tokenizer = language.model("llama"), language.tokenizer()
    how = {"processor": tokenizer, "method": "two_ended", "units": "sentence", "span": True}
    with pytest.raises(BadInput, match="hold=-1 is 'on the mat' in input 0, which is never taken away"):
        wf.explain(lm, (PROMPT, "on the mat ."), hold=-1, **how)
    held = wf.explain(lm, (PROMPT, "on the mat ."), hold=QUESTION, **how)
    assert held.scores[list(held.units.labels).index(QUESTION)] == 0 and np.count_nonzero(held.scores) == 2


def test_every_input_of_a_batch_holds_its_own() -> None:
    model, tokenizer = wf.demo.load_sentiment()
    texts = ["I like the movie", "She really hates the movie"]
    together = wf.explain(model, texts, tokenizer, method="two_ended", hold="the movie")
    for text, found in zip(texts, together, strict=True):
        alone = wf.explain(model, text, tokenizer, method="two_ended", hold="the movie")
        np.testing.assert_allclose(found.scores, alone.scores, atol=1e-5)
        assert found.scores[found.units.labels.index("movie")] == 0
    with pytest.raises(BadInput, match=r"'like' is not in input 1"):
        wf.explain(model, texts, tokenizer, method="two_ended", hold="like")


@pytest.mark.parametrize(
    ("hold", "error", "words"),
    [
        ("dreadful", BadInput, "is not in input 0. Write it as it stands there"),
        ("film", BadInput, "is 2 times in input 0. Write more of the text around it"),
        (99, BadInput, "input 0 has 8 units, numbered from 0, or from -1 backwards"),
        ("a film , a good film", BadInput, "is all of input 0"),
        ([], NotAllowed, "the text, label or number of a part"),
        ("", NotAllowed, "the text, label or number of a part"),
        (True, NotAllowed, "the text, label or number of a part"),
    ],
)
def test_what_cannot_be_held(hold: Any, error: type[Exception], words: str) -> None:
    model, tokenizer = wf.demo.load_sentiment()
    with pytest.raises(error, match=words):
        wf.explain(model, "a film , a good film", tokenizer, method="shap", hold=hold)
