"""Methods and metrics register themselves here: what they need, cost and can say, and which explains unasked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, TypeVar

from whyformer.brief import brief, several
from whyformer.errors import BadInput, UnknownName
from whyformer.parameters import checked, checked_options

# Which method explains when none is named, per modality and cost: what tasks with a known answer say.


CLASSES = ("one forward", "forward and backward", "many passes")
DEFAULTS = {
    "text": dict(zip(CLASSES, ("value_norms", "generic_attention", "occlusion"), strict=True)),
    # bench/needle.py: the sentence that holds the answer comes first; AttnLRP keeps no maps, so prompts can be long.
    "language": dict(zip(CLASSES, ("value_norms", "attn_lrp", "occlusion"), strict=True)),
    "image": dict(zip(CLASSES, ("value_norms", "generic_attention", "shap"), strict=True)),
    "table": dict(zip(CLASSES, ("value_norms", "value_x_gradient", "integrated_gradients"), strict=True)),
}
COST = {"text": CLASSES[1], "language": CLASSES[1], "image": CLASSES[1], "table": CLASSES[2]}
ASKED = "occlusion"  # of a model that is asked from outside (inputs/prompt.py), where perturbation alone is possible
ANYWHERE = "generic_attention"  # several streams, sound, tensors of which nothing is known


def default_method(modality: str) -> str:
    if modality == "prompt":
        return ASKED
    return DEFAULTS[modality][COST[modality]] if modality in DEFAULTS else ANYWHERE


# Methods and metrics register themselves here: what they need, what they cost, what they can say.


Need = Literal["attention", "attention_gradients", "values", "input_gradients", "perturbation"]
MetricNeed = Literal["perturbation", "soft_erasure", "explaining_again", "rationale", "region"]
Passes = tuple[float, float]  # forwards, backwards
Formula = TypeVar("Formula", bound=Callable[..., Any])  # a method or metric, handed back as it came


@dataclass(frozen=True)
class Method:
    """One entry of the registry."""

    name: str
    run: Callable[..., Any]
    paper: str
    needs: frozenset[Need]
    cost: Callable[..., Passes]  # (units, **options) -> passes per input
    cost_text: str
    signed: bool
    class_specific: bool
    specificity: str  # "attention", "gradient" or "black box"
    idea: str  # first sentence of the docstring
    at_most: bool = False  # the cost is a bound: how many passes there are depends on the input
    # (**options) -> each row of the map is what the method says of the token that is said there, whatever comes after
    rowwise: Callable[..., bool] | None = None
    folds: Callable[..., bool] | None = None  # (**options) -> it can do without storing attention maps

    def __repr__(self) -> str:
        return brief(self)

    @cached_property
    def options(self) -> dict[str, inspect.Parameter]:
        """Read from the signature."""
        return {k: p for k, p in inspect.signature(self.run).parameters.items() if p.kind is p.KEYWORD_ONLY}

    @cached_property
    def defaults(self) -> dict[str, Any]:
        return {k: p.default for k, p in self.options.items()}

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """All options, given ones over defaults; unknown names and values that are not allowed are refused."""
        return self.defaults | (checked_options(self.run, self.name, options) if options else {})


@dataclass(frozen=True)
class Metric:
    """One way to judge an explanation: a number per input."""

    name: str
    run: Callable[..., float]  # (trial, **options); evaluate/candidate.py
    paper: str
    kind: str  # "faithfulness", "plausibility", "localisation", "robustness" or "complexity"
    higher_is_better: bool
    needs: frozenset[MetricNeed]
    cost_text: str
    idea: str  # first sentence of the docstring
    masks: Callable[..., Any] | None = None  # (trial, **options) -> the variants of the input that it will ask for
    ceiling: str | None = None  # the search that says how good a ranking can get: "remove", "keep", "leave_one_out"
    on_surrogate: bool = False  # its variants are asked of a fine-tuned copy, where one was given

    def __repr__(self) -> str:
        return brief(self)

    @cached_property
    def options(self) -> dict[str, inspect.Parameter]:
        """Read from the signature."""
        return {k: p for k, p in inspect.signature(self.run).parameters.items() if p.kind is p.KEYWORD_ONLY}

    @cached_property
    def defaults(self) -> dict[str, Any]:
        return {k: p.default for k, p in self.options.items()}

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that were given; unknown names and values that are not allowed are refused."""
        return checked_options(self.run, self.name, options)


_METHODS: dict[str, Method] = {}
_METRICS: dict[str, Metric] = {}


def method(
    *,
    paper: str,
    needs: set[Need],
    cost: Callable[..., Passes],
    cost_text: str,
    signed: bool,
    class_specific: bool,
    specificity: str,
    at_most: bool = False,
    rowwise: Callable[..., bool] | None = None,
    folds: Callable[..., bool] | None = None,
) -> Callable[[Formula], Formula]:
    """Register a method under its function's name."""

    def register(function: Formula) -> Formula:
        doc = inspect.getdoc(function) or ""
        _METHODS[function.__name__] = Method(
            name=function.__name__,
            run=function,
            paper=paper,
            needs=frozenset(needs),
            cost=cost,
            cost_text=cost_text,
            signed=signed,
            class_specific=class_specific,
            specificity=specificity,
            idea=" ".join(doc.split("\n\n")[0].split()),
            at_most=at_most,
            rowwise=rowwise,
            folds=folds,
        )
        return function

    return register


Entry = TypeVar("Entry", Method, Metric)


class Catalogue(dict[str, Entry]):
    """Methods or metrics by name, which fits on a screen: a line for each, with its idea."""

    def __repr__(self) -> str:
        return several("Catalogue", (f"{name}: {entry.idea}" for name, entry in self.items()))


@checked
def list_methods() -> dict[str, Method]:
    """All registered methods by name, third-party ones (entry point ``whyformer.methods``) included.

    >>> wf.list_methods()["grad_sam"].idea
    """
    _load()
    return Catalogue(sorted(_METHODS.items()))


def get_method(name: str) -> Method:
    if not isinstance(name, str):
        raise BadInput(f"method is a {type(name).__name__}; pass a name such as 'generic_attention', or a list.")
    _load()
    if name not in _METHODS:
        raise UnknownName("method", name, list_methods())
    return _METHODS[name]


def metric(
    *,
    paper: str,
    kind: str,
    higher_is_better: bool,
    needs: set[MetricNeed],
    cost_text: str,
    masks: Callable[..., Any] | None = None,
    ceiling: str | None = None,
    on_surrogate: bool = False,
) -> Callable[[Formula], Formula]:
    """Register a metric under its function's name."""

    def register(function: Formula) -> Formula:
        doc = inspect.getdoc(function) or ""
        _METRICS[function.__name__] = Metric(
            name=function.__name__,
            run=function,
            paper=paper,
            kind=kind,
            higher_is_better=higher_is_better,
            needs=frozenset(needs),
            cost_text=cost_text,
            idea=" ".join(doc.split("\n\n")[0].split()),
            masks=masks,
            ceiling=ceiling,
            on_surrogate=on_surrogate,
        )
        return function

    return register


@checked
def list_metrics() -> dict[str, Metric]:
    """All registered metrics by name, third-party ones (entry point ``whyformer.metrics``) included.

    >>> sorted(wf.list_metrics())
    """
    _load_metrics()
    return Catalogue(sorted(_METRICS.items()))


def get_metric(name: str) -> Metric:
    if not isinstance(name, str):
        raise BadInput(f"metric is a {type(name).__name__}; pass a name such as 'comprehensiveness', or a list.")
    known = list_metrics()
    if name not in known:
        raise UnknownName("metric", name, known)
    return known[name]


@cache
def _load_metrics() -> None:
    for path in sorted((Path(__file__).parent / "evaluate" / "metrics").glob("*.py")):
        if not path.stem.startswith("_"):
            import_module(f"whyformer.evaluate.metrics.{path.stem}")
    for point in entry_points(group="whyformer.metrics"):
        point.load()


@cache
def _load() -> None:
    for path in sorted((Path(__file__).parent / "methods").glob("*.py")):
        if not path.stem.startswith("_"):
            import_module(f"whyformer.methods.{path.stem}")
    for point in entry_points(group="whyformer.methods"):
        point.load()


def constant(forwards: float, backwards: float) -> Callable[..., Passes]:
    """The cost of a method that takes the same passes whatever the input."""
    return lambda units, **options: (forwards, backwards)
