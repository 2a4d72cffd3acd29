"""The codec: convert dataclasses to plain data and back, by their annotations. NaN becomes null, as JSON has no NaN."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from whyformer.errors import NotOffered
from whyformer.files import PRIVATE, Damaged, parsed, write_file, writing
from whyformer.shapes import Array

# Fields that hold arrays say of what: JSON knows numbers only.
Float32 = Annotated[Array, np.float32]
Float64 = Annotated[Array, np.float64]
Int64 = Annotated[Array, np.int64]
UInt8 = Annotated[Array, np.uint8]
INFINITE = ("inf", "-inf")  # as JSON has them: its numbers are finite
LARGEST = 2**63  # of whole numbers
LONGEST_SHOWN = 60  # characters of what a file holds, in an error


class Coded(ABC):
    """A class with a plain form of its own (a Result, with its format and kind), which the codec uses."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain data: arrays as nested lists, null for NaN."""

    @classmethod
    @abstractmethod
    def _from_dict(cls, plain: Any, at: str = "") -> Any:
        """Make the object from plain data; ``at``: its place in the file, for errors."""


@dataclass(frozen=True)
class Keyed:
    """Annotation of a dict whose values have different types: ``kinds()`` returns the type of each key."""

    kinds: Callable[[], Mapping[str, Any]]


def to_plain(value: Any) -> Any:
    """Lists, dicts with names, numbers and words."""
    if isinstance(value, Coded):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return fields_of(value)
    if isinstance(value, dict):
        return {key_of(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(v) for v in value]
    return _listed(value) if isinstance(value, np.ndarray) else _free(value)


def _free(value: Any) -> Any:
    """Options, which may hold anything: what is neither a number nor a word is put into words."""
    if isinstance(value, dict):
        return {key_of(k): _free(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [_free(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value if value is None or isinstance(value, (str, int, float)) else repr(value)


def _listed(array: Array) -> Any:
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array.tolist()
    plain = array.astype(object)
    plain[np.isnan(array)] = None
    for end in (math.inf, -math.inf):
        plain[array == end] = str(end)
    return plain.tolist()


def key_of(key: Any) -> str:
    return "|".join(map(str, key)) if isinstance(key, tuple) else str(key)


class Misfit(ValueError):
    """A field of a file that is not what it should be."""

    def __init__(self, at: str, wanted: str, data: Any) -> None:
        shown = f"an array of shape {data.shape}" if isinstance(data, np.ndarray) else repr(data)
        shown = shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}… ({type(data).__name__})"
        super().__init__(f"{at or 'it'} should be {wanted} and is {shown}")


def from_plain(hint: Any, data: Any, at: str = "") -> Any:
    """``data`` as what ``hint`` says; ``at``: its place in the file, for errors."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return data
    if origin in (Union, types.UnionType):
        return None if data is None else from_plain(_member(inner, data), data, at)
    if origin is Annotated:
        note = hint.__metadata__[0]
        if not isinstance(note, Keyed):
            return _array(note, data, at)
        kinds = note.kinds()
        if unknown := sorted(mapping(data, at).keys() - kinds.keys()):
            raise Misfit(at, f"by names among {', '.join(kinds)}", unknown[0])
        return {name: from_plain(kinds[name], part, below(at, name)) for name, part in data.items()}
    if origin is None and isinstance(hint, type) and issubclass(hint, Coded):  # Python 3.10 calls list[int] a type
        return hint._from_dict(data, at)
    if dataclasses.is_dataclass(hint):
        return filled(hint, data, at)
    if origin is tuple:
        parts = _sequence(data, at)
        members = (inner[0],) * len(parts) if inner[-1] is Ellipsis else inner
        if len(members) != len(parts):
            raise Misfit(at, f"a list of {len(members)}", data)
        plain = {*inner} - {Ellipsis}
        if plain <= {str, bool, int} and plain == set(map(type, parts)) and len(plain) == 1:  # as below, many at once
            if plain != {int} or max(map(abs, parts)) < LARGEST:
                return parts
        return tuple(from_plain(members[i], part, f"{at}[{i}]") for i, part in enumerate(parts))
    if origin is list:  # arrays of an .npz come by their number
        parts = tuple(data.values()) if isinstance(data, dict) else _sequence(data, at)
        return [from_plain(inner[0], part, f"{at}[{i}]") for i, part in enumerate(parts)]
    if origin is dict:
        return {_pair_of(inner[0], k, at): from_plain(inner[1], v, below(at, k)) for k, v in mapping(data, at).items()}
    return _single(hint, data, at)


def _single(hint: Any, data: Any, at: str) -> Any:
    """A number, a word, a yes or no."""
    if hint is float and (data is None or data in INFINITE):
        return math.nan if data is None else float(data)
    if hint in (float, int):
        whole = isinstance(data, int) and not isinstance(data, bool)
        if not (whole or (hint is float and isinstance(data, float))):
            raise Misfit(at, "a number" if hint is float else "a whole number", data)
        if whole and abs(data) >= LARGEST:
            raise Misfit(at, "a number that fits into 64 bits", data)
        return hint(data)
    if isinstance(hint, type) and not isinstance(data, hint):
        raise Misfit(at, {str: "a word", bool: "true or false"}.get(hint, f"a {hint.__name__}"), data)
    return data


def _array(kind: Any, data: Any, at: str) -> Array:
    """Numbers as an array of ``kind``: nothing is cut off, rounded to whole numbers, or made up."""
    wanted = "numbers in rows of one length" if np.dtype(kind).kind == "f" else "whole numbers in rows of one length"
    array = data if isinstance(data, np.ndarray) else np.array(data, object)
    types_here = {type(value) for value in array.flat} if array.dtype == object else {array.dtype.type}
    allowed: tuple[type, ...] = (int, np.integer)
    if np.dtype(kind).kind == "f":
        allowed = (float, int, np.floating, np.integer, type(None), str)
        if str in types_here and {v for v in array.flat if isinstance(v, str)} - set(INFINITE):
            raise Misfit(at, wanted, data)
    if any(issubclass(t, bool) or not issubclass(t, allowed) for t in types_here):
        raise Misfit(at, wanted, data)
    try:
        made = array.astype(kind)
    except (ValueError, TypeError, OverflowError):
        raise Misfit(at, wanted, data) from None
    if made.dtype.kind != "f" and not np.array_equal(made, array):
        raise Misfit(at, f"numbers that {np.dtype(kind)} can hold", data)
    return made


def mapping(data: Any, at: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise Misfit(at, "an object with names", data)
    return data


def _sequence(data: Any, at: str) -> tuple[Any, ...]:
    if not isinstance(data, (list, tuple)):
        raise Misfit(at, "a list", data)
    return tuple(data)


def _pair_of(hint: Any, key: Any, at: str) -> Any:
    """A name; of a pair of streams, both."""
    if get_origin(hint) is not tuple:
        return key
    names = tuple(key.split("|"))
    if len(names) != len(get_args(hint)):
        raise Misfit(at, "by names such as 'text|text'", key)
    return names


def below(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _member(members: tuple[Any, ...], data: Any) -> Any:
    """Which of several hints is meant: one with names where the data has names, a word where it is one."""
    present = [hint for hint in members if hint is not type(None)]
    named = [hint for hint in present if get_origin(hint) is dict or dataclasses.is_dataclass(hint)]
    fitting = named if isinstance(data, dict) else [hint for hint in present if hint not in named]
    exact = [hint for hint in fitting if isinstance(hint, type) and type(data) is hint]
    return (exact or fitting or present)[0]


def filled(kind: Any, data: Any, at: str = "") -> Any:
    """Return a dataclass; what an older file does not hold yet has its default, its ``former`` fields are left out."""
    hints = _hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    data = {name: part for name, part in mapping(data, at).items() if name not in getattr(kind, "former", ())}
    if unknown := sorted(data.keys() - fields.keys()):
        raise Damaged(f"{below(at, unknown[0])!r} is unknown")
    for name, f in fields.items():
        if name not in data and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise Damaged(f"{below(at, name)!r} is missing")
    parts = {name: from_plain(hints[name], part, below(at, name)) for name, part in data.items()}
    try:
        return kind(**parts)
    except ValueError as error:  # what its parts have to do with each other
        raise Damaged(f"{at}: {error}" if at else str(error)) from error


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def fields_of(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    hints = _hints(kind)
    later = getattr(kind, "later", ())  # files without these stay what they were
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    fields = {name: part for name, part in fields.items() if part is not None or name not in later}
    return {name: _free(part) if hints[name] == dict[str, Any] else to_plain(part) for name, part in fields.items()}


def reason(error: Exception) -> str:
    """Return what is wrong in one line; other errors with the name of their type."""
    words = " ".join(str(error).split())[:300]
    return words if isinstance(error, (Damaged, Misfit)) else f"{type(error).__name__}: {words}"


def write_piece(value: Any, path: Path) -> None:
    """One line with the checksum of the rest, and the value; whole or not at all, also where several write it."""
    data = json.dumps(to_plain(value), ensure_ascii=False).encode()
    with writing(path):
        write_file(path, _checksum(path, data) + b"\n" + data, PRIVATE)


def _checksum(path: Path, data: bytes) -> bytes:
    """Return the checksum of name and contents, so that a renamed file is not taken for another."""
    return hashlib.blake2b(path.name.encode() + b"\n" + data).hexdigest().encode()


def is_whole(path: Path) -> bool:
    """Return whether the file exists and its checksum is right."""
    if not path.is_file():
        return False
    checksum, _, data = path.read_bytes().partition(b"\n")
    return _checksum(path, data) == checksum


def read_piece(hint: Any, path: Path) -> Any:
    """Read what ``write_piece`` wrote, as the type ``hint``."""
    try:
        return from_plain(hint, parsed(path.read_bytes().partition(b"\n")[2].decode()))
    except Exception as error:
        raise NotOffered(f"{str(path)!r} in the cache cannot be read ({reason(error)}): delete it.") from error
