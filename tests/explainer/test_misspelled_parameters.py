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


def on_model(verb: str) -> Callable[..., Any]:
    return lambda explainer, **given: getattr(wf, verb)(explainer.model, ["i like it"], **given)


def on_explainer(verb: str) -> Callable[..., Any]:
    return lambda explainer, **given: getattr(explainer, verb)(["i like it"], **given)


def anew(explainer: wf.Explainer, **given: Any) -> wf.Explainer:
    return wf.Explainer(explainer.model, **given)


HELD = r"Explainer.explain '{}'.*Explainer\(model, processor"


@pytest.mark.parametrize(
    ("call", "given", "words"),
    [
        (on_model("explain"), {"methods": "shap"}, "parameter of explain 'methods'.*method="),
        (on_model("explain"), {"versus": "negative"}, r"parameter of explain 'versus'.*target=\(a, b\)"),
        (on_model("explain"), {"image_processor": None}, "parameter of explain 'image_processor'.*processor="),
        (on_model("explain"), {"metod": "shap"}, "parameter of explain 'metod'.*Did you mean 'method'"),
        (on_model("explain"), {"targets": [1]}, "parameter of explain 'targets'.*target="),
        *((on_explainer("explain"), {name: None}, HELD.format(name))
          for name in ("processor", "tokenizer", "model", "attention_at")),
        (anew, {"feature_extractor": None}, "parameter of Explainer 'feature_extractor'.*processor="),
        *((on(verb), {"method": ["occlusion"]}, f"parameter of {verb} 'method'.*methods=")
          for verb in ("compare", "recommend") for on in (on_model, on_explainer)),
        (on_explainer("explain"), {"steps": 3}, "option of generic_attention 'steps'"),
        (on_explainer("explain"), {"start_layers": 1}, "Did you mean 'start_layer'"),
    ],
)  # fmt: skip
def test_the_parameter_that_was_meant_is_named(explainer: wf.Explainer, call: Any, given: Any, words: str) -> None:
    with pytest.raises(UnknownName, match=words):
        call(explainer, **given)


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
