"""What a forward pass can read besides the model: globals, closures and attributes of classes, found in its code.

A model's ``forward`` may read a constant of its file, an attribute of a class or a variable of the function around it.
All of them are settings, although no module holds them. They are found by the names in the code of ``forward`` and of
the functions that it names. Code of installed libraries is left out: its version stands for it. What a pass reads from
elsewhere (environment variables, files, a server) is not seen.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from torch import nn

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
    """What the ``forward`` of a module reads outside the model, as its code is now; of other classes, any method."""
    if issubclass(kind, nn.Module):
        methods = [getattr(kind, "forward", None)]  # that of a scripted module has no code to read
    else:
        methods = [] if is_library(kind.__module__) else [m for b in kind.__mro__[:-1] for m in vars(b).values()]
    if is_library(kind.__module__) and all(is_library(_home(method)) for method in methods):
        return ()
    return tuple(_reached(methods, kind))


def variables_of_function(function: Any) -> tuple[Variable, ...]:
    """The same of a function by itself: a hook, what a table is called with."""
    return tuple(_reached([function], None))


def _home(function: Any) -> str | None:
    """The module whose globals a function reads; a decorated one bears the name of another."""
    function = getattr(function, "__func__", function)
    return function.__globals__.get("__name__") if isinstance(function, FunctionType) else None


def _reached(functions: Iterable[Any], kind: type | None) -> Iterator[Variable]:
    """Variables of functions and of all that they name, each once."""
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
            if is_library(_home(function)):
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


def _functions(value: Any) -> Iterator[FunctionType]:
    """Functions behind a value: a method, a property, a decorated function with what it wraps."""
    value = getattr(value, "__func__", value)
    rest = [value.fget, value.fset] if isinstance(value, property) else [value]
    while rest:
        function = rest.pop()
        if isinstance(function, FunctionType):
            yield function
            rest.append(getattr(function, "__wrapped__", None))


def _of_class(kind: type, name: str) -> Any:
    """An attribute as a class holds it, up to torch's own base."""
    for base in kind.__mro__:
        if base in {nn.Module, object}:
            break
        if name in vars(base):
            return vars(base)[name]
    return MISSING


_NAMES: weakref.WeakKeyDictionary[CodeType, frozenset[str]] = weakref.WeakKeyDictionary()


def names_in(code: CodeType) -> frozenset[str]:
    """Globals and attributes that code names, that of functions inside it included."""
    if code not in _NAMES:
        inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
        _NAMES[code] = frozenset(code.co_names).union(*inner)
    return _NAMES[code]


def variables_of(kinds: Iterable[type]) -> dict[str, Variable]:
    """What modules of these classes read outside the model, by labels that are the same in every process."""
    variables: dict[str, Variable] = {}
    for kind in dict.fromkeys(kinds):
        for variable in variables_of_class(kind):
            label, number = variable.label, 1
            while label in variables and variables[label].space is not variable.space:  # two of one name
                label, number = f"{variable.label}#{number}", number + 1
            variables[label] = variable
    return variables


def current(variables: Mapping[str, Variable]) -> dict[str, Any]:
    """The values that variables have now."""
    return {label: variable.value() for label, variable in variables.items()}
