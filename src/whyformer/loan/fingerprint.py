"""What answers depend on besides the inputs, compared from call to call; digests.py names it on disk.

Traits are everything about a model but its weights, gathered in one walk: what was found out about a model holds while
they stay.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from math import isnan
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.loan.code_reach import (
    Variable,
    current,
    is_library,
    variables_of,
    variables_of_class,
    variables_of_function,
)

PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size})
OF_TORCH = frozenset(nn.Module().__dict__)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

# Traits

Place = tuple[int, str]  # the number of a module, of a config or of all variables, and the name of an attribute
SMALL = 64  # of longer lists and dicts of objects, which and how long
LARGE = 20_000  # the same of numbers and words: labels of classes
DEEP = 3  # of objects inside objects: settings may be in an object of their own, and those of a part in one of that
FAR = 2000  # values inside one attribute; what is larger is no setting


class Traits(NamedTuple):
    """What a forward pass may read besides weights and inputs, and what has to live for it to be the same."""

    values: dict[Place, Any]
    alive: dict[Place, list[weakref.ref[Any]]]  # an id may be given again when its object is gone
    variables: dict[Place, Variable]  # read outside the model, by its code


def traits_of(modules: Sequence[nn.Module], states: frozenset[Place] = frozenset()) -> Traits:
    """Classes, hooks, buffers, attributes and config values of a model; ``states`` are those that a pass changes."""
    values: dict[Place, Any] = {}
    alive: dict[Place, list[weakref.ref[Any]]] = {}
    owners: list[dict[str, Any]] = [module.__dict__ for module in modules]
    configs: set[int] = set()
    variables = variables_of(module.__class__ for module in modules)
    outside: dict[Place, Variable] = {}
    for number, owner in enumerate(owners):  # configs are added as they are met, and last what is outside the model
        attributes = owner
        if number < len(modules):
            kind = modules[number].__class__
            # By their methods: those of a scripted module are no dicts, and its class has no forward of its own.
            names = *owner["_modules"].keys(), *owner["_parameters"].keys()
            values[number, ""] = kind, getattr(kind, "forward", None), *names
            values[number, "id"] = id(modules[number])
            alive[number, "id"] = [weakref.ref(modules[number])]
            for name in HOOKS:
                if owner[name]:
                    values[number, name] = tuple(owner[name])  # their unique numbers
            if owner["_buffers"]:
                attributes = owner | dict(owner["_buffers"].items())
        for name in attributes.keys() - OF_TORCH:
            value = attributes[name]
            if (number, name) in states:
                continue
            if value.__class__ in PLAIN:
                values[number, name] = value
                continue
            if name == "config" and hasattr(value, "__dict__"):
                values[number, name] = id(value)
                if id(value) not in configs:
                    configs.add(id(value))
                    owners.append(vars(value))
                continue
            told, refs = told_of(value)
            values[number, name] = told
            alive[number, name] = refs
        if number == len(owners) - 1 and variables:
            owners.append(current(variables))
            outside, variables = {(number + 1, label): v for label, v in variables.items()}, {}
    return Traits(values, alive, outside)


def told_of(value: Any) -> tuple[list[Any], list[weakref.ref[Any]]]:
    """What tells a value that is not plain from others, and what has to live for it to be the same."""
    told: list[Any] = []
    refs: list[weakref.ref[Any]] = []
    rest: list[tuple[Any, int]] = [(value, 0)]
    while rest and len(told) < FAR:
        value, depth = rest.pop()
        kind = value.__class__
        if kind in PLAIN:
            told.append(value)
        elif isinstance(value, (list, tuple, set, frozenset, dict)):
            told += (kind, len(value))
            if len(value) > SMALL:
                told.append(str(value) if is_plain(value) else id(value))
            else:
                rest += [(inner, depth + 1) for inner in value]
                rest += [(inner, depth + 1) for inner in value.values()] if isinstance(value, dict) else []
        else:
            told.append(id(value))
            if isinstance(value, Tensor):
                told.append(0 if value.is_inference() else value._version)
                if kind is Tensor and value.device.type == "cpu" and value.numel() <= SMALL:
                    told.append(str(value.tolist()))  # also changes that torch does not count
            elif kind is np.ndarray and value.size <= SMALL:
                told.append(str(value.tolist()))
            elif isinstance(value, MethodType):  # of a bound method, what it is bound to
                rest.append((value.__self__, depth + 1))
            elif isinstance(value, FunctionType):  # what it reads besides its arguments
                rest += [(variable.value(), depth + 1) for variable in variables_of_function(value)]
            elif depth < DEEP and not isinstance(value, (nn.Module, type, ModuleType)):
                rest += [(inner, depth + 1) for inner in _held(value)]
            try:
                refs.append(weakref.ref(value))
            except TypeError:
                pass
    return told, refs


def _held(value: Any) -> list[Any]:
    """What an object holds; of a class of the user's own, also what its methods read besides."""
    kind = value.__class__
    slots = [name for base in kind.__mro__ for name in _names(vars(base).get("__slots__", ()))]
    held = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]
    if not is_library(kind.__module__):
        held += [variable.value() for variable in variables_of_class(kind)]
    return held


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def is_plain(value: Any) -> bool:
    """A collection of numbers and words, of which equality tells all."""
    if value.__class__ not in {dict, set, frozenset, list, tuple} or len(value) > LARGE:
        return False
    members = [*value, *value.values()] if value.__class__ is dict else value
    return all(member.__class__ in PLAIN and not (member.__class__ is float and isnan(member)) for member in members)


def without(traits: Traits, places: frozenset[Place]) -> Traits:
    """The others."""

    def rest(part: Mapping[Place, Any]) -> dict[Place, Any]:
        return {k: v for k, v in part.items() if k not in places}

    return Traits(rest(traits.values), rest(traits.alive), traits.variables)
