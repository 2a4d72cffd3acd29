"""A model as one walk saw it, and a quick look that tells whether it is still the same.

Every call of every explanation looks once, and a model of twelve layers has hundreds of modules. Its parts are held
weakly; comparisons go over whole lists at a time, which Python does quickly. Whatever is not plainly the same is walked
and compared in full (fingerprint.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from copy import copy
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from types import BuiltinFunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from whyformer.loan.fingerprint import (
    HOOKED,
    HOOKS,
    PLAIN,
    SMALL,
    Place,
    Traits,
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
Dicts = list[dict[str, Any]]


class Members(NamedTuple):
    """The modules, parameters and configs of a model."""

    modules: list[nn.Module]
    parameters: list[nn.Parameter]
    configs: list[Any]


class Look:
    """The parts of a model, and all that a pass may read besides weights and inputs, as they were at the last walk."""

    def __init__(self, named: Sequence[tuple[str, nn.Module]], members: Members) -> None:
        modules, parameters, configs = members
        self.names = {id(module): path for path, module in named}  # dotted paths, by identity
        # In the order in which they are taken; each member has its own as long as it lives.
        self.turns = turns_of((*modules, *parameters, *configs))
        self.quantized = any(map(is_quantized, modules))
        self.wraps = any("_orig_mod" in module._modules for module in modules)  # torch.compile's
        self.gone = self.counted = self.compiled = False
        self.traits: Traits | None = None  # what is compared, once it is known
        # Scripted modules list their parts in ways of their own, and a config may be a plain dict: no weak reference.
        self.steady = not any(isinstance(module, torch.jit.ScriptModule) for module in modules)
        try:
            self._modules = [weakref.ref(module, self._went) for module in modules]
            self._others = [weakref.ref(part, self._went) for part in (*parameters, *configs)]
        except TypeError:
            self.steady = False
        if self.steady:
            self._structure, held = _structure(modules, list(map(DICT, modules)))
            places = {id(parameter) for parameter in parameters}
            self._weights = [place for place, part in enumerate(held) if id(part) in places]

    @classmethod
    def at(cls, model: nn.Module) -> tuple[Look, Members]:
        """Walk through a model."""
        named = list(model.named_modules())
        modules = [module for _, module in named]
        # Not model.parameters(): it would walk through the modules once more.
        parameters = [p for m in modules for p in m._parameters.values() if p is not None]
        members = Members(modules, parameters, _configs([module.__dict__ for module in modules]))
        return cls(named, members), members

    def _went(self, ref: Any) -> None:
        self.gone = True  # its id may be that of another object from now on

    def now(self, states: frozenset[Place] = frozenset()) -> tuple[Members | None, bool]:
        """Return the parts of the model, None if there may be others, and whether all settings are plainly the same."""
        if not self.steady or self.gone:
            return None, False
        modules: list[Any] = [ref() for ref in self._modules]
        try:
            attributes = list(map(DICT, modules))
        except AttributeError:  # another thread has just dropped one of them
            return None, False
        structure, held = _structure(modules, attributes)
        if structure != self._structure or self.gone:
            return None, False
        members = Members(modules, [held[place] for place in self._weights], _configs(attributes))
        return members, self.traits is not None and states is self.states and self._same(attributes, members.configs)

    # Settings

    def watch(self, members: Members, traits: Traits, states: frozenset[Place]) -> None:
        """Arrange these traits so that comparing them is fast."""
        modules, parameters, configs = members
        self.variables = {label: variable for (_, label), variable in traits.variables.items()}
        attributes = list(map(DICT, modules))
        owners, self.sizes = self._owners(attributes, configs)
        self.registered, self.hooks = RemovableHandle.next_id, _hooks(attributes)
        # Whether each weight is one whose writes torch counts, at an address of its own.
        self.counted = not any(p.__class__ is not nn.Parameter or p.is_meta or p.is_inference() for p in parameters)
        self.compiled = any(module._compiled_call_impl is not None for module in modules)
        self.forwards = [(kind, getattr(kind, "forward", None)) for kind in {module.__class__ for module in modules}]
        self.code = [(kind, told) for kind, _ in self.forwards if (told := told_of_forward(kind)[0])]
        self.unsure = any(number >= len(owners) for number, _ in traits.values)  # a config inside a config
        self.alive = [ref for (_, name), refs in traits.alive.items() if name != "id" for ref in refs]
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
        self.leave_out(states)
        self.traits = traits  # last: from now on, other threads compare

    def leave_out(self, states: frozenset[Place]) -> None:
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

    def _owners(self, attributes: Dicts, configs: list[Any]) -> tuple[Dicts, list[int]]:
        """Return who has attributes (modules, their configs, the code around them), and how many each has."""
        owners = attributes + [vars(config) for config in configs if hasattr(config, "__dict__")]
        if self.variables:
            owners.append(current(self.variables))
        return owners, [*map(len, owners), *map(len, map(BUFFERS, attributes))]

    def _same(self, attributes: Dicts, configs: list[Any]) -> bool:
        """Whether every setting is unchanged; False also where only a full comparison could decide."""
        if self.unsure or any(ref() is None for ref in self.alive):
            return False
        owners, sizes = self._owners(attributes, configs)
        if sizes != self.sizes:
            return False
        if self.hooks or self.registered != RemovableHandle.next_id:  # else none was registered on any module
            registered = RemovableHandle.next_id
            if _hooks(attributes) != self.hooks:
                return False
            self.registered = registered
        if any(getattr(kind, "forward", None) is not forward for kind, forward in self.forwards):
            return False
        if any(told_of_forward(kind)[0] != told for kind, told in self.code):
            return False
        try:
            if [values(owners[number]) for number, values in self.looks] != self.values:
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


def _structure(modules: Sequence[nn.Module], attributes: Dicts) -> tuple[tuple[list[Any], ...], list[Any]]:
    """Return what tells whether the parts are the same and at the same places, and all parts in one list."""
    held: Dicts = [*map(CHILDREN, attributes), *map(WEIGHTS, attributes)]
    parts = list(chain.from_iterable(map(dict.values, held)))
    ids = list(map(id, chain(parts, map(dict.get, attributes, repeat("config")))))
    return (ids, list(chain.from_iterable(held)), list(map(len, held)), list(map(CLASS, modules))), parts


def _configs(attributes: Dicts) -> list[Any]:
    """Return the configs of modules, in the order in which they are met."""
    held = map(dict.get, attributes, repeat("config"))
    return list({id(config): config for config in held if config is not None}.values())


def _hooks(attributes: Dicts) -> list[tuple[Any, ...]]:
    """Return the unique numbers of hooks, by the number of the module."""
    each = list(map(ALL_HOOKS, attributes))
    if not any(chain.from_iterable(each)):
        return []
    return [(number, *map(tuple, hooks)) for number, hooks in enumerate(each) if any(hooks)]
