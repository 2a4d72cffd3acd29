"""Misspelt and mistyped options, in every overload of explain: each is an error to a type checker.

Checked as user_script.py is: an ``ignore`` that is not needed is an error.
"""

from typing import Any

from torch import Tensor

import whyformer as wf
from whyformer.inputs.batch import Column


def of_the_function(model: object, ids: Tensor, chat: list[dict[str, str]], column: Column) -> None:
    wf.explain(model, "a text", seeds=1)  # type: ignore[call-overload]
    wf.explain(model, "a text", seed="1")  # type: ignore[call-overload]
    wf.explain(model, "a text", heads=0.5)  # type: ignore[call-overload]
    wf.explain(model, "a prompt", span=True, seeds=1)  # type: ignore[call-overload]
    wf.explain(model, "a prompt", span=True, seed="1")  # type: ignore[call-overload]
    wf.explain(model, "a prompt", span=True, heads=0.5)  # type: ignore[call-overload]
    wf.explain(model, ("a prompt", "an answer"), span="part", seeds=1)  # type: ignore[call-overload]
    wf.explain(model, ("a prompt", "an answer"), span="part", seed="1")  # type: ignore[call-overload]
    wf.explain(model, ("a prompt", "an answer"), span="part", heads=0.5)  # type: ignore[call-overload]
    wf.explain(model, "a prompt", generate=8, seeds=1)  # type: ignore[call-overload]
    wf.explain(model, "a prompt", generate=8, seed="1")  # type: ignore[call-overload]
    wf.explain(model, "a prompt", generate=8, heads=0.5)  # type: ignore[call-overload]
    wf.explain(model, ("a prompt", "an answer"), seeds=1)  # type: ignore[call-overload]
    wf.explain(model, ("a prompt", "an answer"), seed="1")  # type: ignore[call-overload]
    wf.explain(model, ("a prompt", "an answer"), heads=0.5)  # type: ignore[call-overload]
    wf.explain(model, ids, seeds=1)  # type: ignore[call-overload]
    wf.explain(model, ids, seed="1")  # type: ignore[call-overload]
    wf.explain(model, ids, heads=0.5)  # type: ignore[call-overload]
    wf.explain(model, chat, seeds=1)  # type: ignore[call-overload]
    wf.explain(model, chat, seed="1")  # type: ignore[call-overload]
    wf.explain(model, chat, heads=0.5)  # type: ignore[call-overload]
    wf.explain(model, ["a prompt"], generate=8, seeds=1)  # type: ignore[call-overload]
    wf.explain(model, ["a prompt"], generate=8, seed="1")  # type: ignore[call-overload]
    wf.explain(model, ["a prompt"], generate=8, heads=0.5)  # type: ignore[call-overload]
    wf.explain(model, ["a text"], seeds=1)  # type: ignore[call-overload]
    wf.explain(model, ["a text"], seed="1")  # type: ignore[call-overload]
    wf.explain(model, ["a text"], heads=0.5)  # type: ignore[call-overload]
    wf.explain(model, {"age": 38}, seeds=1)  # type: ignore[call-overload]
    wf.explain(model, {"age": 38}, seed="1")  # type: ignore[call-overload]
    wf.explain(model, {"age": 38}, heads=0.5)  # type: ignore[call-overload]
    wf.explain(model, ["a text"], method=["shap"], seeds=1)  # type: ignore[call-overload]
    wf.explain(model, ["a text"], method=["shap"], seed="1")  # type: ignore[call-overload]
    wf.explain(model, ["a text"], method=["shap"], heads=0.5)  # type: ignore[call-overload]
    wf.explain(model, "a text", method=["shap"], seeds=1)  # type: ignore[call-overload]
    wf.explain(model, "a text", method=["shap"], seed="1")  # type: ignore[call-overload]
    wf.explain(model, "a text", method=["shap"], heads=0.5)  # type: ignore[call-overload]
    wf.explain(model, column, seeds=1)  # type: ignore[call-overload]
    wf.explain(model, column, seed="1")  # type: ignore[call-overload]
    wf.explain(model, column, heads=0.5)  # type: ignore[call-overload]


def of_an_explainer(explainer: wf.Explainer, ids: Tensor, chat: list[dict[str, str]], column: Column) -> None:
    explainer.explain("a text", seeds=1)  # type: ignore[call-overload]
    explainer.explain("a text", seed="1")  # type: ignore[call-overload]
    explainer.explain("a text", heads=0.5)  # type: ignore[call-overload]
    explainer.explain("a prompt", span=True, seeds=1)  # type: ignore[call-overload]
    explainer.explain("a prompt", span=True, seed="1")  # type: ignore[call-overload]
    explainer.explain("a prompt", span=True, heads=0.5)  # type: ignore[call-overload]
    explainer.explain(("a prompt", "an answer"), span="part", seeds=1)  # type: ignore[call-overload]
    explainer.explain(("a prompt", "an answer"), span="part", seed="1")  # type: ignore[call-overload]
    explainer.explain(("a prompt", "an answer"), span="part", heads=0.5)  # type: ignore[call-overload]
    explainer.explain("a prompt", generate=8, seeds=1)  # type: ignore[call-overload]
    explainer.explain("a prompt", generate=8, seed="1")  # type: ignore[call-overload]
    explainer.explain("a prompt", generate=8, heads=0.5)  # type: ignore[call-overload]
    explainer.explain(("a prompt", "an answer"), seeds=1)  # type: ignore[call-overload]
    explainer.explain(("a prompt", "an answer"), seed="1")  # type: ignore[call-overload]
    explainer.explain(("a prompt", "an answer"), heads=0.5)  # type: ignore[call-overload]
    explainer.explain(ids, seeds=1)  # type: ignore[call-overload]
    explainer.explain(ids, seed="1")  # type: ignore[call-overload]
    explainer.explain(ids, heads=0.5)  # type: ignore[call-overload]
    explainer.explain(chat, seeds=1)  # type: ignore[call-overload]
    explainer.explain(chat, seed="1")  # type: ignore[call-overload]
    explainer.explain(chat, heads=0.5)  # type: ignore[call-overload]
    explainer.explain(["a prompt"], generate=8, seeds=1)  # type: ignore[call-overload]
    explainer.explain(["a prompt"], generate=8, seed="1")  # type: ignore[call-overload]
    explainer.explain(["a prompt"], generate=8, heads=0.5)  # type: ignore[call-overload]
    explainer.explain(["a text"], seeds=1)  # type: ignore[call-overload]
    explainer.explain(["a text"], seed="1")  # type: ignore[call-overload]
    explainer.explain(["a text"], heads=0.5)  # type: ignore[call-overload]
    explainer.explain({"age": 38}, seeds=1)  # type: ignore[call-overload]
    explainer.explain({"age": 38}, seed="1")  # type: ignore[call-overload]
    explainer.explain({"age": 38}, heads=0.5)  # type: ignore[call-overload]
    explainer.explain(["a text"], method=["shap"], seeds=1)  # type: ignore[call-overload]
    explainer.explain(["a text"], method=["shap"], seed="1")  # type: ignore[call-overload]
    explainer.explain(["a text"], method=["shap"], heads=0.5)  # type: ignore[call-overload]
    explainer.explain("a text", method=["shap"], seeds=1)  # type: ignore[call-overload]
    explainer.explain("a text", method=["shap"], seed="1")  # type: ignore[call-overload]
    explainer.explain("a text", method=["shap"], heads=0.5)  # type: ignore[call-overload]
    explainer.explain(column, seeds=1)  # type: ignore[call-overload]
    explainer.explain(column, seed="1")  # type: ignore[call-overload]
    explainer.explain(column, heads=0.5)  # type: ignore[call-overload]


def of_an_estimate(model: object, explainer: wf.Explainer) -> None:
    wf.estimate(model, "a text", sead=1)  # type: ignore[call-arg]
    wf.estimate(model, "a text", passes="1")  # type: ignore[arg-type]
    explainer.estimate("a text", memori="fold")  # type: ignore[call-arg]
    explainer.estimate("a text", steps="5")  # type: ignore[arg-type]


def of_methods_elsewhere(model: object, options: dict[str, Any]) -> wf.Explanation:
    """Options that only a package of somebody else knows are passed as a dict."""
    return wf.explain(model, "a text", method="mean_attention", **options)


def of_evaluations(model: object) -> None:
    wf.compare(model, ["a text"], sead=1)  # type: ignore[call-arg]
    wf.compare(model, ["a text"], seed="1")  # type: ignore[arg-type]
    wf.recommend(model, ["a text"], holds="a")  # type: ignore[call-arg]
    wf.recommend(model, ["a text"], batch_size="a")  # type: ignore[arg-type]
    wf.report(model, ["a text"], reference_=1)  # type: ignore[call-arg]
    wf.report(model, ["a text"], progress="yes")  # type: ignore[arg-type]
