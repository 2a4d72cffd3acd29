"""The parts of a model, found in one walk and from then on only looked at: are they the same, and set as they were?

Every call of every explanation asks this twice, and a model of twelve layers has hundreds of modules. What was found is
held weakly; comparisons go over whole lists at a time, which Python does quickly. Whatever is not plainly the same is
walked and compared in full (fingerprint.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import chain, repeat
from operator import attrgetter, is_, itemgetter
from types import BuiltinFunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from whyformer.loan.fingerprint import (
    HOOKED,
    HOOKS,
    PLAIN,
    SMALL,
    Place,
    Traits,
    Variable,
    current,
    is_plain,
    parts_of_hooks,
    told_of,
    told_of_forward,
)
from whyformer.loan.quantised import is_quantized
from whyformer.loan.turns import turns_of

# What is taken of hundreds of modules at a time, by functions that Python need not enter for each.
DICT, CLASS = attrgetter("__dict__"), attrgetter("__class__")
CHILDREN, WEIGHTS, BUFFERS = map(itemgetter, ("_modules", "_parameters", "_buffers"))
ALL_HOOKS = itemgetter(*HOOKS)


class Members(NamedTuple):
    """The modules, parameters and configs of a model."""

    modules: list[nn.Module]
    parameters: list[nn.Parameter]
    configs: list[Any]


class Parts:
    """Weak references to the parts of a model, as one walk found them."""

    def __init__(self, named: Sequence[tuple[str, nn.Module]], members: Members) -> None:
        modules = members.modules
        self.names = {id(module): path for path, module in named}  # dotted paths, by identity
        self.kinds = [module.__class__ for module in modules]
        # In the order in which they are taken; each member has its own as long as it lives.
        self.turns = turns_of((*modules, *members.parameters, *members.configs))
        self.quantized = any(map(is_quantized, modules))
        self.wraps = any("_orig_mod" in module._modules for module in modules)  # torch.compile's
        # Scripted modules list their parts in ways of their own, and a config may be a plain dict: no weak reference.
        self.steady = not any(isinstance(module, torch.jit.ScriptModule) for module in modules)
        numbers = {id(module): number for number, module in enumerate(modules)} | {id(None): len(modules)}
        try:
            self._modules = [weakref.ref(module) for module in modules]
            self._parameters = [weakref.ref(parameter) for parameter in members.parameters]
            self._configs = [weakref.ref(config) for config in members.configs]
        except TypeError:
            self.steady = False
        if self.steady:
            self._children = [numbers[id(child)] for m in modules for child in m._modules.values()]
            held: list[dict[str, Any]] = [m._modules for m in modules]  # type: ignore[misc]
            held += [m._parameters for m in modules]  # type: ignore[misc]
            self._names = [name for members in held for name in members]
            self._sizes = list(map(len, held))

    @classmethod
    def of(cls, model: nn.Module) -> tuple[Parts, Members]:
        """Find the parts of a model in one walk."""
        named = list(model.named_modules())
        modules = [module for _, module in named]
        # Not model.parameters(): it would walk through the modules once more.
        parameters = [p for m in modules for p in m._parameters.values() if p is not None]
        configs = {id(c): c for m in modules if (c := m.__dict__.get("config")) is not None}
        members = Members(modules, parameters, list(configs.values()))
        return cls(named, members), members

    def members(self) -> Members | None:
        """Return the parts if they are the same and at the same places; else None."""
        if not self.steady:
            return None
        modules: list[Any] = [ref() for ref in self._modules]
        if any(map(is_, modules, repeat(None))):
            return None
        attributes = list(map(DICT, modules))
        parts, weights = list(map(CHILDREN, attributes)), list(map(WEIGHTS, attributes))
        children = list(chain.from_iterable(map(dict.values, parts)))
        parameters = list(chain.from_iterable(map(dict.values, weights)))
        names = [*chain.from_iterable(parts), *chain.from_iterable(weights)]
        sizes = [*map(len, parts), *map(len, weights)]  # whose they are
        if names != self._names or sizes != self._sizes or len(children) != len(self._children):
            return None
        every = [*modules, None]
        if not all(map(is_, children, map(every.__getitem__, self._children))):
            return None
        parameters = [parameter for parameter in parameters if parameter is not None]
        configs = list({id(c): c for c in map(dict.get, attributes, repeat("config")) if c is not None}.values())
        for now, refs in ((parameters, self._parameters), (configs, self._configs)):
            if len(now) != len(refs) or not all(map(is_, now, [ref() for ref in refs])):
                return None
        same = list(map(CLASS, modules)) == self.kinds
        return Members(modules, parameters, configs) if same else None


class Guard:
    """Traits of a model, arranged so that comparing them is fast."""

    def __init__(self, modules: Sequence[nn.Module], traits: Traits, states: frozenset[Place]) -> None:
        self.variables = {label: variable for (_, label), variable in traits.variables.items()}
        owners, self.sizes, self.hooks = _seen(modules, self.variables)
        self.forwards = {kind: _forward(kind) for kind in {m.__class__ for m in modules}}
        self.unsure = any(number >= len(owners) for number, _ in traits.values)  # a config inside a config
        self.alive = [ref for (_, name), refs in traits.alive.items() if name != "id" for ref in refs]
        self.values: list[Any] = []
        self.places: dict[Place, Any] = {}
        self.told: list[tuple[Place, Any]] = []
        self.alike: list[tuple[Place, Any]] = []  # collections of plain values, and functions: a look at each tells
        for (number, name), value in () if self.unsure else traits.values.items():
            if name in {"", "id", *HOOKS} and number < len(modules):
                continue
            held = owners[number].get(name)
            small = held.__class__ is tuple and len(held) <= SMALL and all(v.__class__ in PLAIN for v in held)
            # A built-in function that is not bound to an object: a copy of it is itself.
            builtin = held.__class__ is BuiltinFunctionType and held.__self__.__class__ in {ModuleType, type(None)}
            if name in owners[number] and (held.__class__ in PLAIN or small):
                self.places[number, name] = held
            elif name != "config" and name in owners[number] and (builtin or is_plain(held)):
                self.alike.append(((number, name), copy(held)))
            elif name != "config":
                self.told.append(((number, name), value))
        self.drop(states)

    def drop(self, states: frozenset[Place]) -> None:
        """Leave these attributes out of the comparison."""
        self.places = {place: value for place, value in self.places.items() if place not in states}
        self.told = [(place, told) for place, told in self.told if place not in states]
        self.alike = [(place, held) for place, held in self.alike if place not in states]
        self.states = states
        # All attributes of an owner at once, which Python takes out more quickly than one by one.
        by_owner: dict[int, list[str]] = {}
        for number, name in self.places:
            by_owner.setdefault(number, []).append(name)
        self.looks = [(number, itemgetter(*names)) for number, names in by_owner.items()]
        each = [[self.places[number, name] for name in names] for number, names in by_owner.items()]
        self.values = [values[0] if len(values) == 1 else tuple(values) for values in each]

    def holds(self, modules: Sequence[nn.Module], states: frozenset[Place]) -> bool:
        """Whether everything is unchanged; False also where only a full comparison could decide."""
        if self.unsure or states is not self.states or any(ref() is None for ref in self.alive):
            return False
        owners, sizes, hooks = _seen(modules, self.variables)
        if sizes != self.sizes or hooks != self.hooks:
            return False
        if any(_forward(kind) != forward for kind, forward in self.forwards.items()):
            return False
        try:
            if [attributes(owners[number]) for number, attributes in self.looks] != self.values:
                return False
            for (number, name), held in self.alike:
                now = owners[number][name]
                if now is held:
                    continue
                if now.__class__ is not held.__class__ or now != held or (now.__class__ is dict and [*now] != [*held]):
                    return False
            for (number, name), told in self.told:
                owner = owners[number]
                if name.startswith(HOOKED):
                    value: Any = parts_of_hooks(owner)[name]
                else:
                    value = owner[name] if name in owner else owner["_buffers"][name]
                if value.__class__ is torch.Tensor and len(told) == 2 and not value.is_inference():
                    if [id(value), value._version] != told:  # a large one is told by no more than that
                        return False
                    continue
                if (value if value.__class__ in PLAIN else told_of(value)[0]) != told:
                    return False
        except (KeyError, RuntimeError, ValueError, TypeError):
            return False
        return True


def _seen(
    modules: Sequence[nn.Module], variables: Mapping[str, Variable]
) -> tuple[list[dict[str, Any]], list[int], list[tuple[Any, ...]]]:
    """Who has attributes: modules, their configs in the order in which they are met, and the code around them; how
    many, and whose config is whose; the unique numbers of hooks."""
    attributes = list(map(DICT, modules))
    configs = list(map(dict.get, attributes, repeat("config")))
    each = {id(config): config for config in configs if config is not None}
    owners = attributes + [vars(config) for config in each.values() if hasattr(config, "__dict__")]
    if variables:
        owners.append(current(variables))
    sizes = [*map(len, owners), *map(len, map(BUFFERS, attributes)), *map(id, configs)]
    hooked = [(i, hooks) for i, hooks in enumerate(map(ALL_HOOKS, attributes)) if any(hooks)]
    return owners, sizes, [(i, *map(tuple, hooks)) for i, hooks in hooked]


def _forward(kind: type) -> tuple[Any, list[Any]]:
    return getattr(kind, "forward", None), told_of_forward(kind)[0]
