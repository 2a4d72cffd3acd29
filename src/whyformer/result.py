"""Result: what every verb returns. One set of doors to pictures, files and frames; one codec, by annotations."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import random
import sys
import threading
import types
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from whyformer.brief import brief
from whyformer.errors import BadInput, MissingExtra, NotOffered, WhyformerError
from whyformer.files.archives import Damaged, members_bytes, parsed, read_arrays, read_json, require_room
from whyformer.files.paths import is_file, is_folder, path_of, readable_file, writable_file, writing
from whyformer.parameters import checked

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]
# Fields that hold arrays say of what: JSON knows numbers only.
Float32 = Annotated[Array, np.float32]
Float64 = Annotated[Array, np.float64]
Int64 = Annotated[Array, np.int64]
UInt8 = Annotated[Array, np.uint8]

FORMAT = 1
EXPLANATION = "explanation"  # files of explanations do not say what they hold
PICTURES = (".html", ".png", ".svg", ".pdf")
DATA = (".json", ".npz")
HEADER = "__header__"
INFINITE = ("inf", "-inf")  # as JSON has them: its numbers are finite
LARGEST = 2**63  # of whole numbers
LONGEST_SHOWN = 60  # characters of what a file holds, in an error
RESULTS: dict[str, type[Result]] = {}  # what a file says it holds → the class that reads it
HOMES = (  # imported when a file holds what is not known yet
    "whyformer.types",
    "whyformer.tables",
    "whyformer.heads",
    "whyformer.concepts",
    "whyformer.evaluate.compare",
    "whyformer.evaluate.recommend",
    "whyformer.checks.result",
    "whyformer.checks.retrained",
    "whyformer.language.citations",
    "whyformer.jobs.summary",
    "whyformer.reports.report",
)
DATASETS = "whyformer.jobs.dataset"  # reads folders
Kind = TypeVar("Kind", bound="Result")


class Pictured:
    """What can be shown, drawn and put on a page: ``views.view_of`` knows how."""

    def view(self, *how: Any, **options: Any) -> Any:
        """The picture without a medium (a View or Page), to be put on a page with others."""
        from whyformer.views import view_of  # a lazy door: views draw, results only hold

        return view_of(self, *how, **options)

    def show(self, *how: Any, **options: Any) -> None:
        """Print to the terminal."""
        self.view(*how, **options).show()

    def plot(self, *how: Any, **options: Any) -> Any:
        """A matplotlib figure."""
        return self.view(*how, **options).plot()

    def to_html(self, *how: Any, **options: Any) -> str:
        """One page that needs no network."""
        return str(self.view(*how, **options).to_html())

    def _repr_html_(self) -> str:
        return str(self.view()._repr_html_())

    def widget(self, *how: Any, ask: Callable[..., Any] | None = None, **options: Any) -> Any:
        """The page for a notebook that runs: a click on a class is answered by ``ask(target=…)``, an explain call.

        It takes anywidget (the extra ``notebook``) and a kernel; elsewhere it is the page that notebooks draw anyway.
        """
        return self.view(*how, **options).widget(ask)

    def save(self, path: str | Path, *how: Any, **options: Any) -> Path:
        """Write a picture: .html, .png, .svg or .pdf."""
        path = writable_file(path, PICTURES)
        self.view(*how, **options).save(path)
        return path


class Result(Pictured, ABC):
    """What a verb returns: it can be shown, drawn, saved, listed, and read back without the model.

    Subclasses are frozen dataclasses; ``what`` names them in files, and ``views.view_of`` knows their pictures. What a
    picture can be told (``image`` and ``by`` of an Explanation, ``beside`` of a PruningCurve) every door takes.
    """

    what: ClassVar[str]
    last: ClassVar[tuple[str, ...]] = ()  # fields that stand at the end of a file: long ones, behind what people read
    later: ClassVar[tuple[str, ...]] = ()  # fields that came after the format: files have them where they are not None
    # Letters of the axes of fields (of tuples and the like, one): a letter has one size, held to when a file is read.
    axes: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in cls.__dict__:  # a dataclass would write one of its own, with all numbers
            cls.__repr__ = Result.__repr__  # type: ignore[method-assign]
        if "what" in cls.__dict__:
            other = RESULTS.setdefault(cls.what, cls)
            if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise TypeError(f"{cls.__name__}.what: {cls.what!r} is taken by {other.__name__}.")
            RESULTS[cls.what] = cls

    def __repr__(self) -> str:
        return brief(self)

    @checked
    def save(self, path: str | Path, *how: Any, **options: Any) -> Path:
        """Write a picture (.html, .png, .svg, .pdf), or data that ``whyformer.load`` reads back (.json, .npz)."""
        path = writable_file(path, (*PICTURES, *DATA))
        if path.suffix in PICTURES:
            self.view(*how, **options).save(path)
            return path
        if how or options:
            told = ", ".join([*map(repr, how), *map(repr, options)])
            raise BadInput(f"{path.suffix} files hold the whole result: leave out {told}, which is for pictures.")
        with writing(path):
            if path.suffix == ".json":
                plain = json.dumps(self.to_dict(), ensure_ascii=False)
                path.write_bytes(plain.encode("utf-8", "backslashreplace"))  # half a character has an escape in JSON
            else:
                _write_npz(self, path)
        return path

    def to_dict(self) -> dict[str, Any]:
        """Plain data: arrays as nested lists, null for NaN."""
        plain = _header(self) | _fields(self)
        for name in self.last:
            plain[name] = plain.pop(name)
        return plain

    @abstractmethod
    def to_frame(self) -> pd.DataFrame:
        """A pandas table."""

    @classmethod
    @checked
    def load(cls: type[Kind], path: str | Path) -> Kind:
        """Read what ``save`` wrote as .json or .npz; no model is needed."""
        named = cls.what if "what" in cls.__dict__ else f"{EXPLANATION} or other result"
        path = readable_file(path, f"saved {named}")
        if path.suffix.lower() not in DATA:
            raise BadInput(f"{str(path)!r} is no saved {named}: those are {' and '.join(DATA)} files.")
        try:
            return _from_dict(cls, _read(path))
        except WhyformerError:
            raise
        except Exception as error:  # a file can hold anything
            raise BadInput(
                f"{str(path)!r} is no saved {named} ({_words(error)}). Give a file as .save() writes it, or save again."
            ) from error


@checked
def load(path: str | Path) -> Any:
    """Read any saved result, .json or .npz, or the folder of an explained dataset; no model is needed."""
    if is_folder(path_of(path)) and is_file(Path(path) / "manifest.json"):
        return import_module(DATASETS).ExplainedDataset(path)
    return Result.load(path)  # type: ignore[type-abstract]


def _words(error: Exception) -> str:
    """What is wrong, in one line; what is not said here is put as the error that it was."""
    words = " ".join(str(error).split())[:300]
    return words if isinstance(error, (Damaged, Misfit)) else f"{type(error).__name__}: {words}"


# Files: .json is plain; .npz holds the same, with fields that are arrays (or lists or dicts of them) as arrays.


def _header(result: Result) -> dict[str, Any]:
    return {"format": FORMAT} | ({} if result.what == EXPLANATION else {"what": result.what})


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _fields(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    hints = _hints(kind)
    later = getattr(kind, "later", ())  # files without these stay what they were
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    fields = {name: part for name, part in fields.items() if part is not None or name not in later}
    return {name: _free(part) if hints[name] == dict[str, Any] else to_plain(part) for name, part in fields.items()}


def _write_npz(result: Result, path: Path) -> None:
    plain: dict[str, Any] = result.to_dict()
    arrays: dict[str, Any] = {}
    for name in (f.name for f in dataclasses.fields(result)):  # type: ignore[arg-type]
        value = getattr(result, name)
        if isinstance(value, np.ndarray):
            arrays[name] = value
        else:
            parts = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
            if not parts or not all(isinstance(part, np.ndarray) for part in parts.values()):
                continue
            arrays |= {f"{name}:{_key(key)}": part for key, part in parts.items()}
        del plain[name]
    arrays[HEADER] = np.array(json.dumps(plain, ensure_ascii=False))
    np.savez_compressed(path, **arrays)
    try:
        with zipfile.ZipFile(path) as archive:
            require_room(members_bytes(archive, archive.infolist()), path.stat().st_size)
    except Damaged:  # packed so tightly (all zeros) that reading would take it for a trap
        np.savez(path, **arrays)


def _read(path: Path) -> dict[str, Any]:
    if path.suffix.lower() != ".npz":
        return _mapping(read_json(path), "it")
    arrays = read_arrays(path)
    if HEADER not in arrays:
        raise Damaged(f"there is no {HEADER!r} in it")
    data = _mapping(parsed(str(arrays.pop(HEADER))), HEADER)
    for entry, array in arrays.items():
        name, _, key = entry.partition(":")
        if key:
            _mapping(data.setdefault(name, {}), name)[key] = array
        else:
            data[name] = array
    return data


def _from_dict(kind: type[Kind], plain: Any, at: str = "") -> Kind:
    data = _mapping(plain, at or "it")
    if data.get("format") != FORMAT:
        raise Damaged("it holds something else, or comes from another version of whyformer")
    what = data.get("what", EXPLANATION)
    for home in () if not isinstance(what, str) or what in RESULTS else HOMES:
        import_module(home)
    reads = RESULTS.get(what) if isinstance(what, str) else None
    if reads is None or not issubclass(reads, kind):
        raise Damaged(f"it holds a {what}" + (f": {reads.__name__}.load reads it" if reads else ""))
    made: Kind = _filled(reads, {name: part for name, part in data.items() if name not in ("format", "what")}, at)
    _check_axes(made, at)
    return made


def _check_axes(result: Result, at: str) -> None:
    """One letter, one size."""
    sizes: dict[str, tuple[int, str]] = {}
    for name, letters in result.axes.items():
        value = getattr(result, name)
        if value is None:
            continue
        shape = value.shape if isinstance(value, np.ndarray) else (len(value),)
        if len(shape) != len(letters):
            raise Misfit(_below(at, name), f"an array with {len(letters)} axes", value)
        for letter, size in zip(letters, shape, strict=True):
            expected, first = sizes.setdefault(letter, (size, name))
            if size != expected:
                raise Misfit(_below(at, name), f"of length {expected} on one axis, as {first} is,", value)


# The codec: plain data and back, by the annotations of dataclasses. JSON has no NaN: it becomes null.


@dataclass(frozen=True)
class Keyed:
    """Annotates a dict whose values are of a kind each: ``kinds()`` says, by key, which."""

    kinds: Callable[[], Mapping[str, Any]]


def to_plain(value: Any) -> Any:
    """Lists, dicts with names, numbers and words."""
    if isinstance(value, Result):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return _fields(value)
    if isinstance(value, dict):
        return {_key(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(v) for v in value]
    return _listed(value) if isinstance(value, np.ndarray) else _free(value)


def _free(value: Any) -> Any:
    """Options, which may hold anything: what is neither a number nor a word is put into words."""
    if isinstance(value, dict):
        return {_key(k): _free(v) for k, v in value.items()}
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


def _key(key: Any) -> str:
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
        return None if data is None else from_plain(_member(inner, data, at), data, at)
    if origin is Annotated:
        note = hint.__metadata__[0]
        if not isinstance(note, Keyed):
            return _array(note, data, at)
        kinds = note.kinds()
        if unknown := sorted(_mapping(data, at).keys() - kinds.keys()):
            raise Misfit(at, f"by names among {', '.join(kinds)}", unknown[0])
        return {name: from_plain(kinds[name], part, _below(at, name)) for name, part in data.items()}
    if isinstance(hint, type) and issubclass(hint, Result):
        return _from_dict(hint, data, at)
    if dataclasses.is_dataclass(hint):
        return _filled(hint, data, at)
    if origin is tuple:
        parts = _sequence(data, at)
        members = (inner[0],) * len(parts) if inner[-1] is Ellipsis else inner
        if len(members) != len(parts):
            raise Misfit(at, f"a list of {len(members)}", data)
        return tuple(from_plain(members[i], part, f"{at}[{i}]") for i, part in enumerate(parts))
    if origin is list:  # arrays of an .npz come by their number
        parts = tuple(data.values()) if isinstance(data, dict) else _sequence(data, at)
        return [from_plain(inner[0], part, f"{at}[{i}]") for i, part in enumerate(parts)]
    if origin is dict:
        return {_key_of(inner[0], k, at): from_plain(inner[1], v, _below(at, k)) for k, v in _mapping(data, at).items()}
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
            raise Misfit(at, "a number of ordinary size", data)
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


def _mapping(data: Any, at: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise Misfit(at, "an object with names", data)
    return data


def _sequence(data: Any, at: str) -> tuple[Any, ...]:
    if not isinstance(data, (list, tuple)):
        raise Misfit(at, "a list", data)
    return tuple(data)


def _key_of(hint: Any, key: Any, at: str) -> Any:
    """A name; of a pair of streams, both."""
    if get_origin(hint) is not tuple:
        return key
    names = tuple(key.split("|"))
    if len(names) != len(get_args(hint)):
        raise Misfit(at, "by names such as 'text|text'", key)
    return names


def _below(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _member(members: tuple[Any, ...], data: Any, at: str) -> Any:
    """Which of several hints is meant: one with names where the data has names, a word where it is one."""
    present = [hint for hint in members if hint is not type(None)]
    named = [hint for hint in present if get_origin(hint) is dict or dataclasses.is_dataclass(hint)]
    fitting = named if isinstance(data, dict) else [hint for hint in present if hint not in named]
    exact = [hint for hint in fitting if isinstance(hint, type) and type(data) is hint]
    return (exact or fitting or present)[0]


def _filled(kind: Any, data: Any, at: str = "") -> Any:
    """A dataclass; what an older file does not hold yet has its default."""
    hints = _hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    if unknown := sorted(_mapping(data, at).keys() - fields.keys()):
        raise Damaged(f"{_below(at, unknown[0])!r} is not known here")
    for name, f in fields.items():
        if name not in data and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise Damaged(f"{_below(at, name)!r} is missing")
    parts = {name: from_plain(hints[name], part, _below(at, name)) for name, part in data.items()}
    try:
        return kind(**parts)
    except ValueError as error:  # what its parts have to do with each other
        raise Damaged(f"{at}: {error}" if at else str(error)) from error


# Pieces of long work on disk, so that one that was stopped goes on where it was.


def write_piece(value: Any, path: Path) -> None:
    """One line with the checksum of the rest, and the value; whole or not at all, also where several write it."""
    data = json.dumps(to_plain(value), ensure_ascii=False).encode()
    partly = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    partly.write_bytes(hashlib.blake2b(data).hexdigest().encode() + b"\n" + data)
    partly.replace(path)


def is_whole(path: Path) -> bool:
    """There is a piece, and every byte of it is as it was written."""
    if not path.is_file():
        return False
    checksum, _, data = path.read_bytes().partition(b"\n")
    return hashlib.blake2b(data).hexdigest().encode() == checksum


def read_piece(hint: Any, path: Path) -> Any:
    """What ``write_piece`` wrote, as ``hint`` says."""
    try:
        return from_plain(hint, parsed(path.read_bytes().partition(b"\n")[2].decode()))
    except Exception as error:
        raise NotOffered(f"{str(path)!r} in the cache cannot be read ({_words(error)}): delete it.") from error


# Results as tables and as other libraries' objects.


def dataframe(data: Any, columns: list[str] | None = None) -> pd.DataFrame:
    """From rows (one dict each, or tuples with ``columns``) or from columns by name; pandas is an extra."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtra("pandas", "tabular", "to_frame()") from None
    return pd.DataFrame(data, columns=columns)


def to_shap(explanations: Any) -> Any:
    """A ``shap.Explanation`` of one explanation, or of several as its rows, for shap's plots.

    values: the scores; base_values: the value at the background, 0 where the method has none; data and feature_names:
    the units' labels, for tables the values of the columns and their names. Rows may differ in length.
    """
    shap = shap_package("to_shap")
    if _is_explanation(explanations):
        return shap.Explanation(
            values=explanations.scores.astype(np.float64),
            base_values=_base(explanations),
            data=_data(explanations),
            feature_names=_labels(explanations),
            output_names=None,
        )
    rows = list(explanations) if isinstance(explanations, Iterable) else []
    if not rows or not all(map(_is_explanation, rows)):
        raise BadInput("to_shap takes an Explanation or a list of them, and at least one.")
    one_table = all(e.units.values is not None for e in rows) and len({e.units.labels for e in rows}) == 1
    return shap.Explanation(
        values=_ragged([e.scores.astype(np.float64) for e in rows]),
        base_values=np.array([_base(e) for e in rows]),
        data=_ragged([_data(e) for e in rows]),
        feature_names=_labels(rows[0]) if one_table else [_labels(e) for e in rows],
    )


def shap_package(why: str) -> Any:
    """The shap library; its import warns about deprecated calls of its own, which no user can help.

    Some of what it imports draws random numbers, or seeds them: the caller's go on as if nothing had happened.
    """
    if "shap" in sys.modules:
        return sys.modules["shap"]
    drawn, numbers = random.getstate(), np.random.get_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import shap
    except ImportError:
        raise MissingExtra("shap", "shap", why) from None
    finally:
        random.setstate(drawn)
        np.random.set_state(numbers)
    return shap


def _is_explanation(value: Any) -> bool:
    return isinstance(value, Result) and value.what == EXPLANATION


def _base(explanation: Any) -> float:
    return 0.0 if explanation.base is None else float(explanation.base)


def _data(explanation: Any) -> Any:
    """What stood at each unit: the token itself, or the value of a column, as a number where it is one."""
    values = explanation.units.values
    return np.array(_labels(explanation) if values is None else [_number(v) for v in values], dtype=object)


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _labels(explanation: Any) -> list[str]:
    """Tokens with the space that stood before them, so that shap's text plot reads as the text did."""
    units = explanation.units
    if units.spans is None or units.text is None:
        return [str(label) for label in units.labels]
    labels = []
    for label, special, (start, end) in zip(units.labels, units.special, units.spans, strict=True):
        if special or end <= start:
            labels.append(label)
            continue
        space = " " if start > 0 and units.text[start - 1].isspace() else ""
        labels.append(space + units.text[start:end])
    return labels


def _ragged(rows: list[Any]) -> Any:
    if len({len(r) for r in rows}) == 1:
        return np.stack(rows)
    result = np.empty(len(rows), dtype=object)
    result[:] = rows
    return result
