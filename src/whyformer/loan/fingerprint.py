"""What answers depend on besides the inputs: compared from call to call (traits), and named on disk (digests).

Traits are everything about a model but its weights, gathered in one walk: what was found out about a model holds while
they stay. Digests read every weight, are the same in every process, and name the files
of a cache.
"""

from __future__ import annotations

import functools
import hashlib
import json
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

Array = np.ndarray[Any, Any]
PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size})
OF_TORCH = frozenset(nn.Module().__dict__)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

# Traits

Place = tuple[int, str]  # the number of a module or config, and the name of an attribute
SMALL = 64  # of longer lists and dicts, which and how long
DEEP = 3  # of objects inside objects: settings may be in an object of their own, and those of a part in one of that
FAR = 2000  # values inside one attribute; what is larger is no setting


class Traits(NamedTuple):
    """What a forward pass may read besides weights and inputs, and what has to live for it to be the same."""

    values: dict[Place, Any]
    alive: dict[Place, list[weakref.ref[Any]]]  # an id may be given again when its object is gone


def traits_of(modules: Sequence[nn.Module], states: frozenset[Place] = frozenset()) -> Traits:
    """Classes, hooks, buffers, attributes and config values of a model; ``states`` are those that a pass changes."""
    values: dict[Place, Any] = {}
    alive: dict[Place, list[weakref.ref[Any]]] = {}
    owners: list[dict[str, Any]] = [module.__dict__ for module in modules]
    configs: set[int] = set()
    for number, owner in enumerate(owners):  # configs are added as they are met
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
    return Traits(values, alive)


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
                told.append(id(value))
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
            elif depth < DEEP and not isinstance(value, (nn.Module, type, ModuleType)):
                rest += [(inner, depth + 1) for inner in getattr(value, "__dict__", {}).values()]
            try:
                refs.append(weakref.ref(value))
            except TypeError:
                pass
    return told, refs


def without(traits: Traits, places: frozenset[Place]) -> Traits:
    """The others."""
    return Traits(*({k: v for k, v in part.items() if k not in places} for part in traits))


# Digests
Part = bytes | str | int | float | Tensor | Array | None  # what a name can be made of
FORMAT = b"whyformer variants 2"
DEPTH = 4  # of objects inside objects


def digest(*parts: Part) -> str:
    """A name for these contents."""
    name = hashlib.blake2b(FORMAT, digest_size=16)
    for part in parts:
        data = _bytes(part)
        name.update(len(data).to_bytes(8, "little"))
        name.update(data)
    return name.hexdigest()


def _bytes(part: Part) -> bytes:
    if isinstance(part, bytes):
        return part
    if isinstance(part, Tensor):
        flat = part.detach().cpu().contiguous().flatten()
        # Viewed as bytes: numpy has no bfloat16.
        return f"{part.dtype}{tuple(part.shape)}".encode() + flat.view(torch.uint8).numpy().tobytes()
    if isinstance(part, np.ndarray):
        data = repr(part.tolist()).encode() if part.dtype.hasobject else part.tobytes()
        return f"{part.dtype}{part.shape}".encode() + data
    return repr(part).encode()


def weights_digest(model: nn.Module) -> str:
    """A name for the model as it is now: its classes and their code, weights, buffers, hooks, attributes, config."""
    return digest(torch.__version__, *_parts_of(model))


def processor_digest(processor: Any) -> str:
    """A name for a tokenizer, image processor or table: all that turns inputs into tensors, and fills gaps in them."""
    return digest(*_said_of(processor, DEPTH))


def _parts_of(model: nn.Module) -> Iterator[Part]:
    for path, module in model.named_modules():
        yield path
        yield code_of(type(module))
        for kind in HOOKS:
            for hook in module.__dict__[kind].values():
                yield kind
                yield from _said_of(hook, 0)
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                yield name
                yield None if tensor is None or tensor.is_meta else tensor
        for name, value in module.__dict__.items():
            if name not in OF_TORCH and not isinstance(value, nn.Module):
                yield name
                yield from _said_of(value, DEPTH)


def _said_of(value: Any, depth: int) -> Iterator[Part]:
    """Parts that tell a value from others, the same in every process: no addresses."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype, torch.device)):
        yield value if isinstance(value, bytes) else repr(value)
    elif isinstance(value, (Tensor, np.ndarray)):
        yield value
    elif isinstance(value, nn.Module):
        yield type(value).__qualname__  # said where it stands in the model
    elif isinstance(value, Mapping) and depth:
        for key in value:
            yield str(key)
            yield from _said_of(value[key], depth - 1)
    elif isinstance(value, (set, frozenset)):
        yield repr(sorted(map(repr, value)))
    elif isinstance(value, (list, tuple)) and depth:
        for inner in value:
            yield from _said_of(inner, depth - 1)
        yield len(value)
    elif isinstance(value, functools.partial):
        yield from _said_of(value.func, depth)
        yield from _said_of((value.args, value.keywords), depth)
    elif isinstance(value, type):
        yield code_of(value)
    elif isinstance(value, FunctionType):
        yield f"{value.__module__}.{value.__qualname__}"
        yield from _code(value.__code__)
        yield from _said_of([_inside(cell) for cell in value.__closure__ or ()], min(depth, 1))
    elif callable(getattr(value, "__func__", None)):  # a bound method: which, and of what class
        yield code_of(type(value.__self__))
        yield from _said_of(value.__func__, 0)
    else:
        yield code_of(type(value))
        backend = getattr(value, "backend_tokenizer", None)
        if backend is not None:
            state = json.loads(backend.to_str())
            yield json.dumps({k: v for k, v in state.items() if k not in {"padding", "truncation"}})  # of the last call
            yield repr(getattr(value, "special_tokens_map", None))
        elif depth and hasattr(value, "__dict__"):
            yield from _said_of(vars(value), depth - 1)


def _inside(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


_CODES: weakref.WeakKeyDictionary[type, tuple[Any, str]] = weakref.WeakKeyDictionary()


def code_of(kind: type) -> str:
    """A name for a class: where it is, and what its methods do, up to torch's own base."""
    forward = getattr(kind, "forward", None)  # which may be replaced
    if kind not in _CODES or _CODES[kind][0] is not forward:
        _CODES[kind] = forward, _named_code(kind)
    return _CODES[kind][1]


def _named_code(kind: type) -> str:
    parts: list[Part] = [f"{kind.__module__}.{kind.__qualname__}"]
    for base in kind.__mro__:
        if base in {nn.Module, object}:
            break
        for name, member in vars(base).items():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(function, FunctionType):
                parts += [name, *_code(function.__code__)]
    return digest(*parts)


def _code(code: CodeType) -> Iterator[Part]:
    yield code.co_code
    yield repr(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
