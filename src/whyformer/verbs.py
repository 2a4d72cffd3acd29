"""The verb of an Explainer that is used once: ``explain`` with a model in its place.

What comes back depends on what was given. Type checkers see it from the kinds of inputs (inputs/batch.py), ``method``
and ``generate``; all parameters are written once, in Explainer.explain, and help() shows them here, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from whyformer.estimate import Memory
from whyformer.explainer import PARAMETERS, CharacterRange, Explainer, Names, Segments, Span, Tokens, refuse_unknown
from whyformer.inputs.batch import Column, Messages, Paired, Prompted, Several, Single, Tensors
from whyformer.parameters import BatchSize, Seed, checked
from whyformer.targets import Aims, Scalar
from whyformer.types import ByMethod, Explanation, Explanations, Generation

EXPLAIN = inspect.unwrap(Explainer.explain)  # behind its door, since ``explain`` has one that is the same


@overload
def explain(
    model: Any,
    inputs: Single,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    attention_at: Mapping[str, str] | None = None,
    method: str | None = None,
    target: Aims = None,
    scalar: Scalar = "logit",
    batch_size: BatchSize | None = None,
    memory: Memory = "auto",
    keep_layers: bool = False,
    units: Segments = "token",
    generate: None = None,
    span: bool | CharacterRange = False,
    choices: Sequence[str] | None = None,
    one_pass: bool = False,
    first_token: bool = True,
    seed: Seed = 0,
    progress: bool | None = None,
    **options: Any,
) -> Explanation: ...
@overload
def explain(
    model: Any, inputs: Single | Prompted, processor: Any = None, *, method: str | None = None, span: Span, **how: Any
) -> Explanation: ...
@overload
def explain(
    model: Any,
    inputs: Single | Prompted,
    processor: Any = None,
    *,
    method: str | None = None,
    generate: Tokens,
    **how: Any,
) -> Generation: ...
@overload
def explain(
    model: Any, inputs: Prompted, processor: Any = None, *, method: str | None = None, **how: Any
) -> Explanation | Generation: ...
@overload
def explain(
    model: Any, inputs: Tensors, processor: Any = None, *, method: str | None = None, **how: Any
) -> Explanations[Explanation]: ...
@overload
def explain(
    model: Any, inputs: Messages, processor: Any = None, *, method: str | None = None, **how: Any
) -> Explanation | Explanations[Explanation]: ...
@overload
def explain(
    model: Any, inputs: Several, processor: Any = None, *, method: str | None = None, generate: Tokens, **how: Any
) -> Explanations[Generation]: ...
@overload
def explain(
    model: Any, inputs: Several, processor: Any = None, *, method: str | None = None, **how: Any
) -> Explanations[Explanation]: ...
@overload
def explain(
    model: Any, inputs: Paired, processor: Any = None, *, method: str | None = None, **how: Any
) -> Explanation: ...
@overload
def explain(
    model: Any, inputs: Tensors | Several, processor: Any = None, *, method: Names, **how: Any
) -> ByMethod[Explanations[Explanation]]: ...
@overload
def explain(
    model: Any, inputs: Single | Paired, processor: Any = None, *, method: Names, **how: Any
) -> ByMethod[Explanation]: ...
@overload
def explain(
    model: Any, inputs: Column, processor: Any = None, *, method: str | None = None, **how: Any
) -> Explanation | Explanations[Explanation]: ...
@checked
def explain(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    attention_at: Mapping[str, str] | None = None,
    **how: Any,
) -> Any:
    """Why did the model say that? One Explanation for one raw input, a list for several, a dict for several methods.

    processor: tokenizer (``tokenizer=`` is the same), image processor or wf.Table, for raw inputs. target: class or
    label, (a, b) for a rather than b, None for the prediction; a list has one per input. scalar: "logit",
    "probability", "log_odds" or "cosine". options: the method's own (wf.list_methods() lists them). attention_at: as
    for Explainer.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> wf.explain(model, "I like the movie", tokenizer).show()
    >>> wf.explain(model, "I like the movie", tokenizer, target=("positive", "negative"), method="shap").words()
    """
    if unknown := how.keys() - PARAMETERS:
        refuse_unknown(explain, unknown)
    return EXPLAIN(Explainer(model, processor, attention_at=attention_at), inputs, **how)


def _with_parameters_of(verb: Callable[..., Any], function: Callable[..., Any]) -> inspect.Signature:
    """What ``function`` takes, with the parameters of ``verb`` in the place of ``**how``."""
    *parameters, _ = inspect.signature(function).parameters.values()
    others = [
        p
        for name, p in inspect.signature(verb).parameters.items()
        if name not in {"self", *(p.name for p in parameters)}
    ]
    return inspect.Signature([*parameters, *others])


# Written once, in Explainer.explain; the door, help() and editors at run time see all of them.
inspect.unwrap(explain).__signature__ = _with_parameters_of(Explainer.explain, explain)  # type: ignore[attr-defined]
inspect.unwrap(explain).annotated_in = EXPLAIN.__globals__  # type: ignore[attr-defined]
