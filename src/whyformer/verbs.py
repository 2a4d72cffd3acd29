"""Explainer, the public class, and ``explain``, which makes one and uses it once.

What comes back depends on what was given. Type checkers see it from the kinds of inputs (inputs/batch.py), ``method``,
``generate`` and ``span``; the other options are written once, in options.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from whyformer.estimates import Estimate
from whyformer.explainer import CoreExplainer, Each, Tokens, Whole
from whyformer.inputs.batch import Column, Messages, Paired, Prompted, Several, Single, Tensors
from whyformer.options import (
    AnswerPart,
    Generate,
    LoadingOptions,
    LoadingWriting,
    Name,
    Names,
    Request,
    Sizing,
    Writing,
    takes,
)
from whyformer.parameters import Named, checked
from whyformer.results.types import ByMethod, Explanation, Explanations, Generation

if TYPE_CHECKING:
    from typing_extensions import Unpack

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

        return compare(self, inputs, **arguments)

    def check(self, inputs: Any, **arguments: Any) -> CheckUp:
        """Run sanity checks on explanations. See ``whyformer.check``."""
        from whyformer.checks.check import check

        return check(self, inputs, **arguments)

    def report(self, inputs: Any, **arguments: Any) -> Report:
        """Explain by several methods, and evaluate them, on one page. See ``whyformer.report``."""
        from whyformer.reports.report import report

        return report(self, inputs, **arguments)

    def learn(self, inputs: Any, **arguments: Any) -> Learned:
        """Learn to explain this model in one pass, from unlabelled inputs. See ``whyformer.learn``."""
        from whyformer.learned.learning import learn

        return learn(self, inputs, **arguments)

    def recommend(self, inputs: Any, **arguments: Any) -> Recommendation:
        """Choose the best method on these inputs, and test it on others. See ``whyformer.recommend``."""
        from whyformer.evaluate.recommend import recommend

        return recommend(self, inputs, **arguments)


@overload
def explain(
    model: Any,
    inputs: Single,
    processor: Any = None,
    *,
    method: Name = None,
    span: AnswerPart = False,
    generate: None = None,
    **options: Unpack[LoadingOptions],
) -> Explanation: ...
@overload
def explain(
    model: Any,
    inputs: Single | Prompted,
    processor: Any = None,
    *,
    method: Name = None,
    span: Whole,
    generate: Generate = None,
    **options: Unpack[LoadingOptions],
) -> Explanation: ...
@overload
def explain(
    model: Any,
    inputs: Single | Prompted,
    processor: Any = None,
    *,
    method: Name = None,
    generate: Tokens,
    span: Literal[False] = False,
    **options: Unpack[LoadingOptions],
) -> Generation: ...
@overload
def explain(
    model: Any, inputs: Prompted, processor: Any = None, *, method: Name = None, **options: Unpack[LoadingWriting]
) -> Explanation | Generation: ...
@overload
def explain(  # type: ignore[overload-overlap]  # a mapping of tensors is not a row of a table
    model: Any, inputs: Tensors, processor: Any = None, *, method: Name = None, **options: Unpack[LoadingWriting]
) -> Each: ...
@overload
def explain(
    model: Any,
    inputs: Messages | Column,
    processor: Any = None,
    *,
    method: Name = None,
    **options: Unpack[LoadingWriting],
) -> Explanation | Each: ...
@overload
def explain(
    model: Any,
    inputs: Several,
    processor: Any = None,
    *,
    method: Name = None,
    generate: Tokens,
    span: AnswerPart = False,
    **options: Unpack[LoadingOptions],
) -> Explanations[Generation]: ...
@overload
def explain(
    model: Any,
    inputs: Several,
    processor: Any = None,
    *,
    method: Name = None,
    generate: None = None,
    span: AnswerPart = False,
    **options: Unpack[LoadingOptions],
) -> Each: ...
@overload
def explain(
    model: Any, inputs: Paired, processor: Any = None, *, method: Name = None, **options: Unpack[LoadingWriting]
) -> Explanation: ...
@overload
def explain(  # type: ignore[overload-overlap]
    model: Any, inputs: Tensors | Several, processor: Any = None, *, method: Names, **options: Unpack[LoadingWriting]
) -> ByMethod[Each]: ...
@overload
def explain(
    model: Any, inputs: Single | Paired, processor: Any = None, *, method: Names, **options: Unpack[LoadingWriting]
) -> ByMethod[Explanation]: ...
@checked
@takes(Writing)
def explain(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    attention_at: Mapping[str, str] | None = None,
    method: Name | Sequence[str | Named] = None,
    **options: Any,
) -> Any:
    """Explain a prediction. Return one Explanation for one raw input, a list for several, a dict for several methods.

    processor: tokenizer, image processor or wf.Table, for raw inputs. method: name, or a list of names; None or "auto"
    uses the most faithful method known for the kind and size of each input within ``passes``. Options of the method
    (see wf.list_methods()) are given by name.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> wf.explain(model, "I like the movie", tokenizer).show()
    >>> wf.explain(model, "I like the movie", tokenizer, target=("positive", "negative"), method="shap").words()
    """
    request = Request.of(explain, method, options)
    return Explainer(model, processor, attention_at=attention_at).answer(inputs, request)


@checked
@takes(Sizing)
def estimate(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    attention_at: Mapping[str, str] | None = None,
    method: Name = None,
    **options: Unpack[Sizing],
) -> Estimate:
    """Estimate memory and passes of ``explain`` with these settings, without explaining.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> print(wf.estimate(model, "I like the movie", tokenizer, method="shap"))
    """
    return Explainer(model, processor, attention_at=attention_at).estimate(inputs, method=method, **options)
