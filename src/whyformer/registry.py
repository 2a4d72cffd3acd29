"""Registry of methods and metrics with their properties."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from whyformer.brief import brief, several
from whyformer.errors import METHODS_ELSEWHERE, METRICS_ELSEWHERE, BadInput, UnknownName, public
from whyformer.parameters import Limits, Named, checked, checked_options

CLASSES = ("one forward", "forward and backward", "many passes")
AUTO = "auto"


# The two registries


Need = Literal["attention", "attention_gradients", "values", "input_gradients", "perturbation"]
MetricNeed = Literal["perturbation", "explaining_again", "rationale", "region"]
Passes = tuple[float, float]  # forwards, backwards
MASKINGS = "maskings"  # option of every method that masks nothing itself: engines/perturbation/maskings.py
Maskings = Annotated[int, Limits(2, 10_000)] | None
Formula = TypeVar("Formula", bound=Callable[..., Any])  # a method or metric, returned unchanged


class _Optioned:
    """What methods and metrics have in common: options, read from the signature of ``run``."""

    run: Callable[..., Any]

    def __repr__(self) -> str:
        return brief(self)

    @cached_property
    def options(self) -> dict[str, inspect.Parameter]:
        """Read from the signature."""
        return {k: p for k, p in inspect.signature(self.run).parameters.items() if p.kind is p.KEYWORD_ONLY}

    @cached_property
    def defaults(self) -> dict[str, Any]:
        return {k: p.default for k, p in self.options.items()}


@dataclass(frozen=True, repr=False)
class Method(_Optioned):
    """A registered method. Fields with a default can be omitted in ``@method``."""

    name: str
    run: Callable[..., Any]
    paper: str
    needs: frozenset[Need]
    cost: Callable[..., Passes]  # (units, **options) -> passes per input
    cost_text: str
    signed: bool
    class_specific: bool
    specificity: str  # "attention", "gradient" or "black box"; by default, by what it needs
    idea: str  # first sentence of the docstring
    at_most: bool = False  # the cost is a bound: how many passes there are depends on the input
    # (**options) -> each row of the map explains the token predicted there, whatever comes after it
    rowwise: Callable[..., bool] | None = None
    folds: Callable[..., bool] | None = None  # (**options) -> it can run without storing attention maps
    meaning: str = ""  # what a score is, in a few words for the header of a picture
    extra_cost: Callable[[float], float] | None = None  # (units) -> work besides passes, in forwards, about
    works: bool = False  # its work is no number of passes: estimates measure it
    scalable: tuple[str, int] | None = None  # the option that sets the number of passes, and its smallest useful value
    space: str = ""  # the space of recommend (spaces=) that contains this method with all of its options
    slow: bool = False  # on inputs of many units, whatever passes it declares
    compiles: bool = False  # one forward, at most one backward, and a formula that stays on the device
    unfit: str = ""  # why recommend does not choose it: the certificate of a learned method
    fingerprint: str = ""  # of the weights of the one model that it was learned for
    errors: tuple[float, float] | None = None  # of a learned method: engines/perturbation/regression.py, KnownErrors

    @property
    def averages(self) -> bool:
        """Whether it can be averaged over random maskings of the input: it asks the model, and masks nothing itself."""
        return bool(self.needs) and "perturbation" not in self.needs

    @cached_property
    def options(self) -> dict[str, inspect.Parameter]:
        """Read from the signature, and ``maskings`` where the method can be averaged."""
        usual = super().options
        return usual | {MASKINGS: inspect.signature(over_maskings).parameters[MASKINGS]} if self.averages else usual

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Of the options that results hold: maskings are among them where they were asked for."""
        return {k: p.default for k, p in self.options.items() if k != MASKINGS}

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options, given ones over defaults; raise on unknown names and values that are not allowed."""
        passed = {name: value for name, value in options.items() if not (self.averages and name == MASKINGS)}
        taken = self.defaults | (checked_options(self.run, self.name, passed) if passed else {})
        if options.get(MASKINGS) is None or passed == options:
            return taken
        return taken | checked_options(over_maskings, self.name, {MASKINGS: options[MASKINGS]})


@dataclass(frozen=True, eq=False)
class Chosen:
    """A method with all of its options."""

    method: Method
    options: dict[str, Any]

    @cached_property
    def changed(self) -> tuple[str, ...]:
        """Names of options that are not the defaults."""
        return tuple([k for k, v in self.options.items() if repr(v) != repr(self.method.defaults.get(k))])


@dataclass(frozen=True, repr=False)
class Metric(_Optioned):
    """A registered metric: one value per input."""

    name: str
    run: Callable[..., float]  # (trial, **options); evaluate/candidate.py
    paper: str
    kind: str  # "faithfulness", "plausibility", "localisation", "robustness" or "complexity"
    higher_is_better: bool
    needs: frozenset[MetricNeed]
    cost_text: str
    idea: str  # first sentence of the docstring
    masks: Callable[..., Any] | None = None  # (trial, **options) -> the variants of the input that it will ask for
    ceiling: str | None = None  # the search for how good a ranking can get: "remove", "keep", "leave_one_out"
    on_surrogate: bool = False  # its variants are run on a fine-tuned copy, where one was given

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that were given; raise on unknown names and values that are not allowed."""
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
    specificity: str = "",
    at_most: bool = False,
    rowwise: Callable[..., bool] | None = None,
    folds: Callable[..., bool] | None = None,
    meaning: str = "",
    extra_cost: Callable[[float], float] | None = None,
    works: bool = False,
    scalable: tuple[str, int] | None = None,
    space: str = "",
    slow: bool = False,
    compiles: bool = False,
) -> Callable[[Formula], Formula]:
    """Register a method under its function's name. The parameters are the fields of ``Method``."""
    facts = dict(locals())  # the parameters, which are fields of Method
    if needs and "perturbation" not in needs:
        facts["cost"] = over_maskings(cost)
        facts["works"] |= bool(needs & {"attention", "values"})  # besides, the rows that the head reads are found
    if not specificity:
        inside, slopes = needs & {"attention", "attention_gradients", "values"}, "input_gradients" in needs
        facts["specificity"] = "attention" if inside else "gradient" if slopes else "black box"
    return _registering(Method, _METHODS, facts)


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
    """Register a metric under its function's name. The parameters are the fields of ``Metric``."""
    return _registering(Metric, _METRICS, locals())  # the parameters, which are fields of Metric


Entry = TypeVar("Entry", Method, Metric)


def _registering(
    kind: type[Entry], registry: dict[str, Entry], facts: Mapping[str, Any]
) -> Callable[[Formula], Formula]:
    """Return the decorator that registers a function with these facts."""

    def register(function: Formula) -> Formula:
        idea = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
        fields = {**facts, "needs": frozenset(facts["needs"])}
        registry[function.__name__] = kind(name=function.__name__, run=function, idea=idea, **fields)
        return function

    return register


def over_maskings(cost: Callable[..., Passes], /, *, maskings: Maskings = None) -> Callable[..., Passes]:
    """Return the cost of a method that may be averaged: the input as it is, and each masking."""

    def passes(units: int, maskings: int | None = None, **options: Any) -> Passes:
        forwards, backwards = cost(units, **options)
        return (forwards, backwards) if maskings is None else (maskings * forwards + 1, maskings * backwards)

    return passes


class Catalogue(dict[str, Entry]):
    """Methods or metrics by name; its repr has one line for each, with its idea."""

    def __repr__(self) -> str:
        return several("Catalogue", (f"{name}: {entry.idea}" for name, entry in self.items()))


@checked
def list_methods() -> dict[str, Method]:
    """Return all registered methods by name, including third-party ones (entry point ``whyformer.methods``).

    >>> wf.list_methods()["grad_sam"].idea
    """
    _load("methods", "whyformer.methods")
    return Catalogue(sorted(_METHODS.items()))


@checked
def list_metrics() -> dict[str, Metric]:
    """Return all registered metrics by name, including third-party ones (entry point ``whyformer.metrics``).

    >>> sorted(wf.list_metrics())
    """
    _load("evaluate.metrics", "whyformer.metrics")
    return Catalogue(sorted(_METRICS.items()))


def get_method(name: str | Named) -> Method:
    """The method of a name; also of a learned one, by the object or by the path of its file."""
    name = name.name if isinstance(name, Named) else name
    if not isinstance(name, str):
        raise BadInput(f"method is a {type(name).__name__}; pass a name such as 'generic_attention', or a list.")
    if name == AUTO:
        return CHOSEN
    if ":" in name or name.endswith(SUFFIX):
        return _learned(name)
    _load("methods", "whyformer.methods")
    if name not in _METHODS:  # asked in every explain: the sorted catalogue is made for the error alone
        raise UnknownName("method", name, list_methods(), elsewhere=METHODS_ELSEWHERE)
    return _METHODS[name]


# Methods that are objects: learned ones (wf.learn), known by name in this process and by the path of their file in any,
# and permutation importance.

LEARNED, SUFFIX = "learned:", ".learned"
_LEARNED: dict[str, Method] = {}
_FILES: dict[str, Path] = {}  # of learned methods that were saved or loaded, by name
_LOADED: dict[tuple[str, int, int], str] = {}  # path, size and time of change of a file → name


def register_named(entry: Method, path: Path | None = None) -> None:
    """Make a method that is an object known by its name; ``path``: of its file."""
    _LEARNED[entry.name] = entry
    if path is not None:
        _FILES[entry.name] = path.resolve()


def learned_file(name: str) -> Path | None:
    """The file of a learned method, if it has one: other processes load it from there."""
    return _FILES.get(name)


def learned_methods() -> dict[str, Method]:
    """Learned methods that this process knows, by name; they are not in ``list_methods()``."""
    return {name: entry for name, entry in sorted(_LEARNED.items()) if name.startswith(LEARNED)}


def learned_at_hand() -> tuple[str, ...]:
    """Those whose certificate says that they are better than free methods, the newest first."""
    return tuple(name for name, entry in reversed(_LEARNED.items()) if not entry.unfit)


def _learned(name: str) -> Method:
    if name.endswith(SUFFIX):
        load = public().Learned.load
        facts = Path(name).stat() if Path(name).is_file() else None
        key = (name, *((facts.st_size, facts.st_mtime_ns) if facts else (0, 0)))
        if facts is None or key not in _LOADED:  # raises if there is no file
            _LOADED[key] = load(name).name
        name = _LOADED[key]
    if name not in _LEARNED:
        raise UnknownName(
            "method", name, _LEARNED or ["(none)"], "Learned methods are known where they were learned: pass the path "
            "of the file (learned.save('name.learned')) as the method."
        )  # fmt: skip
    return _LEARNED[name]


def _by_choice(*args: object, passes: int | None = None) -> Any:
    """Use the most faithful method that is known for this kind and size of input within ``passes``."""
    raise AssertionError("explanations.py takes the method that was chosen")


# Stands for what choices.py says of each input. It is not in the registry: results name the method that ran.
CHOSEN = Method(
    name=AUTO,
    run=_by_choice,
    paper="docs/reports/frontier.md",
    needs=frozenset(),
    cost=lambda units, passes=None, **options: (passes or 0, 0),
    cost_text="at most ``passes`` forwards",
    signed=True,
    class_specific=True,
    specificity="black box",
    idea=" ".join((_by_choice.__doc__ or "").split()),
    at_most=True,
)


def get_metric(name: str) -> Metric:
    if not isinstance(name, str):
        raise BadInput(f"metric is a {type(name).__name__}; pass a name such as 'comprehensiveness', or a list.")
    known = list_metrics()
    if name not in known:
        raise UnknownName("metric", name, known, elsewhere=METRICS_ELSEWHERE)
    return known[name]


def meaning_of(name: str) -> str:
    """Return the meaning of a score of this method in a few words; "" if it is not known."""
    entries = _LEARNED | list_methods()
    return entries[name].meaning if name in entries else ""


@cache
def _load(package: str, group: str) -> None:
    """Import the modules of a package, and of the entry points of other packages: they register what they define."""
    for path in sorted(Path(__file__).parent.joinpath(*package.split(".")).glob("*.py")):
        if not path.stem.startswith("_"):
            import_module(f"whyformer.{package}.{path.stem}")
    for point in entry_points(group=group):
        point.load()


def constant(forwards: float, backwards: float) -> Callable[..., Passes]:
    """The cost of a method that takes the same passes whatever the input."""
    return lambda units, **options: (forwards, backwards)


# The usual kinds of methods: attention alone, the same for every class; gradients of the explained class.
one_forward = partial(method, cost=constant(1, 0), cost_text="1 forward", signed=False, class_specific=False)
one_backward = partial(method, cost=constant(1, 1), cost_text="1 forward + 1 backward", class_specific=True)
