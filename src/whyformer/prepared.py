"""Prepared: what a request means for a kind of input, whatever the input is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whyformer.choices import answers
from whyformer.errors import BadInput
from whyformer.options import Request
from whyformer.registry import AUTO, Chosen, get_method


@dataclass(frozen=True, eq=False)
class Prepared:
    """The methods that are run for a request, with all of their options."""

    request: Request
    chosen: tuple[Chosen, ...]


def prepare(kind: str, request: Request, compiled: bool) -> Prepared:
    """Return the methods, and the options of each: an option goes to those that have it, and one must.

    compiled: explanations are recorded as graphs, which have one pass.
    """
    names, options = list(request.methods), dict(request.rest)
    if request.passes is not None:
        if not any("passes" in get_method(name or AUTO).options for name in names):
            raise BadInput(f"passes={request.passes} is for method='auto': {names[0]} has no such option, omit it.")
        options["passes"] = request.passes
    if len(names) == 1 and names[0] in (None, AUTO):
        names = [_unasked(kind, options, request.keep_layers or request.memory == "fold", compiled)]
        if "passes" not in get_method(names[0] or AUTO).options:  # one pass in any case
            options = {name: value for name, value in options.items() if name != "passes"}
    chosen = [get_method(name or AUTO) for name in names]
    for name, value in options.items():
        if not any(name in m.options for m in chosen):
            chosen[0].checked({name: value})  # raises
    fitting = [{k: v for k, v in options.items() if k in m.options} for m in chosen]
    return Prepared(request, tuple(Chosen(m, m.checked(o)) for m, o in zip(chosen, fitting, strict=True)))


def _unasked(kind: str, options: Mapping[str, Any], mapped: bool, compiled: bool) -> str:
    """The method for inputs of this kind, "auto" where that depends on each input. mapped: it must have maps."""
    passes, others = options.get("passes"), options.keys() - {"passes"}
    choices = [name for name, _ in answers(kind, 1, passes, mapped or compiled)]  # graphs are for one pass
    fitting = [name for name in choices if others <= get_method(name).options.keys()] if others else []
    if fitting or (len(choices) == 1 and kind != "prompt"):
        return (fitting or choices)[0]
    return choices[0] if others else AUTO
