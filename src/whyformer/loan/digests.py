"""Names for contents, the same in every process: of a model, a processor, the arguments of a call.

Files of a cache and folders of jobs are found by such a name, so a difference that it does not show is a wrong number
later. Therefore every value is described in full, whatever holds it. A value that cannot be described raises
``Undescribed``; it is never left out.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import hashlib
import io
import json
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from importlib import metadata
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.errors import NotOffered
from whyformer.loan.fingerprint import (
    METHODS,
    MISSING,
    held_by_class,
    home_of,
    is_library,
    variables_of_class,
    variables_of_function,
)
from whyformer.loan.spread import is_distributed
from whyformer.version import __version__

FORMAT = "whyformer 3"
ATOMS = (
    bool, int, float, complex, str, bytes, type(None), type(...), slice, range, Enum, PurePath,
    torch.dtype, torch.device, torch.layout, torch.memory_format, np.generic, np.dtype,
)  # fmt: skip
# Objects that hold no number which a model could compute with.
NO_SETTINGS = (
    type(threading.Lock()), type(threading.RLock()), threading.Thread, logging.Logger, logging.Handler, weakref.ref,
    io.IOBase, torch.utils.hooks.RemovableHandle,
)  # fmt: skip
OF_TORCH = frozenset(nn.Module().__dict__)
HELD = {"_parameters", "_buffers", "_modules", *(name for name in OF_TORCH if "hooks" in name)}
LAST_CALL = {"padding", "truncation"}  # of a fast tokenizer: what it was last called with
# Of a tokenizer: read apart, where it was loaded from, and what it warned of.
LOADED = {
    "_tokenizer", "_vocab", "_merges", "vocab_file", "merges_file", "name_or_path", "init_inputs", "init_kwargs",
    "files_loaded", "deprecation_warnings", "verbose",
}  # fmt: skip

# Of the state of a bitsandbytes int8 layer: weights, which its first pass moves there, and facts of the last pass.
OF_LAST_PASS = {"CB", "CBt", "SB", "SBt", "SCB", "subB", "idx", "outlier_pool", "is_training"}


class Undescribed(NotOffered):
    """A value that cannot be compared with one of another process."""

    def __init__(self, at: str, kind: type, cause: str = "") -> None:
        self.at, self.kind = at, kind
        because = f" ({cause})" if cause else ""
        super().__init__(
            f"{at} is a {kind.__module__}.{kind.__qualname__}, and its contents cannot be described{because}, so "
            "results that depend on it cannot be found again on disk. Give its class a __reduce__ or __getstate__ that "
            "returns plain values, or omit the cache."
        )


def digest(*values: Any, **named: Any) -> str:
    """Return a name for these contents; two names are equal only if everything is."""
    name = hashlib.blake2b(FORMAT.encode(), digest_size=16)
    description = Description()
    for at, value in (*((type(value).__name__, value) for value in values), *sorted(named.items())):
        _add(name, at.encode() if at in named else b"", description(value, at))
    return name.hexdigest()


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of libraries that compute, whether they are imported or not."""
    installed = {"whyformer": __version__}
    for name in ("torch", "numpy", "transformers", "tokenizers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def circumstances(kind: str) -> tuple[Any, ...]:
    """Return what a computation on a kind of device depends on besides model and inputs: torch's flags and hooks."""
    everywhere = torch.nn.modules.module
    return (
        torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind),
        product_precision(kind),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
        *(tuple(hooks.values()) for name, hooks in sorted(vars(everywhere).items()) if name.startswith("_global_")
          and name.endswith("_hooks")),
    )  # fmt: skip


def product_precision(kind: str) -> Any:
    """Return the precision of float32 matrix products on a kind of device, in the terms of this version of torch."""
    # "none" (nobody has set it) computes as "ieee" does, which is what set_float32_matmul_precision("highest") leaves.
    products: Any = torch.backends.cuda.matmul if kind == "cuda" else getattr(torch.backends.mkldnn, "matmul", None)
    if hasattr(products, "fp32_precision"):
        return "ieee" if products.fp32_precision == "none" else products.fp32_precision
    return products.allow_tf32 if kind == "cuda" else torch.get_float32_matmul_precision()


def _add(name: Any, *parts: bytes) -> None:
    for part in parts:
        name.update(len(part).to_bytes(8, "little"))
        name.update(part)


def _merged(*parts: bytes) -> bytes:
    name = hashlib.blake2b(digest_size=16)
    _add(name, *parts)
    return bytes(name.digest())


class Description:
    """Turns values into bytes that differ where the values do. Cycles are numbered."""

    def __init__(self) -> None:
        self._known: dict[int, bytes] = {}
        self._open: dict[int, int] = {}  # values that are being described, by their depth
        self._alive: list[Any] = []  # an id may be given again when its object is gone

    def __call__(self, value: Any, at: str) -> bytes:
        if isinstance(value, ATOMS):
            return f"{_name(type(value))}:{value!r}".encode()
        key = id(value)
        if key in self._known:
            return self._known[key]
        if key in self._open:
            return f"<{len(self._open) - self._open[key]}>".encode()
        self._open[key] = len(self._open)
        try:
            self._known[key] = _merged(_name(type(value)).encode(), *self._parts(value, at))
        except RecursionError as error:
            raise Undescribed(at, type(value), "nested too deeply") from error
        finally:
            del self._open[key]
        self._alive.append(value)
        return self._known[key]

    def _parts(self, value: Any, at: str) -> Iterator[bytes]:
        if isinstance(value, Tensor):
            yield from self._tensor(value, at)
        elif isinstance(value, np.ndarray):
            yield from self._array(value, at)
        elif isinstance(value, nn.Module):
            yield from self._module(value, at)
        elif isinstance(value, NO_SETTINGS):
            return
        elif type(value).__name__ == "MatmulLtState":
            yield from self._items({k: v for k, v in vars(value).items() if k not in OF_LAST_PASS}, at)
        elif isinstance(value, torch.Generator):
            yield from self._tensor(value.get_state(), at)
        elif isinstance(value, ModuleType):
            yield f"{value.__name__} {getattr(value, '__version__', '')}".encode()
        elif isinstance(value, type):
            yield from self._class(value, at)
        elif isinstance(value, (FunctionType, MethodType, BuiltinFunctionType, functools.partial)):
            yield from self._function(value, at)
        elif callable(getattr(value, "__wrapped__", None)):  # functools.cache and the like
            yield self(value.__wrapped__, at)
        elif isinstance(value, (staticmethod, classmethod, property, CellType)):
            inner = [getattr(value, name, None) for name in ("__func__", "fget", "fset", "cell_contents")]
            yield self([part for part in inner if part is not None], at)
        elif getattr(value, "backend_tokenizer", None) is not None:
            yield from self._tokenizer(value, at)
        else:
            yield from self._object(value, at)

    def _items(self, value: Mapping[Any, Any], at: str) -> Iterator[bytes]:
        yield str(len(value)).encode()
        for key in value:
            yield self(key, at)
            yield self(value[key], f"{at}[{key!r}]" if not isinstance(key, str) else f"{at}.{key}")

    def _object(self, value: Any, at: str) -> Iterator[bytes]:
        """Describe collections by their members, other objects by what would be pickled."""
        kind = type(value)
        if isinstance(value, (Mapping, MappingProxyType)):
            yield from self._items(value, at)
        elif isinstance(value, (set, frozenset)):
            yield from sorted(self(member, at) for member in value)
        elif isinstance(value, (list, tuple)):
            for number, member in enumerate(value):
                yield self(member, f"{at}[{number}]")
        else:
            if not is_library(kind.__module__):
                yield self(kind, at)
            try:
                registered = copyreg.dispatch_table.get(kind)  # compiled patterns
                reduced = value.__reduce_ex__(4) if registered is None else registered(value)
                reduced = (reduced,) if isinstance(reduced, str) else reduced
                # The items of list and dict subclasses come as iterators.
                constructor, *rest = [list(part) if isinstance(part, Iterator) else part for part in reduced]
            except Undescribed:
                raise
            except Exception as error:  # a lock, a socket, a handle of C++: whatever its class raises
                raise Undescribed(at, kind, " ".join(str(error).split())[:120]) from error
            self._alive += [constructor, *rest]
            yield self(constructor, at)
            for part in rest:
                yield from self._items(part, at) if type(part) is dict else iter([self(part, at)])
            return
        if getattr(value, "__dict__", None):  # of a subclass
            yield self(vars(value), at)

    def _tensor(self, value: Tensor, at: str) -> Iterator[bytes]:
        yield f"{value.dtype} {tuple(value.shape)}".encode()  # devices round differently, and compute the same
        try:
            if value.is_meta:
                raise Undescribed(at, type(value), "its numbers are not in memory")
            if hasattr(type(value), "__tensor_flatten__") and not is_distributed(value):  # codes and scales (torchao)
                wrapper: Any = value
                for name in wrapper.__tensor_flatten__()[0]:
                    yield from self._tensor(getattr(value, name), f"{at}.{name}")
                return
            if value.is_quantized:
                yield repr((value.qscheme(), value.q_scale(), value.q_zero_point())).encode()
                value = value.int_repr()
            whole = value.detach()
            flat = (whole if whole.layout is torch.strided else whole.to_dense()).cpu().contiguous().flatten()
            yield flat.resolve_conj().resolve_neg().view(torch.uint8).numpy().tobytes()  # numpy has no bfloat16
        except (RuntimeError, TypeError, NotImplementedError) as error:  # a tensor subclass without plain numbers
            raise Undescribed(at, type(value), " ".join(str(error).split())[:120]) from error

    def _array(self, value: np.ndarray[Any, Any], at: str) -> Iterator[bytes]:
        yield f"{value.dtype} {value.shape}".encode()
        if value.dtype.hasobject:
            yield self(value.tolist(), at)
        else:
            yield value.tobytes()

    def _module(self, module: nn.Module, at: str) -> Iterator[bytes]:
        """Describe all that a pass reads of a module but ``training``, which is off in every explanation."""
        yield self(type(module), at)
        owner = module.__dict__
        hook = owner.get("_hf_hook")
        for name in sorted(HELD):
            members = dict(owner[name].items()) if owner.get(name) else {}
            for key in [k for k, v in members.items() if name == "_parameters" and v is not None and v.is_meta]:
                stored = getattr(hook, "weights_map", None) or {}  # accelerate keeps these outside of memory
                if key not in set(stored):
                    raise Undescribed(f"{at}.{key}", type(members[key]), "its numbers are not in memory")
                members[key] = _merged(*self._tensor(stored[key], f"{at}.{key}"))
            if "hooks" in name:
                members = dict(enumerate(members.values()))  # their ids are counted by the process
            yield name.encode()
            yield from self._items(members, at)
        # Layers that save more than their tensors: scales of quantised weights (bitsandbytes), wherever they are kept.
        if type(module)._save_to_state_dict is not nn.Module._save_to_state_dict:
            saved: dict[str, Any] = {}
            module._save_to_state_dict(saved, "", False)
            yield from self._items({k: v for k, v in saved.items() if k not in owner["_parameters"]}, at)
            self._alive.append(saved)
        for name in owner:
            if name in OF_TORCH:
                continue
            yield name.encode()
            yield self(type(hook) if name == "_hf_hook" else owner[name], f"{at}.{name}")

    def _class(self, kind: type, at: str) -> Iterator[bytes]:
        yield _name(kind).encode()
        for base in kind.__mro__:
            if base in {nn.Module, object} or (is_library(base.__module__) and not issubclass(base, nn.Module)):
                break
            for name, member in vars(base).items():
                function = getattr(member, "__func__", getattr(member, "fget", member))
                if isinstance(function, FunctionType):
                    yield name.encode()
                    if is_library(base.__module__) and is_library(function.__module__):
                        yield code_digest(function.__code__)
                    else:
                        yield from self._plain_function(function, f"{_name(kind)}.{name}")
                elif isinstance(member, ATOMS) and not name.startswith("__"):
                    yield name.encode()
                    yield self(member, at)
        for name, member in held_by_class(kind):
            if not isinstance(member, (*ATOMS, *METHODS, MemberDescriptorType)):
                yield name.encode()
                yield self(member, f"{_name(kind)}.{name}")
        yield from self._variables(variables_of_class(kind))

    def _function(self, value: Any, at: str) -> Iterator[bytes]:
        if isinstance(value, functools.partial):
            yield self((value.func, value.args, dict(value.keywords)), at)
        elif isinstance(value, MethodType):
            yield self((value.__func__, value.__self__), at)
        elif isinstance(value, BuiltinFunctionType):
            yield f"{value.__module__}.{value.__qualname__}".encode()
            if value.__self__ is not None and not isinstance(value.__self__, ModuleType):
                yield self(value.__self__, at)
        else:
            yield from self._plain_function(value, at)
            yield from self._variables(variables_of_function(value))

    def _plain_function(self, function: FunctionType, at: str) -> Iterator[bytes]:
        yield f"{function.__module__}.{function.__qualname__}".encode()
        yield code_digest(function.__code__)
        attributes = {} if is_library(home_of(function)) else vars(function)
        yield self((function.__defaults__, function.__kwdefaults__, attributes), at)
        for cell in function.__closure__ or ():
            yield self(cell, f"{at}.{function.__qualname__}")

    def _variables(self, variables: tuple[Any, ...]) -> Iterator[bytes]:
        for variable in variables:
            value = variable.value()
            yield variable.label.encode()
            yield b"" if value is MISSING else self(value, variable.label)

    def _tokenizer(self, value: Any, at: str) -> Iterator[bytes]:
        state = json.loads(value.backend_tokenizer.to_str())
        yield json.dumps({k: v for k, v in state.items() if k not in LAST_CALL}).encode()
        yield self({k: v for k, v in vars(value).items() if k not in LOADED}, at)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_CODES: weakref.WeakKeyDictionary[CodeType, bytes] = weakref.WeakKeyDictionary()


def code_digest(code: CodeType) -> bytes:
    """Return a digest of the code of a function, which never changes."""
    if code not in _CODES:
        describe: Callable[[Any, str], bytes] = Description()
        constants = (code_digest(c) if isinstance(c, CodeType) else describe(c, "") for c in code.co_consts)
        _CODES[code] = _merged(code.co_code, repr((code.co_names, code.co_varnames)).encode(), *constants)
    return _CODES[code]
