"""Explainer, the public class, and ``explain``, which makes one and uses it once.

What comes back depends on what was given. Type checkers see it from the kinds of inputs (inputs/batch.py), ``method``
and ``generate``; all parameters are written once, in Explainer.explain, and help() shows them here, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from whyformer.estimates import Estimate, Memory
from whyformer.explainer import (
    PARAMETERS,
    CharacterRange,
    CoreExplainer,
    Each,
    HopCount,
    Name,
    Names,
    Segments,
    Span,
    Text,
    Through,
    Tokens,
    refuse_unknown,
)
from whyformer.inputs.batch import Column, Messages, Paired, Prompted, Several, Single, Tensors
from whyformer.parameters import BatchSize, PassCount, Seed, checked
from whyformer.results.types import ByMethod, Explanation, Explanations, Generation
from whyformer.targets import Aims, Scalar

if TYPE_CHECKING:
    from whyformer.checks.exam import CheckUp
    from whyformer.evaluate.comparison import Comparison
    from whyformer.evaluate.recommendation import Recommendation
    from whyformer.learned.learned import Learned
    from whyformer.reports.report import Report


class Explainer(CoreExplainer):
    """A model, ready to be explained. ``wf.explain`` creates an Explainer for a single call.

    processor: tokenizer (by this name, too) or image processor, needed for raw inputs only.
    attention_at: for custom attention, modules (by path, ``*`` allowed) whose output is an attention map, and its
    layout, e.g. ``{"blocks.*.attn.drop": "b h q k"}``.
    compiled: on a GPU, record explanations of recurring input shapes as CUDA graphs and replay them
    (docs/guide/compiled.md); ``forms`` lists the recorded shapes.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> explainer = wf.Explainer(model, tokenizer)  # or a folder: wf.Explainer("path/to/model")
    >>> explainer.explain("I like the movie").show()
    >>> explainer.explain(["A great film", "So boring"], method="occlusion")[1].ranked()
    """

    def compare(self, inputs: Any, **arguments: Any) -> Comparison:
        """Compare explanation methods on these inputs, and rank them. See ``whyformer.compare``."""
        from whyformer.evaluate.compare import compare

        return compare(self.model, inputs, processor=self.processor, attention_at=self.attention_at, **arguments)

    def check(self, inputs: Any, **arguments: Any) -> CheckUp:
        """Run sanity checks on explanations. See ``whyformer.check``."""
        from whyformer.checks.check import check

        return check(self, inputs, **arguments)

    def report(self, inputs: Any, **arguments: Any) -> Report:
        """Explain by several methods, and evaluate them, on one page. See ``whyformer.report``."""
        from whyformer.reports.report import report

        return report(self.model, inputs, processor=self.processor, attention_at=self.attention_at, **arguments)

    def learn(self, inputs: Any, **arguments: Any) -> Learned:
        """Learn to explain this model in one pass, from unlabelled inputs. See ``whyformer.learn``."""
        from whyformer.learned.learning import learn

        return learn(self.model, inputs, processor=self.processor, attention_at=self.attention_at, **arguments)

    def recommend(self, inputs: Any, **arguments: Any) -> Recommendation:
        """Choose the best method on these inputs, and test it on others. See ``whyformer.recommend``."""
        from whyformer.evaluate.recommend import recommend

        return recommend(self.model, inputs, processor=self.processor, attention_at=self.attention_at, **arguments)


EXPLAIN = inspect.unwrap(Explainer.explain)  # behind its door, since ``explain`` has one that is the same
ESTIMATE = inspect.unwrap(Explainer.estimate)


@overload
def explain(
    model: Any,
    inputs: Single,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    attention_at: Mapping[str, str] | None = None,
    method: Name = None,
    target: Aims = None,
    scalar: Scalar = "centred",
    batch_size: BatchSize | None = None,
    memory: Memory = "auto",
    keep_layers: bool = False,
    units: Segments = "token",
    generate: None = None,
    span: bool | Text | CharacterRange = False,
    choices: Sequence[str] | None = None,
    one_pass: bool = False,
    first_token: bool = True,
    through: Through = None,
    hops: HopCount = 1,
    passes: PassCount | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
    **options: Any,
) -> Explanation: ...
@overload
def explain(
    model: Any, inputs: Single | Prompted, processor: Any = None, *, method: Name = None, span: Span, **settings: Any
) -> Explanation: ...
@overload
def explain(
    model: Any,
    inputs: Single | Prompted,
    processor: Any = None,
    *,
    method: Name = None,
    generate: Tokens,
    **others: Any,
) -> Generation: ...
@overload
def explain(
    model: Any, inputs: Prompted, processor: Any = None, *, method: Name = None, **settings: Any
) -> Explanation | Generation: ...
@overload
def explain(model: Any, inputs: Tensors, processor: Any = None, *, method: Name = None, **settings: Any) -> Each: ...
@overload
def explain(
    model: Any, inputs: Messages, processor: Any = None, *, method: Name = None, **settings: Any
) -> Explanation | Each: ...
@overload
def explain(
    model: Any, inputs: Several, processor: Any = None, *, method: Name = None, generate: Tokens, **settings: Any
) -> Explanations[Generation]: ...
@overload
def explain(model: Any, inputs: Several, processor: Any = None, *, method: Name = None, **settings: Any) -> Each: ...
@overload
def explain(
    model: Any, inputs: Paired, processor: Any = None, *, method: Name = None, **settings: Any
) -> Explanation: ...
@overload
def explain(
    model: Any, inputs: Tensors | Several, processor: Any = None, *, method: Names, **settings: Any
) -> ByMethod[Each]: ...
@overload
def explain(
    model: Any, inputs: Single | Paired, processor: Any = None, *, method: Names, **settings: Any
) -> ByMethod[Explanation]: ...
@overload
def explain(
    model: Any, inputs: Column, processor: Any = None, *, method: Name = None, **settings: Any
) -> Explanation | Each: ...
@checked
def explain(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    attention_at: Mapping[str, str] | None = None,
    **settings: Any,
) -> Any:
    """Explain a prediction. Return one Explanation for one raw input, a list for several, a dict for several methods.

    processor: tokenizer (``tokenizer=`` is the same), image processor or wf.Table, for raw inputs. target: class or
    label, (a, b) for a rather than b, None for the prediction; a list has one per input. scalar: the
    number that is explained. "centred", the logit minus the mean of all logits, leaves out what the answer does not
    depend on (where classes do not exclude each other: the logit); or "logit", as in most papers, "probability",
    "log_odds", "cosine" or "maxsim" (two texts). options: options of the method (see wf.list_methods()). attention_at:
    as for Explainer.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> wf.explain(model, "I like the movie", tokenizer).show()
    >>> wf.explain(model, "I like the movie", tokenizer, target=("positive", "negative"), method="shap").words()
    """
    if unknown := settings.keys() - PARAMETERS:
        refuse_unknown(explain, unknown)
    return EXPLAIN(Explainer(model, processor, attention_at=attention_at), inputs, **settings)


@checked
def estimate(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    attention_at: Mapping[str, str] | None = None,
    **settings: Any,
) -> Estimate:
    """Estimate memory and passes of ``explain`` with these settings, without explaining.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> print(wf.estimate(model, "I like the movie", tokenizer, method="shap"))
    """
    return ESTIMATE(Explainer(model, processor, attention_at=attention_at), inputs, **settings)


def _with_settings_of(verb: Any, function: Any) -> None:
    """Written once, in the Explainer; the door, help() and editors at run time see all settings."""
    *own, _ = inspect.signature(function).parameters.values()
    left = {name: p for name, p in inspect.signature(verb).parameters.items() if name not in {"self", "inputs"}}
    function.__signature__ = inspect.Signature([*own, *left.values()])
    function.annotated_in = verb.__globals__


_with_settings_of(EXPLAIN, inspect.unwrap(explain))
_with_settings_of(ESTIMATE, inspect.unwrap(estimate))
