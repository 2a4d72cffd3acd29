"""What answers depend on besides the inputs, compared from call to call; digests.py names it on disk.

Traits are everything about a model but its weights, gathered in one walk: what was found out about a model holds while
they stay and its weights are not written to (borrow.py).
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import isnan
from pathlib import Path
from types import CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

# What a forward pass can read besides the model: globals, closures and attributes of classes, found in its code.
#
# A model's ``forward`` may read a constant of its file, an attribute of a class or a variable of the function around
# it. All of them are settings, although no module holds them. They are found by the names in the code of ``forward``
# and of the functions that it names. Code of installed libraries is left out: its version stands for it. What a pass
# reads from elsewhere (environment variables, files, a server) is not seen.

MISSING = object()
OWN = "whyformer"  # named by its version, as other libraries are, also where it runs from a checkout
_LIBRARY: dict[str, bool] = {}


class Variable(NamedTuple):
    """A name that code reads, and where its value is: globals of a file, a class, or the cell of a closure."""

    label: str
    space: Any
    name: str

    def value(self) -> Any:
        if isinstance(self.space, CellType):
            try:
                return self.space.cell_contents
            except ValueError:  # empty
                return MISSING
        if isinstance(self.space, type):
            return _of_class(self.space, self.name)
        return self.space.get(self.name, MISSING)


def is_library(module: str | None) -> bool:
    """Whether a module is installed or built in: its version names its code."""
    name = module or ""
    if name not in _LIBRARY:
        file = getattr(sys.modules.get(name), "__file__", None)
        if name.split(".")[0] == OWN or name.split(".")[0] in sys.stdlib_module_names - {"__main__"}:
            return _LIBRARY.setdefault(name, True)
        if file is None:  # a notebook, ``exec``: not remembered, a file may come
            return name in sys.builtin_module_names
        _LIBRARY[name] = "site-packages" in Path(file).parts or "dist-packages" in Path(file).parts
    return _LIBRARY[name]


def variables_of_class(kind: type) -> tuple[Variable, ...]:
    """Return what the ``forward`` of a module reads outside the model; for other classes, what any method reads."""
    if issubclass(kind, nn.Module):
        methods = [getattr(kind, "forward", None)]  # that of a scripted module has no code to read
    else:
        methods = [] if is_library(kind.__module__) else [m for b in kind.__mro__[:-1] for m in vars(b).values()]
    if is_library(kind.__module__) and all(is_library(home_of(method)) for method in methods):
        return ()
    return tuple(_reached(methods, kind))


def variables_of_function(function: Any) -> tuple[Variable, ...]:
    """Return what a function reads outside its arguments."""
    return tuple(_reached([function], None))


def home_of(function: Any) -> str | None:
    """Return the module whose globals a function reads; ``__module__`` of a decorated one may be another."""
    function = getattr(function, "__func__", function)
    return function.__globals__.get("__name__") if isinstance(function, FunctionType) else None


def held_by_function(function: FunctionType) -> list[Any]:
    """Return the defaults and attributes of a function of the user's, where it has any."""
    if is_library(home_of(function)):
        return []
    return [part for part in (function.__defaults__, function.__kwdefaults__, vars(function)) if part]


METHODS = (FunctionType, property, staticmethod, classmethod)


def held_by_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods and attributes of a class of the user's, by name; those that Python adds are left out."""
    for base in kind.__mro__:
        if not is_library(base.__module__):
            for name, member in vars(base).items():
                if isinstance(member, METHODS) or not (name.startswith("__") or name in OF_PYTHON):
                    yield name, member


OF_PYTHON = {"_abc_impl"}  # of an abstract class: which classes were compared with it


def _reached(functions: Iterable[Any], kind: type | None) -> Iterator[Variable]:
    """Yield the variables of functions and of all that they name, each once."""
    rest: list[tuple[Any, type | None]] = [(function, kind) for function in functions]
    entered: set[int] = set()  # functions, which live as long as what names them
    seen: set[tuple[int, str]] = set()

    def new(label: str, space: Any, name: str, owner: type | None) -> Iterator[Variable]:
        if (id(space), name) in seen:
            return
        seen.add((id(space), name))
        variable = Variable(label, space, name)
        value = variable.value()
        yield variable
        rest.append((value, owner))

    while rest:
        value, owner = rest.pop()
        for function in _functions(value):
            if id(function) in entered:
                continue
            entered.add(id(function))
            for number, cell in enumerate(function.__closure__ or ()):
                yield from new(f"{function.__qualname__}<{number}>", cell, "", owner)
            for base, name in () if owner is None else _overridden(function, owner):
                yield from new(f"{base.__qualname__}.{name}", base, name, owner)
            if is_library(home_of(function)):
                continue
            space = function.__globals__
            names = sorted(names_in(function.__code__))
            for name in names:
                if owner is not None and _of_class(owner, name) is not MISSING:
                    yield from new(f"{owner.__qualname__}.{name}", owner, name, owner)
                if name not in space:
                    continue
                yield from new(f"{space.get('__name__')}.{name}", space, name, None)
                inner = space[name]
                if isinstance(inner, ModuleType) and not is_library(inner.__name__):
                    for part in (p for p in names if p in vars(inner)):
                        yield from new(f"{inner.__name__}.{part}", vars(inner), part, None)
                elif isinstance(inner, type) and not is_library(inner.__module__):
                    for part in (p for p in names if _of_class(inner, p) is not MISSING):
                        yield from new(f"{inner.__qualname__}.{part}", inner, part, inner)


def _overridden(function: FunctionType, kind: type) -> Iterator[tuple[type, str]]:
    """Yield members of a class of the user's that a function reads by ``super()`` or through methods of a library."""
    rest: list[Any] = [] if is_library(kind.__module__) else [function]
    entered: set[int] = set()
    while rest:
        for reader in _functions(rest.pop()):
            names = () if id(reader) in entered else sorted(names_in(reader.__code__))
            entered.add(id(reader))
            for name in names:
                bases = [base for base in kind.__mro__ if base not in {nn.Module, object} and name in vars(base)]
                for base in bases if "super" in names else bases[:1]:
                    if is_library(base.__module__):
                        rest.append(vars(base)[name])
                    elif reader is not function or base is not bases[0] or is_library(home_of(function)):
                        yield base, name


def _functions(value: Any) -> Iterator[FunctionType]:
    """Yield the functions behind a value: a method, a property, a decorated function and what it wraps."""
    rest = _inside(value) or [value]
    while rest:
        function = rest.pop()
        if isinstance(function, FunctionType):
            yield function
            rest.append(getattr(function, "__wrapped__", None))


def _inside(value: Any) -> list[Any]:
    """Return the functions of a property, of a method of any kind, and of a bound one."""
    if isinstance(value, property):
        return [value.fget, value.fset]
    function = getattr(value, "__func__", None)
    return [] if function is None else [function]


def _of_class(kind: type, name: str) -> Any:
    """Return an attribute of a class, looked up to torch's own base."""
    for base in kind.__mro__:
        if base in {nn.Module, object}:
            break
        if name in vars(base):
            return vars(base)[name]
    return MISSING


_NAMES: weakref.WeakKeyDictionary[CodeType, frozenset[str]] = weakref.WeakKeyDictionary()


def names_in(code: CodeType) -> frozenset[str]:
    """Return the globals and attributes that code names, inner functions included."""
    if code not in _NAMES:
        inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
        _NAMES[code] = frozenset(code.co_names).union(*inner)
    return _NAMES[code]


def variables_of(kinds: Iterable[type]) -> dict[str, Variable]:
    """Return what modules of these classes read outside the model, by labels that are the same in every process."""
    variables: dict[str, Variable] = {}
    for kind in dict.fromkeys(kinds):
        for variable in variables_of_class(kind):
            label, number = variable.label, 1
            while label in variables and variables[label].space is not variable.space:  # two of one name
                label, number = f"{variable.label}#{number}", number + 1
            variables[label] = variable
    return variables


def current(variables: Mapping[str, Variable]) -> dict[str, Any]:
    return {label: variable.value() for label, variable in variables.items()}


PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size})
# Attributes that no pass reads as a setting: torch's own, and how transformers renamed the weights of a checkpoint.
NO_SETTINGS = frozenset(nn.Module().__dict__) | {"_weight_conversions"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
HOOKED = "hooks()"  # no attribute has a name that begins like this

Place = tuple[int, str]  # the number of a module, of a config or of all variables, and the name of an attribute
SMALL = 64  # of longer lists and dicts of objects, which and how long
LARGE = 20_000  # the same of numbers and words: labels of classes
DEEP = 3  # of objects inside objects: settings may be in an object of their own, and those of a part in one of that
MAPPINGS = (dict, MappingProxyType)
COLLECTIONS = (list, tuple, set, frozenset, deque, *MAPPINGS)
FAR = 2000  # values inside one attribute; what is larger is no setting


class Traits(NamedTuple):
    """What a forward pass may read besides weights and inputs, and the objects whose ids are compared."""

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
    forwards = {kind: told_of_forward(kind) for kind in {module.__class__ for module in modules}}
    outside: dict[Place, Variable] = {}
    for number, owner in enumerate(owners):  # configs are added as they are met, and last what is outside the model
        attributes = owner
        if number < len(modules):
            kind = modules[number].__class__
            # By their methods: those of a scripted module are no dicts, and its class has no forward of its own.
            names = *owner["_modules"].keys(), *owner["_parameters"].keys()
            told, alive[number, ""] = forwards[kind]
            values[number, ""] = kind, getattr(kind, "forward", None), told, *names
            values[number, "id"] = id(modules[number])
            alive[number, "id"] = [weakref.ref(modules[number])]
            for name in HOOKS:
                if owner[name]:
                    values[number, name] = tuple(owner[name])  # their unique numbers
            for name, read in parts_of_hooks(owner).items() if any(owner[name] for name in HOOKS) else ():
                if (number, name) not in states:
                    values[number, name], alive[number, name] = told_of(read)
            if owner["_buffers"]:
                attributes = owner | dict(owner["_buffers"].items())
        for name in attributes.keys() - NO_SETTINGS:
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


def parts_of_hooks(owner: Mapping[str, Any]) -> dict[str, Any]:
    """Return, by name, the hooks of a module and the variables that each of them reads.

    Each variable has its own entry: a hook may store activations in one, which changes in every pass, and read a
    setting from another.
    """
    hooks = [hook for name in HOOKS if owner[name] for hook in owner[name].values()]
    parts: dict[str, Any] = {HOOKED: [_itself(hook) for hook in hooks]}
    for number, hook in enumerate(hooks):
        if isinstance(hook, FunctionType):
            for place, variable in enumerate(variables_of_function(hook)):
                parts[f"{HOOKED} {number}.{place} {variable.label}"] = _itself(variable.value())
    return parts


def _itself(value: Any) -> Any:
    """Return a value; a function without the variables that it reads."""
    return [value.__code__, *held_by_function(value)] if isinstance(value, FunctionType) else value


def told_of_forward(kind: type) -> tuple[list[Any], list[weakref.ref[Any]]]:
    """Return what identifies the ``forward`` of a class besides its variables: its code, defaults and attributes."""
    forward = getattr(kind, "forward", None)
    if not isinstance(forward, FunctionType) or is_library(home_of(forward)):
        return [], []
    return told_of([forward.__code__, *held_by_function(forward)])


def told_of(value: Any) -> tuple[list[Any], list[weakref.ref[Any]]]:
    """Return what identifies a value that is not plain, and weak references to objects that are compared by id."""
    told: list[Any] = []
    refs: list[weakref.ref[Any]] = []
    rest: list[tuple[Any, int]] = [(value, 0)]
    reached: set[int] = set()  # functions whose variables are among those of another, and classes
    while rest and len(told) < FAR:
        value, depth = rest.pop()
        kind = value.__class__
        if kind in PLAIN:
            told.append(value)
        elif isinstance(value, COLLECTIONS):
            told += (kind, len(value))
            if len(value) > SMALL:
                told.append(str(value) if is_plain(value) else id(value))
            else:
                rest += [(inner, depth + 1) for inner in value]
                rest += [(inner, depth + 1) for inner in value.values()] if isinstance(value, MAPPINGS) else []
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
            elif isinstance(value, FunctionType):  # what it reads besides its arguments, and what that reads
                told[-1] = (id(value), id(value.__code__))
                refs.append(weakref.ref(value.__code__))
                rest += [(inner, depth + 1) for inner in held_by_function(value)]
                if id(value) not in reached:
                    read = [variable.value() for variable in variables_of_function(value)]
                    reached.update(id(function) for each in (value, *read) for function in _functions(each))
                    rest += [(inner, depth + 1) for inner in read]
            elif isinstance(value, (property, staticmethod, classmethod)):
                rest += [(inner, depth + 1) for inner in _inside(value)]
            elif depth < DEEP and not isinstance(value, (nn.Module, ModuleType)):
                owner = value if isinstance(value, type) else kind
                if id(owner) not in reached and not issubclass(owner, nn.Module):
                    reached.add(id(owner))
                    members = [member for _, member in held_by_class(owner)]
                    read = [variable.value() for variable in variables_of_class(owner)]
                    reached.update(id(function) for each in (*members, *read) for function in _functions(each))
                    rest += [(inner, depth + 1) for inner in (*members, *read)]
                rest += [(inner, depth + 1) for inner in _held(value)] if owner is kind else []
            try:
                refs.append(weakref.ref(value))
            except TypeError:
                pass
    return told, refs


def _held(value: Any) -> list[Any]:
    """Return the attributes of an object, and what a partial function was given."""
    slots: list[str] = []
    for base in value.__class__.__mro__:
        names = vars(base).get("__slots__", ())
        slots += [names] if isinstance(names, str) else names
    bound = [value.func, value.args, value.keywords] if isinstance(value, partial) else []
    return [*bound, *getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]


def is_plain(value: Any) -> bool:
    """Whether a value is a collection of numbers and strings, so that == compares it in full."""
    if value.__class__ not in {dict, set, frozenset, list, tuple, deque} or len(value) > LARGE:
        return False
    members = [*value, *value.values()] if value.__class__ is dict else value
    return all(member.__class__ in PLAIN and not (member.__class__ is float and isnan(member)) for member in members)
