"""The contract on a trained model: random weights have no sinks and no outliers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.test_contracts import METHODS, QUICK, check_result, close
from whyformer.demo import load_sentiment
from whyformer.errors import NotOffered, NotOverUnits

SENTENCES = ["I like the movie", "She hates the book", "This is so boring", "I cannot wait for next time"]
EXPECTED = ["positive", "negative", "negative", "positive"]


@cache
def explainer() -> wf.Explainer:
    return wf.Explainer(*load_sentiment())


def explained(inputs: Any, method: str) -> Any:
    try:
        return explainer().explain(inputs, method=method, target="positive", **QUICK.get(method, {}))
    except (NotOffered, NotOverUnits) as refusal:
        assert len(str(refusal)) > 40
        return None


def test_the_shipped_model_says_what_its_card_says() -> None:
    model, tokenizer = load_sentiment()
    with torch.no_grad():
        logits = model(**tokenizer(SENTENCES, padding=True, return_tensors="pt")).logits
    assert [model.config.id2label[i] for i in logits.argmax(1).tolist()] == EXPECTED


@pytest.mark.parametrize("method", METHODS)
def test_contract_on_a_trained_model(method: str) -> None:
    """Two sentences of different lengths: together, with padding, and each alone."""
    pair = [SENTENCES[2], SENTENCES[3]]
    together = explained(pair, method)
    if together is None:
        return
    check_result(together, METHODS[method])
    for sentence, found in zip(pair, together, strict=True):
        close(found.scores, explained(sentence, method).scores)


def test_the_word_that_decides_comes_first() -> None:
    found = explainer().explain(SENTENCES[1], method="generic_attention")
    assert found.ranked(specials=False)[0][0] == "hates"
    assert np.isclose(found.value, 3.203, atol=0.01)
