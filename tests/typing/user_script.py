"""What a user's type checker sees of whyformer: checked by ``make check``, never run.

``assert_type`` fails if a name has become ``Any`` as well as if its type has changed.
"""

from pathlib import Path
from typing import Any, assert_type

import numpy as np

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
