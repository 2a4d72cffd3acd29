"""A parameter that does not exist: the error names the one that was meant, before any work is done."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import whyformer as wf
from tests.support import folders
from whyformer.errors import UnknownName
from whyformer.parameters import MEANT


@pytest.fixture
def explainer(tmp_path: Path) -> wf.Explainer:
    return wf.Explainer(folders.bert(), folders.tokenizer(tmp_path))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"methods": "shap"}, "method="),
        ({"versus": "negative"}, r"target=\(a, b\)"),
        ({"image_processor": None}, "processor="),
        ({"metod": "shap"}, "Did you mean 'method'"),
        ({"targets": [1]}, "target="),
    ],
)
def test_explain_names_the_parameter_that_was_meant(explainer: wf.Explainer, given: Any, meant: str) -> None:
    with pytest.raises(UnknownName, match=f"parameter of explain '{next(iter(given))}'.*{meant}"):
        wf.explain(explainer.model, "i like it", **given)


@pytest.mark.parametrize("name", ["processor", "tokenizer", "model", "attention_at"])
def test_what_an_explainer_holds_is_not_given_again(explainer: wf.Explainer, name: str) -> None:
    with pytest.raises(UnknownName, match=rf"Explainer.explain '{name}'.*Explainer\(model, processor"):
        explainer.explain("i like it", **{name: None})


def test_an_explainer_takes_a_processor(explainer: wf.Explainer) -> None:
    with pytest.raises(UnknownName, match=r"parameter of Explainer 'feature_extractor'.*processor="):
        wf.Explainer(explainer.model, feature_extractor=None)  # type: ignore[call-arg]


@pytest.mark.parametrize("verb", ["compare", "recommend"])
def test_verbs_with_several_methods(explainer: wf.Explainer, verb: str) -> None:
    for call in (getattr(explainer, verb), lambda texts, **how: getattr(wf, verb)(explainer.model, texts, **how)):
        with pytest.raises(UnknownName, match=f"parameter of {verb} 'method'.*methods="):
            call(["i like it"], method=["occlusion"])


def test_an_option_that_a_method_has_is_no_slip(explainer: wf.Explainer) -> None:
    with pytest.raises(UnknownName, match="option of generic_attention 'steps'"):
        explainer.explain("i like it", steps=3)
    with pytest.raises(UnknownName, match="Did you mean 'start_layer'"):
        explainer.explain("i like it", start_layers=1)


@pytest.mark.parametrize("verb", [wf.explain, wf.compare, wf.recommend])
def test_help_shows_the_real_parameters(verb: Callable[..., Any]) -> None:
    shown = set(inspect.signature(verb).parameters)
    assert {"model", "inputs", "processor", "target", "scalar", "seed", "attention_at"} <= shown


def test_explain_takes_all_that_its_explainer_takes() -> None:
    whole, inner = (inspect.signature(f).parameters for f in (wf.explain, wf.Explainer.explain))
    assert {k: p.default for k, p in inner.items() if k != "self"}.items() <= {
        k: p.default for k, p in whole.items()
    }.items()


def test_every_name_that_was_meant_is_a_parameter() -> None:
    known = {name for verb in (wf.explain, wf.compare) for name in inspect.signature(verb).parameters}
    assert {parameter for parameter, _ in MEANT.values()} <= known
    assert all(written.startswith(parameter) for parameter, written in MEANT.values())
