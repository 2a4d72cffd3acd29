"""Result: what every verb returns. One set of doors to pictures, files and frames; one codec, by annotations."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from whyformer.errors import BadInput, MissingExtra, NotOffered, UnknownName, shown
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
UNREADABLE = (OSError, KeyError, TypeError, ValueError, AttributeError, EOFError, RecursionError, zipfile.BadZipFile)
RESULTS: dict[str, type[Result]] = {}  # what a file says it holds → the class that reads it
HOMES = (  # imported when a file holds what is not known yet
    "whyformer.types",
    "whyformer.tables",
    "whyformer.heads",
    "whyformer.concepts",
    "whyformer.evaluate.compare",
    "whyformer.evaluate.recommend",
    "whyformer.checks.result",
)
Kind = TypeVar("Kind", bound="Result")


class Result(ABC):
    """What a verb returns: it can be shown, drawn, saved, listed, and read back without the model.

    Subclasses are frozen dataclasses; ``what`` names them in files, and ``views.view_of`` knows their pictures. What a
    picture can be told (``image`` and ``by`` of an Explanation, ``beside`` of a PruningCurve) every door takes.
    """

    what: ClassVar[str]
    last: ClassVar[tuple[str, ...]] = ()  # fields that stand at the end of a file: long ones, behind what people read

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "what" in cls.__dict__:
            other = RESULTS.setdefault(cls.what, cls)
            if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise TypeError(f"{cls.__name__}.what: {cls.what!r} is taken by {other.__name__}.")
            RESULTS[cls.what] = cls

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

    @checked
    def save(self, path: str | Path, *how: Any, **options: Any) -> Path:
        """Write a picture (.html, .png, .svg, .pdf), or data that ``whyformer.load`` reads back (.json, .npz)."""
        path = in_folder(path)
        if path.suffix not in (*PICTURES, *DATA):
            raise UnknownName("file type", path.suffix or str(path), (*PICTURES, *DATA))
        with writing(path):
            if path.suffix in PICTURES:
                self.view(*how, **options).save(path)
            elif path.suffix == ".json":
                path.write_text(json.dumps(self.to_dict(), ensure_ascii=False), encoding="utf-8")
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
        path = Path(path)
        named = cls.what if "what" in cls.__dict__ else f"{EXPLANATION} or other result"
        try:
            return _from_dict(cls, _read(path))
        except UNREADABLE as error:
            raise BadInput(f"{str(path)!r} is no saved {named} ({error}).") from error


@checked
def load(path: str | Path) -> Any:
    """Read any saved result, .json or .npz; no model is needed."""
    if not os.path.isfile(path):  # noqa: PTH113  # of a name that no folder can hold, Path.is_file raises
        raise BadInput(f"no file at {shown(str(path))}.")
    return Result.load(path)  # type: ignore[type-abstract]


def in_folder(path: str | Path) -> Path:
    """The path of a file to write, if its folder is there; asked before long work."""
    path = Path(path)
    if not os.path.isdir(path.parent):  # noqa: PTH112  # of a name that no folder can hold, Path.is_dir raises
        raise BadInput(f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}. Make it first.")
    return path


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system has against a file is said as an error of ours."""
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"{shown(str(path))} cannot be written ({error.strerror or error}): give another path."
        ) from error


# Files: .json is plain; .npz holds the same, with fields that are arrays (or lists or dicts of them) as arrays.


def _header(result: Result) -> dict[str, Any]:
    return {"format": FORMAT} | ({} if result.what == EXPLANATION else {"what": result.what})


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _fields(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    hints = _hints(kind)
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
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


def _read(path: Path) -> dict[str, Any]:
    if path.suffix != ".npz":
        plain: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return plain
    with path.open("rb") as opened, np.load(opened) as file:
        data: dict[str, Any] = json.loads(str(file[HEADER]))
        for entry in file.files:
            name, _, key = entry.partition(":")
            if key:
                data.setdefault(name, {})[key] = file[entry]
            elif name != HEADER:
                data[name] = file[entry]
    return data


def _from_dict(kind: type[Kind], data: dict[str, Any]) -> Kind:
    if data.get("format") != FORMAT:
        raise ValueError("it holds something else, or comes from another version of whyformer")
    what = data.get("what", EXPLANATION)
    for home in () if what in RESULTS else HOMES:
        import_module(home)
    reads = RESULTS.get(what)
    if reads is None or not issubclass(reads, kind):
        raise ValueError(f"it holds a {what}" + (f": {reads.__name__}.load reads it" if reads else ""))
    return _filled(reads, {name: part for name, part in data.items() if name not in ("format", "what")})


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


def from_plain(hint: Any, data: Any) -> Any:
    """``data`` as what ``hint`` says."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if data is None else from_plain(_member(inner, data), data)
    if origin is Annotated:
        note = hint.__metadata__[0]
        if isinstance(note, Keyed):
            return {name: from_plain(note.kinds()[name], part) for name, part in data.items()}
        if not isinstance(data, (list, np.ndarray)):
            raise ValueError(f"an array was expected, and there is {shown(data)}")
        return np.asarray(data, note)
    if isinstance(hint, type) and issubclass(hint, Result):
        return _from_dict(hint, data)
    if dataclasses.is_dataclass(hint):
        return _filled(hint, data)
    if origin is tuple:
        kinds = [inner[0]] * len(data) if inner[-1] is Ellipsis else inner
        return tuple(from_plain(kind, part) for kind, part in zip(kinds, data, strict=True))
    if origin is list:  # arrays of an .npz come by their number
        return [from_plain(inner[0], part) for part in (data.values() if isinstance(data, dict) else data)]
    if origin is dict:
        split = get_origin(inner[0]) is tuple
        return {tuple(k.split("|")) if split else k: from_plain(inner[1], v) for k, v in data.items()}
    if hint is float:
        return math.nan if data is None else float(data)
    return data


def _member(members: tuple[Any, ...], data: Any) -> Any:
    """Which of several hints is meant: one with names where the data has names."""
    present = [hint for hint in members if hint is not type(None)]
    named = [hint for hint in present if get_origin(hint) is dict or dataclasses.is_dataclass(hint)]
    fitting = named if isinstance(data, dict) else [hint for hint in present if hint not in named]
    return (fitting or present)[0]


def _filled(kind: Any, data: dict[str, Any]) -> Any:
    """A dataclass; what an older file does not hold yet has its default."""
    hints = _hints(kind)
    fields = {f.name for f in dataclasses.fields(kind)}
    if unknown := sorted(data.keys() - fields):
        raise ValueError(f"{unknown[0]!r} is not known here")
    return kind(**{name: from_plain(hints[name], part) for name, part in data.items()})


# Pieces of long work on disk, so that one that was stopped goes on where it was.


def write_piece(value: Any, path: Path) -> None:
    """Whole or not at all."""
    partly = path.with_suffix(".part")
    partly.write_text(json.dumps(to_plain(value), ensure_ascii=False), encoding="utf-8")
    partly.replace(path)


def read_piece(hint: Any, path: Path) -> Any:
    """What ``write_piece`` wrote, as ``hint`` says."""
    try:
        return from_plain(hint, json.loads(path.read_text(encoding="utf-8")))
    except UNREADABLE as error:
        raise NotOffered(f"{str(path)!r} in the cache cannot be read ({error}): delete it.") from error


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
    """The shap library; its import warns about deprecated calls of its own, which no user can help."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import shap
    except ImportError:
        raise MissingExtra("shap", "shap", why) from None
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
