"""Parameters that do not exist, and those that were meant: names that other libraries, and our own verbs, use."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from whyformer.errors import UnknownName

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
                raise _unknown(function, name, _hint(name, known))
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


def _unknown(function: Callable[..., Any], name: str, hint: str) -> UnknownName:
    known = [
        k for k, p in inspect.signature(function).parameters.items() if k != "self" and p.kind is not p.VAR_KEYWORD
    ]
    return UnknownName(f"parameter of {function.__qualname__.removesuffix('.__init__')}", name, known, hint)


def _hint(name: str, known: Iterable[str]) -> str:
    parameter, written = MEANT.get(name, (name, ""))
    if parameter in known:
        return f"Write {written}."
    if "self" in known and parameter in OF_THE_EXPLAINER:
        return "The model, its processor and attention_at are given once: Explainer(model, processor, attention_at=…)."
    return ""
