"""Options of explain stand once: their types, their sentences and their defaults fit together."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

import whyformer as wf
from whyformer.options import (
    Evaluation,
    EvaluationOptions,
    MethodOptions,
    Options,
    Request,
    Sizing,
    Writing,
    names_of,
    sentences,
)

OPTIONS = {f.name for f in fields(Request)} - {"methods", "by_method", "rest"}


def test_every_option_has_a_type_a_default_and_a_sentence() -> None:
    assert set(names_of(Writing)) == OPTIONS == Writing.__annotations__.keys() - MethodOptions.__annotations__.keys()
    of_evaluations = {f.name for f in fields(Evaluation)}
    assert set(names_of(EvaluationOptions, Evaluation)) == of_evaluations == EvaluationOptions.__annotations__.keys()
    assert sentences().keys() == OPTIONS | of_evaluations | {"tokenizer", "attention_at"}
    assert all(words.endswith(".") and len(words) > 20 for words in sentences().values())


def test_type_checkers_know_the_options_of_all_methods() -> None:
    of_methods = {name for m in wf.list_methods().values() for name in m.options}
    assert of_methods - OPTIONS == set(MethodOptions.__annotations__)


@pytest.mark.parametrize(
    ("verb", "kind", "defaults_of"),
    [
        *((verb, Writing, Request) for verb in (wf.explain, wf.Explainer.explain)),
        *((verb, Sizing, Request) for verb in (wf.estimate, wf.Explainer.estimate)),
        *((verb, EvaluationOptions, Evaluation) for verb in (wf.compare, wf.recommend, wf.report)),
    ],
)
def test_help_shows_them(verb: object, kind: type, defaults_of: type) -> None:
    shown = inspect.signature(verb).parameters  # type: ignore[arg-type]
    defaults, words = {f.name: f.default for f in fields(defaults_of)}, " ".join((inspect.getdoc(verb) or "").split())
    for name in names_of(kind, defaults_of):
        assert shown[name].default == defaults[name]
        assert f"* {name}: {sentences()[name]}" in words
    assert shown.keys() & OPTIONS == OPTIONS & set(names_of(kind, defaults_of))


def test_one_request_is_asked_anew_with_a_change() -> None:
    request = Request.of(None, ["grad_sam", "shap"], {"seed": 3, "evaluations": 8}, Options)
    assert (request.methods, request.by_method, request.rest) == (("grad_sam", "shap"), True, {"evaluations": 8})
    one = request.by("shap", {})
    assert (one.methods, one.by_method, one.seed, one.rest) == (("shap",), False, 3, {})
