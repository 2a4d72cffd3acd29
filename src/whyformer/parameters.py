"""Validation of parameters: annotations declare the allowed values, which are checked before any model runs.

``seed: Seed``, ``steps: Annotated[int, Limits(1)]`` and ``scalar: Annotated[str, OneOf("logit", …)]`` declare the
allowed values at the parameter; :func:`checked` validates the calls of a function, and the registry the options of
methods and metrics. Plain types are checked, too: booleans are not accepted as numbers, nor strings as booleans.
"""

from __future__ import annotations

import difflib
import inspect
import math
import os
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, wraps
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, cast, get_args, get_origin

from whyformer.errors import BadInput, UnknownName, listed, not_allowed

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Limits:
    """The range of a number: from ``low`` to ``high``, both included unless ``open_low`` or ``open_high``."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def hold(self, value: Any) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        return bool(above and (value < self.high if self.open_high else value <= self.high))

    def __str__(self) -> str:
        low, high = _number(self.low), _number(self.high)
        if math.isinf(self.high):
            return f"above {low}" if self.open_low else f"of at least {low}"
        if math.isinf(self.low):
            return f"below {high}" if self.open_high else f"of at most {high}"
        if self.open_low or self.open_high:
            first = f"above {low}" if self.open_low else f"of at least {low}"
            return f"{first} and {'below' if self.open_high else 'at most'} {high}"
        return f"from {low} to {high}"


class OneOf:
    """One of a few strings."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices


class NotEmpty:
    """A text, list or dict must not be empty."""


@dataclass(frozen=True)
class Words:
    """A description of the allowed values that is clearer than the types."""

    words: str
    several: str = ""


class Named(ABC):
    """An object that is accepted wherever its name is: a learned method, a permutation importance."""

    @property
    @abstractmethod
    def name(self) -> str: ...


Seed = Annotated[int, Limits(0, 2**63 - 1)]
BatchSize = Annotated[int, Limits(1)]
Count = Annotated[int, Limits(1, 10**6)]  # of things that are made one by one: more would never end
PassCount = Annotated[int, Limits(1, 10**7)]  # passes that one input may take; a backward counts two
Share = Annotated[float, Limits(0, 1)]
Weight = Annotated[float, Limits(0, 10**6)]  # of a term, a noise, a penalty: larger ones leave nothing else
Patches = Annotated[float, Limits(0, 100)]  # how wide a filter is
# The number of a layer, head or row: how many there are, the model says.
Place = Annotated[int, Limits(-(10**6), 10**6), Words("a whole number", "whole numbers")]
Places = Annotated[Sequence[Place], NotEmpty()]
Pixels = Annotated[int, Limits(1, 10**5)]
Size = Annotated[tuple[Pixels, Pixels], Words("(height, width), whole numbers of at least 1")]
Rate = Annotated[float, Limits(0, open_low=True)]
Megabytes = Annotated[float, Limits(0, 10**9, open_low=True)]
Replacement = Annotated[str, NotEmpty()] | Annotated[int, Limits(0, 2**31 - 1)] | None  # baseline of masked features
CharacterRange = Annotated[tuple[int, int], Words("(start, end), characters of the text", "(start, end) pairs")]
# Parts of an input that are always there: by number, by label, or as they stand in the text.
Held = Annotated[str, NotEmpty()] | Place
_OF_PARTS = Words("the text, label or number of a feature, or a list of them")
Hold = Annotated[Held | Annotated[Sequence[Held], NotEmpty()], _OF_PARTS] | None


def _number(value: float) -> str:
    for power in (31, 63):
        if value == 2**power - 1:
            return f"2**{power} - 1"
    return f"{value:g}" if abs(value) < 1e5 else f"{value:,.0f}"


@dataclass(frozen=True)
class Domain:
    """The values that an annotation allows, in words, and their conversion (a numpy integer to an int)."""

    words: str
    take: Callable[[Any], Any]  # the value, or NOT_ALLOWED
    choices: tuple[str, ...] = ()
    several: str = ""  # in words, of many of them

    @property
    def plural(self) -> str:
        return self.several or self.words


NOT_ALLOWED: Any = object()
MOST_VALUES = 10**7  # in a list
LARGEST = 3e38  # of numbers: what models compute in holds no larger ones
ANYTHING = Domain("anything", lambda value: value)


def _whole(value: Any) -> Any:
    if isinstance(value, Integral):
        return NOT_ALLOWED if isinstance(value, bool) else int(value)
    if getattr(value, "ndim", None) == 0 and "int" in str(getattr(value, "dtype", "")):  # one number of torch or numpy
        return int(value)
    return NOT_ALLOWED


def _real(value: Any) -> Any:
    if not isinstance(value, Real) or isinstance(value, bool):
        return NOT_ALLOWED
    try:
        number = value if isinstance(value, (int, float)) else float(value)  # a Fraction is no number to torch
        return number if abs(number) <= LARGEST else NOT_ALLOWED
    except OverflowError:  # a whole number beyond every float
        return NOT_ALLOWED


def _truth(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    return bool(value) if type(value).__module__ == "numpy" and type(value).__name__.startswith("bool") else NOT_ALLOWED


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else value.name if isinstance(value, Named) else NOT_ALLOWED


def _path(value: Any) -> Any:
    if not isinstance(value, (str, os.PathLike)) or not str(value).strip() or "\0" in str(value):
        return NOT_ALLOWED
    return value


PLAIN: dict[Any, Domain] = {
    Any: ANYTHING,
    object: ANYTHING,
    inspect.Parameter.empty: ANYTHING,
    int: Domain("a whole number", _whole, several="whole numbers"),
    float: Domain("a number", _real, several="numbers"),
    bool: Domain("True or False", _truth),
    str: Domain("a text", _text, several="texts"),
    None: Domain("None", lambda value: None if value is None else NOT_ALLOWED),
    type(None): Domain("None", lambda value: None if value is None else NOT_ALLOWED),
    Path: Domain("a path", _path, several="paths"),
}


def domain_of(hint: Any) -> Domain:
    """Return the allowed values of an annotation. Annotations that cannot be checked allow everything."""
    try:
        if hint in PLAIN:
            return PLAIN[hint]
    except TypeError:
        return ANYTHING
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        domain = domain_of(inner[0])
        for mark in inner[1:]:
            domain = _marked(domain, mark)
        return domain
    if origin in (Union, types.UnionType):
        if Path in inner:  # a path may also be written as a text
            inner = tuple(kind for kind in inner if kind is not str)
        return _either([domain_of(kind) for kind in inner])
    if origin is Literal:
        return _either(
            [_marked(ANYTHING, OneOf(choice)) if isinstance(choice, str) else PLAIN[None] for choice in inner]
        )
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        return _pairs([domain_of(kind) for kind in inner])
    if isinstance(origin, type) and origin.__module__ not in ("builtins", "collections.abc"):
        hint, origin = origin, None  # numpy's arrays
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(*(domain_of(kind) for kind in inner))
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return _sequence(domain_of(inner[0]) if inner else ANYTHING, strict=origin is list)
    if origin is Callable:
        return Domain("a function", lambda value: value if callable(value) else NOT_ALLOWED, several="functions")
    if origin is None and isinstance(hint, type) and not getattr(hint, "_is_protocol", False):  # 3.10: type[X] is one
        named = hint.__name__
        return Domain(
            f"a {named}", lambda value: value if isinstance(value, hint) else NOT_ALLOWED, several=f"{named}s"
        )
    return ANYTHING


def _marked(domain: Domain, mark: Any) -> Domain:
    if isinstance(mark, Limits):

        def limited(value: Any) -> Any:
            number = domain.take(value)
            return number if number is NOT_ALLOWED or mark.hold(number) else NOT_ALLOWED

        return Domain(f"{domain.words} {mark}", limited, several=f"{domain.plural} {mark}")
    if isinstance(mark, Words):
        return Domain(mark.words, domain.take, domain.choices, mark.several)
    if isinstance(mark, OneOf):
        choices = mark.choices
        words = listed([repr(choice) for choice in choices], "or")
        return Domain(
            words, lambda value: value if isinstance(value, str) and value in choices else NOT_ALLOWED, choices
        )
    if isinstance(mark, NotEmpty):

        def filled(value: Any) -> Any:
            taken = domain.take(value)
            return NOT_ALLOWED if taken is NOT_ALLOWED or (hasattr(taken, "__len__") and not len(taken)) else taken

        return Domain(f"{domain.words}, not empty", filled, domain.choices)
    return domain


def _either(domains: Sequence[Domain]) -> Domain:
    if ANYTHING in domains:
        return ANYTHING

    def take(value: Any) -> Any:
        for domain in domains:
            taken = domain.take(value)
            if taken is not NOT_ALLOWED:
                return taken
        return NOT_ALLOWED

    words = [domain.words for domain in domains]
    choices = tuple(choice for domain in domains for choice in domain.choices)
    return Domain(listed(words, "or"), take, choices, listed([domain.plural for domain in domains], "or"))


def _sequence(each: Domain, strict: bool = False) -> Domain:
    def take(value: Any) -> Any:
        if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
            return NOT_ALLOWED
        # A number of numpy or torch has __iter__, which raises. Where a list is asked for, a tuple means another thing.
        if getattr(value, "ndim", 1) == 0 or (strict and isinstance(value, (tuple, set, frozenset))):
            return NOT_ALLOWED
        if not hasattr(value, "__len__"):
            value = list(islice(value, MOST_VALUES + 1))
        if len(value) > MOST_VALUES:  # an endless iterator, or a range of a size that would take days
            return NOT_ALLOWED
        if each is ANYTHING:  # by place: a set has no order, and the first entry of a DataFrame is no row
            return NOT_ALLOWED if isinstance(value, Set) or hasattr(value, "iterrows") else value
        taken = [each.take(part) for part in value]
        if any(part is NOT_ALLOWED for part in taken):
            return NOT_ALLOWED
        if isinstance(value, tuple) and any(isinstance(part, Named) for part in value):
            return tuple(taken)
        return value if isinstance(value, (tuple, set, frozenset, range)) else taken

    return Domain("a list" if each is ANYTHING else f"a list of {each.plural}", take, each.choices, "lists")


def _pairs(each: list[Domain]) -> Domain:
    def take(value: Any) -> Any:
        if not isinstance(value, tuple) or len(value) != len(each):  # a list of two is not a pair: it may be one each
            return NOT_ALLOWED
        taken = tuple(domain.take(part) for domain, part in zip(each, value, strict=True))
        return NOT_ALLOWED if any(part is NOT_ALLOWED for part in taken) else taken

    inside = ", ".join(domain.words for domain in each)
    return Domain(f"a tuple ({inside})", take, several=f"tuples ({inside})")


def _mapping(key: Domain, content: Domain) -> Domain:
    def take(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return NOT_ALLOWED
        for name, part in value.items():
            if key.take(name) is NOT_ALLOWED or content.take(part) is NOT_ALLOWED:
                return NOT_ALLOWED
        return value

    inside = "" if content is ANYTHING else f": {content.words} by name"
    return Domain(f"a dict{inside}", take, key.choices, "dicts")


SIMPLE = frozenset((str, int, float, bool, type(None)))  # values that are the same where they are equal
REMEMBERED = 256  # values that were allowed


@dataclass(frozen=True)
class Parameters:
    """The parameters of a function."""

    owner: str  # who it is, to the user
    names: tuple[str, ...]
    positional: tuple[str, ...]
    required: tuple[str, ...]
    defaults: Mapping[str, Any] = field(repr=False)
    domains: Mapping[str, Domain] = field(repr=False)  # of those that are held to something
    open: bool  # options that it does not know are handed on
    more: bool  # and values without a name
    admitted: set[tuple[str, type, Any]] = field(default_factory=set, repr=False)  # plain values that were allowed

    def admit(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the converted values; raise for values that are not allowed."""
        taken = {}
        for name, value in values.items():
            domain = self.domains.get(name, ANYTHING)
            try:
                taken[name] = domain.take(value)
            except Exception:  # it cannot even be compared, or its own methods raise
                taken[name] = NOT_ALLOWED
            if taken[name] is NOT_ALLOWED:
                raise not_allowed(name, value, domain.words, domain.choices, self.owner)
            if taken[name] is value and value.__class__ in SIMPLE:
                if len(self.admitted) >= REMEMBERED:
                    self.admitted.clear()
                self.admitted.add((name, value.__class__, value))
        return taken


@cache
def parameters_of(function: Callable[..., Any], owner: str = "") -> Parameters:
    """Return the signature of a function, with the allowed values of its annotations."""
    function = inspect.unwrap(function)
    signature = inspect.signature(function).parameters
    names = [n for n, p in signature.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    # Where its annotations were written: a signature may have been taken over from another module.
    scope = getattr(function, "annotated_in", None) or getattr(function, "__globals__", {})
    domains = {}
    for name in names:
        hint = signature[name].annotation
        try:
            domains[name] = domain_of(eval(hint, scope) if isinstance(hint, str) else hint)
        except NameError:  # names under TYPE_CHECKING are treated as Any
            domains[name] = ANYTHING
    return Parameters(
        owner or function.__qualname__.removesuffix(".__init__"),
        tuple(names),
        tuple(n for n in names if signature[n].kind is not inspect.Parameter.KEYWORD_ONLY),
        tuple(n for n in names if signature[n].default is inspect.Parameter.empty),
        {n: signature[n].default for n in names if signature[n].default is not inspect.Parameter.empty},
        {name: domain for name, domain in domains.items() if domain is not ANYTHING},
        any(p.kind is p.VAR_KEYWORD for p in signature.values()),
        any(p.kind is p.VAR_POSITIONAL for p in signature.values()),
    )


OF_PYTHON = frozenset({"self", "cls"})  # what it fills in itself


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that validates its parameters by their annotations, and suggests names for misspelled ones."""

    # An inherited method is named after the class that the user made.
    bound = next(iter(inspect.signature(function).parameters), "") == "self"
    method = "" if function.__name__ == "__init__" else f".{function.__name__}"

    @wraps(function)
    def entered(*args: P.args, **named: P.kwargs) -> R:
        known = parameters_of(function, type(args[0]).__name__ + method if bound and args else "")
        values = dict(zip(known.positional, args, strict=False))
        if (len(args) > len(values) and not known.more) or not (values.keys() | OF_PYTHON).isdisjoint(named):
            raise _miscalled(known, args, named)
        values |= named
        if "tokenizer" in named and "processor" in known.names:
            values = _with_processor(known.owner, values)
        if not known.open and not values.keys() <= set(known.names):
            name = next(name for name in values if name not in known.names)
            raise _unknown(known, name)
        if not values.keys() >= set(known.required):
            raise _miscalled(known, args, named)
        domains, defaults, admitted = known.domains, known.defaults, known.admitted
        chosen = {n: v for n, v in values.items() if n in domains and (n not in defaults or v is not defaults[n])}
        if not all(v.__class__ in SIMPLE and (n, v.__class__, v) in admitted for n, v in chosen.items()):
            values |= known.admit(chosen)
        places = [values.pop(name) for name in known.positional[: len(args)]]
        return cast(Callable[..., R], function)(*places, *args[len(places) :], **values)

    return entered


def _with_processor(owner: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """``tokenizer`` by the name that all kinds of inputs share: a tokenizer is one kind of processor."""
    processor, tokenizer = values.get("processor"), values["tokenizer"]
    others = {name: value for name, value in values.items() if name != "tokenizer"}
    if processor is None:
        return others | {"processor": tokenizer}
    if tokenizer is not None and tokenizer is not processor and tokenizer is not getattr(processor, "tokenizer", None):
        one, other = type(processor).__name__, type(tokenizer).__name__
        raise BadInput(
            f"{owner} got a {one} as processor and a {other} as tokenizer: these are two names of one parameter. Give "
            "the one that was made for this model."
        )
    return others


def checked_options(function: Callable[..., Any], name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a method, metric or check, validated by the annotations of its keyword parameters."""
    known = parameters_of(function, name)
    allowed = [option for option in known.names if option not in known.positional]
    for option in options:
        if option not in allowed:
            raise UnknownName(f"option of {name}", option, allowed or ["(it has none)"])
    return known.admit(options)


def _miscalled(known: Parameters, args: Sequence[Any], named: Mapping[str, Any]) -> BadInput:
    bound = int(not OF_PYTHON.isdisjoint(known.positional[:1]))
    places = known.positional[bound:]
    if len(args) < bound:
        return BadInput(f"{known.owner} is a method: call it on an object, not on its class.")
    if reserved := [name for name in named if name in OF_PYTHON]:
        return BadInput(f"{known.owner} takes no {reserved[0]}: omit it.")
    first = len(args) - bound
    if first > len(places):
        return BadInput(
            f"{known.owner} takes {listed(places, 'and') or 'nothing'} by position, and {first} positional values were "
            "given: write the others as name=value."
        )
    if twice := [name for name in places[:first] if name in named]:
        return BadInput(f"{known.owner} got {twice[0]} twice: by position and by name.")
    missing = [name for name in known.required if name not in named and name not in known.positional[: len(args)]]
    return BadInput(f"{known.owner} needs {listed(missing, 'and')}: write {missing[0]}=….")


# Name -> the parameter that was meant, and how it is written.
MEANT: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("tokenizer", "image_processor", "feature_extractor", "table"), ("processor", "processor=…")),
    **dict.fromkeys(("input", "text", "texts", "image", "images", "data"), ("inputs", "inputs=…")),
    **dict.fromkeys(("targets", "label", "labels", "class_name"), ("target", "target=…")),
    **dict.fromkeys(("versus", "against", "contrast", "rather_than"), ("target", "target=(a, b), for a rather than b")),
    "methods": ("method", "method=…, a name or a list of names"),
    "metrics": ("metric", "metric=…, a name or a list of names"),
    "check": ("checks", "checks=[…]"),
    "unit": ("units", "units=…"),
    "baseline": ("replace", "replace=…, the baseline of masked features"),
    "output": ("scalar", "scalar=…"),
    "random_state": ("seed", "seed=…"),
    "verbose": ("progress", "progress=…"),
}
OF_THE_EXPLAINER = ("model", "processor", "attention_at")
CLOSE = 0.75  # of difflib: a letter or two


def refuse_misspelled(
    function: Callable[..., Any], options: Iterable[str], existing: Iterable[str], owner: str = ""
) -> None:
    """Raise for options that no method has (``existing``) and that resemble a parameter of ``function``."""
    known, taken = parameters_of(function, owner), set(existing)
    for name in options:
        if name in taken:
            continue
        if _hint(known, name) or difflib.get_close_matches(name, known.names, n=1, cutoff=CLOSE):
            raise _unknown(known, name)


def _unknown(known: Parameters, name: str) -> UnknownName:
    names = [each for each in known.names if each != "self"]
    return UnknownName(f"parameter of {known.owner}", name, names, _hint(known, name))


def _hint(known: Parameters, name: str) -> str:
    parameter, written = MEANT.get(name, (name, ""))
    if parameter in known.names:
        return f"Write {written}."
    if "self" in known.names and parameter in OF_THE_EXPLAINER:
        return "The model, its processor and attention_at are given once: Explainer(model, processor, attention_at=…)."
    return ""
