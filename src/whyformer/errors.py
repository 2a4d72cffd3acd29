"""Every exception whyformer raises on purpose. Each message says what was wrong and what to do next.

WhyformerError
├── BadInput                 what the user passed cannot be used (also a ValueError)
│   ├── UnknownName          a method, option, label or tensor name that does not exist (with close matches)
│   ├── TooLong              more units than the model takes
│   └── MissingProcessor     raw inputs without a tokenizer or image processor
├── NotOffered               this method cannot explain this model or input, and why
├── MissingExtra             an optional library is not installed (also an ImportError)
├── NonFinite                the model's output holds NaN or infinity
└── CaptureError             the attention of the model could not be read in full
    ├── NothingCaptured      no attention happened at all
    ├── PartlyCaptured       some attention, or some exchange between positions, was not seen
    ├── AmbiguousLayout      batch and heads cannot be told apart
    └── NotOverUnits         attention runs over channels, windows or compressed keys, not over the units
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar


class WhyformerError(Exception):
    """Root of all whyformer errors."""


class BadInput(WhyformerError, ValueError):
    """What the user passed cannot be used."""


class UnknownName(BadInput):
    """A name that does not exist."""

    def __init__(self, kind: str, name: object, known: Iterable[object], hint: str = "") -> None:
        choices = [str(k) for k in known]
        close = difflib.get_close_matches(str(name), choices, n=3, cutoff=0.5)
        shown = f"Did you mean {' or '.join(repr(c) for c in close)}? " if close else ""
        listing = ", ".join(choices[:40]) + (", …" if len(choices) > 40 else "")
        super().__init__(f"unknown {kind} {name!r}. {shown}Known: {listing}.{' ' + hint if hint else ''}")


class TooLong(BadInput):
    """More units than the model takes."""


class MissingProcessor(BadInput):
    """Raw inputs without a tokenizer or image processor."""


class NotOffered(WhyformerError):
    """This method cannot explain this model or input."""


class MissingExtra(WhyformerError, ImportError):
    """An optional library is not installed."""

    def __init__(self, library: str, extra: str, why: str) -> None:
        super().__init__(f"{why} needs {library}: pip install 'whyformer[{extra}]'")


class NonFinite(WhyformerError):
    """The model's output holds NaN or infinity."""


class CaptureError(WhyformerError):
    """The attention of the model could not be read in full."""


class NothingCaptured(CaptureError):
    """No attention happened at all."""


class PartlyCaptured(CaptureError):
    """Some attention, or some exchange between positions, was not seen."""


class AmbiguousLayout(CaptureError):
    """Batch and heads cannot be told apart."""


class NotOverUnits(CaptureError):
    """Attention does not run over the units of the input."""


def one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Check an option against its domain."""
    if value not in choices:
        raise UnknownName(f"value of {name}", value, choices)


# Parameters that do not exist, and those that were meant: names that other libraries, and our own verbs, use.


P = ParamSpec("P")
R = TypeVar("R")

# Name -> the parameter that was meant, and how it is written.
MEANT: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("tokenizer", "image_processor", "feature_extractor", "table"), ("processor", "processor=…")),
    **dict.fromkeys(("input", "text", "texts", "image", "images", "data"), ("inputs", "inputs=…")),
    **dict.fromkeys(("targets", "label", "labels", "class_name"), ("target", "target=…")),
    **dict.fromkeys(("versus", "against", "contrast", "rather_than"), ("target", "target=(a, b), for a rather than b")),
    "method": ("methods", "methods=[…]"),
    "methods": ("method", "method=…, a name or a list of names"),
    "metric": ("metrics", "metrics=[…]"),
    "output": ("scalar", "scalar=…"),
    "random_state": ("seed", "seed=…"),
    "verbose": ("progress", "progress=…"),
}
OF_THE_EXPLAINER = ("model", "processor", "attention_at")
CLOSE = 0.75  # of difflib: a letter or two


def spelled(function: Callable[P, R]) -> Callable[P, R]:
    """A function that names the right parameter when it gets one that it does not have."""

    @wraps(function)
    def checked(*args: P.args, **named: P.kwargs) -> R:
        known = inspect.signature(function).parameters
        for name in named:
            if name not in known:
                owner = type(args[0]).__name__ if function.__name__ == "__init__" else function.__qualname__
                raise _unknown(function, name, _hint(name, known), owner)
        return function(*args, **named)

    return checked


def refuse_misspelled(function: Callable[..., Any], options: Iterable[str], existing: Iterable[str]) -> None:
    """Of a function that hands on options: refuse those that no method has and that look like a parameter of its own.

    existing: options of methods. What is like none of the parameters is left to the method, which knows its options.
    """
    known = [name for name, p in inspect.signature(function).parameters.items() if p.kind is not p.VAR_KEYWORD]
    taken = set(existing)
    for name in options:
        if name in taken:
            continue
        hint = _hint(name, known)
        if hint or difflib.get_close_matches(name, known, n=1, cutoff=CLOSE):
            raise _unknown(function, name, hint)


def _unknown(function: Callable[..., Any], name: str, hint: str, owner: str = "") -> UnknownName:
    known = [
        k for k, p in inspect.signature(function).parameters.items() if k != "self" and p.kind is not p.VAR_KEYWORD
    ]
    return UnknownName(f"parameter of {owner or function.__qualname__}", name, known, hint)


def _hint(name: str, known: Iterable[str]) -> str:
    parameter, written = MEANT.get(name, (name, ""))
    if parameter in known:
        return f"Write {written}."
    if "self" in known and parameter in OF_THE_EXPLAINER:
        return "The model, its processor and attention_at are given once: Explainer(model, processor, attention_at=…)."
    return ""
