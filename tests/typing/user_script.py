"""What a user's type checker sees of whyformer: checked by ``make check``, never run.

``assert_type`` fails if a name has become ``Any`` as well as if its type has changed.
"""

from pathlib import Path
from typing import Any, assert_type

import numpy as np
from torch import Tensor

import whyformer as wf
from whyformer.extend import Attribution, Run, constant, method
from whyformer.registry import Method, Metric


def registries() -> None:
    assert_type(wf.list_methods(), dict[str, Method])
    assert_type(wf.list_metrics(), dict[str, Metric])
    assert_type(wf.list_methods()["saliency"].signed, bool)
    assert_type(wf.__version__, str)


def explanations(explanation: wf.Explanation) -> None:
    assert_type(explanation.scores, np.ndarray[Any, Any])
    assert_type(explanation.units, wf.Units)
    assert_type(explanation.units.labels, tuple[str, ...])
    assert_type(explanation.target, wf.Target)
    assert_type(explanation.prediction, wf.Target)
    assert_type(explanation.value, float)
    assert_type(explanation.warnings, tuple[str, ...])
    assert_type(explanation.ranked(specials=False), list[tuple[str, float]])
    assert_type(explanation.save("x.html"), Path)
    assert_type(explanation.to_html(), str)


class Photo:
    """What a checker sees of a PIL image."""

    size = (32, 32)
    mode = "RGB"

    def getbbox(self) -> tuple[int, int, int, int] | None:
        return None


class Frame:
    """What a checker sees of a DataFrame."""

    def iterrows(self) -> list[object]:
        return []


def one_input(model: object, tokenizer: object, photo: Photo, pixels: np.ndarray[Any, Any]) -> None:
    assert_type(wf.explain(model, "i like it", tokenizer), wf.Explanation)
    assert_type(wf.explain(model, "i like it", tokenizer=tokenizer, target="positive", seed=1), wf.Explanation)
    assert_type(wf.explain("folder", "i like it", method="shap", evaluations=64), wf.Explanation)
    assert_type(wf.explain(model, Path("cat.jpg"), processor=tokenizer), wf.Explanation)
    assert_type(wf.explain(model, photo, tokenizer), wf.Explanation)
    assert_type(wf.explain(model, pixels, tokenizer), wf.Explanation)
    assert_type(wf.explain(model, (photo, "what is it?"), tokenizer), wf.Explanation)
    assert_type(wf.explain(model, {"age": 38, "job": "Sales"}, tokenizer), wf.Explanation)
    assert_type(wf.explain(model, "i like it", tokenizer).words(), list[tuple[str, float]])


def several_inputs(model: object, texts: list[str], tokenizer: object, ids: Tensor) -> None:
    batch = wf.explain(model, texts, tokenizer)
    assert_type(batch, wf.Explanations[wf.Explanation])
    assert_type(batch[0], wf.Explanation)
    assert_type(batch[:2], wf.Explanations[wf.Explanation])
    assert_type([one.value for one in batch], list[float])
    assert_type(batch.to_html(), str)
    assert_type(wf.explain(model, Frame(), tokenizer), wf.Explanations[wf.Explanation])
    assert_type(wf.explain(model, ids), wf.Explanations[wf.Explanation])
    assert_type(wf.explain(model, {"input_ids": ids}), wf.Explanations[wf.Explanation])
    assert_type(wf.explain(model, (ids, ids), method="saliency"), wf.Explanations[wf.Explanation])


def several_methods(model: object, texts: list[str], tokenizer: object) -> None:
    learned = wf.learn(model, texts, tokenizer)
    assert_type(wf.explain(model, "i like it", tokenizer, method=learned), wf.Explanation)
    assert_type(
        wf.explain(model, texts, tokenizer, method=[learned, "alti"]), wf.ByMethod[wf.Explanations[wf.Explanation]]
    )
    by_method = wf.explain(model, "i like it", tokenizer, method=["grad_sam", "alti"])
    assert_type(by_method, wf.ByMethod[wf.Explanation])
    assert_type(by_method["alti"], wf.Explanation)
    batches = wf.explain(model, texts, tokenizer, method=("grad_sam", "alti"))
    assert_type(batches, wf.ByMethod[wf.Explanations[wf.Explanation]])


def language_models(model: object, prompts: list[str], tokenizer: object) -> None:
    assert_type(wf.explain(model, "a prompt", tokenizer), wf.Explanation)
    assert_type(wf.explain(model, "a prompt", tokenizer, generate=8), wf.Generation)
    assert_type(wf.explain(model, "a prompt", tokenizer, generate=8, span=True), wf.Explanation)
    assert_type(wf.explain(model, ("a prompt", "an answer"), tokenizer, span=True), wf.Explanation)
    # A pair is classified by one model, and continued by another.
    assert_type(wf.explain(model, ("a prompt", "an answer"), tokenizer), wf.Explanation | wf.Generation)
    assert_type(wf.explain(model, prompts, tokenizer, generate={"max_new_tokens": 8}), wf.Explanations[wf.Generation])
    chat = [{"role": "user", "content": "why?"}]
    assert_type(wf.explain(model, chat, tokenizer), wf.Explanation | wf.Explanations[wf.Explanation])


def the_same_of_an_explainer(explainer: wf.Explainer, texts: list[str], ids: Tensor) -> None:
    assert_type(explainer.explain("i like it"), wf.Explanation)
    assert_type(explainer.explain(texts), wf.Explanations[wf.Explanation])
    assert_type(explainer.explain({"input_ids": ids}), wf.Explanations[wf.Explanation])
    assert_type(explainer.explain("a prompt", generate=8), wf.Generation)
    assert_type(explainer.explain(texts, method=["grad_sam"]), wf.ByMethod[wf.Explanations[wf.Explanation]])
    assert_type(explainer.compare(texts), wf.Comparison)
    assert_type(explainer.recommend(texts), wf.Recommendation)
    assert_type(explainer.check(texts), wf.CheckUp)
    assert_type(explainer.report(texts), wf.Report)


def wrong(model: object, explainer: wf.Explainer) -> None:
    """What a checker refuses: an ignore that nothing needs is an error here."""
    wf.explain(model, "i like it").heatmap(size="large")  # type: ignore[arg-type]
    wf.explain(model, ["i like it"]).scores  # type: ignore[attr-defined]  # noqa: B018
    wf.Explainer(model, tokeniser=None)  # type: ignore[call-arg]


def verbs(model: object, texts: list[str], tokenizer: object) -> None:
    explainer = wf.Explainer(model, tokenizer)
    assert_type(explainer, wf.Explainer)
    assert_type(explainer.record(texts), wf.Record)
    assert_type(wf.compare(model, texts, processor=tokenizer), wf.Comparison)
    assert_type(wf.recommend(model, texts, processor=tokenizer), wf.Recommendation)
    assert_type(wf.check(model, texts, processor=tokenizer), wf.CheckUp)
    assert_type(wf.head_importance(model, texts, processor=tokenizer), wf.heads.HeadImportance)
    concepts = wf.tcav(model, layer=1, concepts={}, random_sets=[], class_inputs=texts, target=0, processor=tokenizer)
    assert_type(concepts, wf.concepts.TCAVResult)


def errors() -> None:
    try:
        wf.load("x.json")
    except wf.errors.BadInput as error:
        assert_type(error, wf.errors.BadInput)


@method(
    paper="",
    needs={"attention"},
    cost=constant(1, 0),
    cost_text="1 forward",
    signed=False,
    class_specific=False,
    specificity="attention",
)
def mine(run: Run, *, power: int = 1) -> Attribution:
    """A method keeps its signature."""
    return Attribution(run.readout_BN**power)


def extension(run: Run) -> None:
    assert_type(mine(run, power=2), Attribution)
