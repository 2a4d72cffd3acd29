"""The processor in its place, by its name, or as ``tokenizer``: one parameter, whoever spells it."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import whyformer as wf
from tests.support import folders
from whyformer.errors import BadInput, UnknownName
from whyformer.parameters import checked
from whyformer.run.session import loaded_as

TEXT = "i like it"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return folders.tokenizer(tmp_path_factory.mktemp("tokenizer"))


def test_three_spellings_of_one_call(tokenizer: Any) -> None:
    model = folders.bert()
    expected = wf.explain(model, TEXT, processor=tokenizer)
    spelled = [
        wf.explain(model, TEXT, tokenizer),
        wf.explain(model, TEXT, tokenizer=tokenizer),
        wf.explain(model, TEXT, tokenizer, tokenizer=tokenizer),
        wf.explain(model, inputs=TEXT, tokenizer=tokenizer),
        wf.Explainer(model, tokenizer=tokenizer).explain(TEXT),
    ]
    for other in spelled:
        np.testing.assert_array_equal(other.scores, expected.scores)
        assert other.units.labels == expected.units.labels


def test_two_processors_are_one_too_many(tokenizer: Any, tmp_path: Path) -> None:
    other = folders.tokenizer(tmp_path)
    with pytest.raises(BadInput, match=r"explain was given a BertTokenizer.* two names of one parameter"):
        wf.explain(folders.bert(), TEXT, processor=other, tokenizer=tokenizer)
    with pytest.raises(BadInput, match="Explainer was given"):
        wf.Explainer(folders.bert(), other, tokenizer=tokenizer)


def test_an_explainer_in_the_place_of_a_model_brings_all_that_it_holds(tokenizer: Any, tmp_path: Path) -> None:
    marks = {"bert.encoder.layer.*.attention.self.dropout": "b h q k"}
    first = wf.Explainer(folders.bert(), tokenizer, attention_at=marks)
    again = wf.Explainer(first)
    assert (again.model, again.processor, again.attention_at) == (first.model, tokenizer, marks)
    assert again.marks and len(again.marks) == len(first.marks)
    np.testing.assert_array_equal(wf.explain(first, TEXT).scores, first.explain(TEXT).scores)
    other = folders.tokenizer(tmp_path)  # what is given beside it counts, and was left aside once
    for held in (wf.Explainer(first, other), loaded_as(wf.Explainer, first, other)):
        assert (held.processor, held.attention_at) == (other, marks)
    assert wf.Explainer(first, attention_at={}).attention_at == {}
    assert loaded_as(wf.Explainer, first) is first


@checked
def verb(model: Any, inputs: Any, processor: Any = None, *, tokenizer: Any = None) -> Any:
    assert tokenizer is None  # the door hands it on by its other name
    return processor


@checked
def without(model: Any) -> Any:
    return model


def test_the_door_hands_it_on() -> None:
    tokenizer = object()
    both = SimpleNamespace(tokenizer=tokenizer)  # a processor of pictures and texts holds its tokenizer
    assert verb(1, 2, tokenizer=tokenizer) is verb(1, 2, tokenizer) is verb(1, 2, processor=tokenizer) is tokenizer
    assert verb(1, 2, both, tokenizer=tokenizer) is both
    assert verb(1, 2, both, tokenizer=None) is both
    assert verb(1, 2, tokenizer=None) is None
    with pytest.raises(BadInput, match="verb was given a SimpleNamespace as processor and a object as tokenizer"):
        verb(1, 2, both, tokenizer=object())
    with pytest.raises(UnknownName, match="parameter of without 'tokenizer'"):
        without(1, tokenizer=tokenizer)  # type: ignore[call-arg]


def test_every_verb_that_reads_texts_says_so() -> None:
    rows = {"feature_permutation"}  # columns have no tokens
    verbs = {n: inspect.signature(f).parameters for n in wf.__all__ if inspect.isfunction(f := getattr(wf, n))}
    reading = {name: parameters for name, parameters in verbs.items() if "processor" in parameters}
    assert {"explain", "compare", "cite", "tcav", "head_importance"} <= reading.keys()
    assert {name for name, parameters in reading.items() if "tokenizer" not in parameters} == rows
    # In its place wherever it follows the inputs.
    third = [name for name, parameters in reading.items() if list(parameters)[:3] == ["model", "inputs", "processor"]]
    assert {"explain", "compare", "recommend", "check", "report", "head_importance", "explain_global"} <= set(third)
    assert all(verbs[name]["processor"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for name in third)
