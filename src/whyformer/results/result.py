"""Result: the base class of all results, with methods for pictures, files and tables; codec.py saves and loads it."""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from whyformer import files
from whyformer.brief import brief
from whyformer.errors import BadInput, WhyformerError, public, require
from whyformer.parameters import checked
from whyformer.results.codec import Coded, Misfit, below, fields_of, filled, key_of, mapping, reason

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
EXPLANATION = "explanation"  # files of explanations do not say what they hold
PICTURES = (".html", ".png", ".svg", ".pdf")
DATA = (".json", ".npz")
HEADER = "__header__"
RESULTS: dict[str, type[Result]] = {}  # what a file says it holds → the class that reads it
# Modules with kinds of results, imported when a file holds what is not known yet.
HOMES = tuple(
    f"whyformer.{home}"
    for home in "results.types tables heads concepts evaluate.comparison evaluate.recommendation checks.exam "
    "checks.attention_debate checks.retrained language.citations language.traces jobs.dataset learned.learned "
    "reports.report".split()
)
RETIRED = ("experts", "syntactic heads")  # kinds of results that are no longer made
Kind = TypeVar("Kind", bound="Result")


class Pictured:
    """Base class of everything that can be shown and drawn; ``views.view_of`` has the picture of each class."""

    def view(self, *settings: Any, **options: Any) -> Any:
        """Return the picture as a View or Page, independent of the medium, to combine it with others."""
        # Views import results, and drawing libraries are loaded only when something is drawn.
        return public().views.view_of(self, *settings, **options)

    def show(self, *settings: Any, **options: Any) -> None:
        """Print to the terminal."""
        self.view(*settings, **options).show()

    def plot(self, *settings: Any, **options: Any) -> Any:
        """Return a matplotlib figure."""
        return self.view(*settings, **options).plot()

    def to_html(self, *settings: Any, **options: Any) -> str:
        """Return a self-contained HTML page."""
        return str(self.view(*settings, **options).to_html())

    def _repr_html_(self) -> str:
        return str(self.view()._repr_html_())

    def widget(self, *settings: Any, ask: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Return the page for a running notebook: a click on a class calls ``ask(target=…)``, an explain call.

        It needs anywidget (the extra ``notebook``) and a kernel; without them, it is the static page.
        """
        return self.view(*settings, **options).widget(ask)

    def save(self, path: str | Path, *settings: Any, **options: Any) -> Path:
        """Write a picture: .html, .png, .svg or .pdf."""
        path = files.writable_file(path, PICTURES)
        self.view(*settings, **options).save(path)
        return path


class Result(Pictured, Coded):
    """Base class of results: show, draw, save, convert to a table, and load without the model.

    Subclasses are frozen dataclasses; ``what`` names them in files, and ``views.view_of`` has their pictures. Options
    of a picture (``image`` and ``by`` of an Explanation, ``beside`` of a PruningCurve) can be passed to ``show``,
    ``plot``, ``to_html`` and ``save``.
    """

    what: ClassVar[str]
    last: ClassVar[tuple[str, ...]] = ()  # fields that stand at the end of a file: long ones, behind what people read
    later: ClassVar[tuple[str, ...]] = ()  # fields that came after the format: files have them where they are not None
    # Letters of the axes of fields (of tuples and the like, one): a letter has one size, held to when a file is read.
    axes: ClassVar[Mapping[str, str]] = {}
    endings: ClassVar[tuple[str, ...]] = ()  # endings of files of its own, beside DATA: see _write_file and _read_file
    finite: ClassVar[tuple[str, ...]] = ()  # fields that no verb leaves NaN or infinite: a file that does is not ours

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
    def save(self, path: str | Path, *settings: Any, **options: Any) -> Path:
        """Write a picture (.html, .png, .svg, .pdf), or data that ``whyformer.load`` reads back (.json, .npz)."""
        path = files.writable_file(path, (*PICTURES, *DATA, *self.endings))
        if path.suffix in PICTURES:
            return super().save(path, *settings, **options)
        if settings or options:
            told = ", ".join([*map(repr, settings), *map(repr, options)])
            raise BadInput(f"{path.suffix} files contain the whole result: omit {told}, which is for pictures.")
        with files.writing(path):
            if path.suffix == ".json":
                plain = json.dumps(self.to_dict(), ensure_ascii=False)
                files.write_file(path, plain.encode("utf-8", "backslashreplace"))  # half a character as its escape
            elif path.suffix == ".npz":
                files.write_file(path, _npz(self))
            else:
                self._write_file(path)
        return path

    def _write_file(self, path: Path) -> None:
        """Write a file with one of the endings in ``endings``."""
        raise NotImplementedError

    @classmethod
    def _read_file(cls: type[Kind], path: Path) -> Kind:
        """Read what ``_write_file`` wrote; raise anything if it is damaged."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: arrays as nested lists, null for NaN."""
        plain = {"format": FORMAT} | ({} if self.what == EXPLANATION else {"what": self.what}) | fields_of(self)
        for name in self.last:
            plain[name] = plain.pop(name)
        return plain

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Let routes of FastAPI return results, and models of pydantic hold them: in JSON they are ``to_dict``."""
        from pydantic_core import core_schema

        plain = core_schema.plain_serializer_function_ser_schema(cls.to_dict, return_schema=core_schema.dict_schema())
        return core_schema.is_instance_schema(cls, serialization=plain)

    @abstractmethod
    def to_frame(self) -> pd.DataFrame:
        """Return a pandas table."""

    @classmethod
    @checked
    def load(cls: type[Kind], path: str | Path) -> Kind:
        """Load a result that was saved as .json or .npz; the model is not needed."""
        named = cls.what if "what" in cls.__dict__ else f"{EXPLANATION} or other result"
        path = files.readable_file(path, f"saved {named}")
        if path.suffix.lower() not in (*DATA, *cls.endings):
            raise BadInput(f"{str(path)!r} is not a saved {named}: give a {' or '.join((*DATA, *cls.endings))} file.")
        try:
            return cls._read_file(path) if path.suffix in cls.endings else cls._from_dict(_read(path))
        except (WhyformerError, Warning):  # a warning is raised where the user made errors of them
            raise
        except Exception as error:  # a file can hold anything
            raise BadInput(
                f"{str(path)!r} is not a saved {named} ({reason(error)}). Give a file that .save() wrote."
            ) from error

    @classmethod
    def _from_dict(cls: type[Kind], plain: Any, at: str = "") -> Kind:
        data = mapping(plain, at or "it")
        written = data.get("format")
        if isinstance(written, int) and written > FORMAT:
            raise files.Damaged(
                f"it was written by a newer whyformer, in format {written}; this version reads format {FORMAT}: "
                "pip install --upgrade whyformer"
            )
        if written != FORMAT:
            raise files.Damaged("its content is different, or it was written by another version of whyformer")
        what = data.get("what", EXPLANATION)
        for home in () if not isinstance(what, str) or what in RESULTS else HOMES:
            import_module(home)
        reads = RESULTS.get(what) if isinstance(what, str) else None
        if what in RETIRED and issubclass(Retired, cls):
            content = {name: part for name, part in data.items() if name not in ("format", "what")}
            return Retired(what, content)  # type: ignore[return-value]
        if reads is None or not issubclass(reads, cls):
            raise files.Damaged(f"it contains a {what}" + (f": use {reads.__name__}.load" if reads else ""))
        made: Kind = filled(reads, {name: part for name, part in data.items() if name not in ("format", "what")}, at)
        _check_axes(made, at)
        for name in made.finite:
            if not np.isfinite(getattr(made, name)).all():
                warnings.warn(
                    f"the loaded {made.what} has NaN or infinity in {below(at, name)}, which whyformer does not write "
                    "there: the file was changed or made elsewhere. Do not rely on it; explain again and save that.",
                    stacklevel=_levels_inside(),
                )
        return made


@dataclass(frozen=True, eq=False)
class Retired(Result):
    """A saved result of a kind that is no longer made: its fields by name, as they were saved."""

    kind: str
    content: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, "what": self.kind} | self.content

    def to_frame(self) -> pd.DataFrame:
        """Return one row per field."""
        require("pandas", why="to_frame()")
        import pandas as pd

        return pd.DataFrame(self.content.items(), columns=["field", "value"])


@checked
def load(path: str | Path) -> Any:
    """Load a saved result (.json or .npz), or the folder of an explained dataset; the model is not needed.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> wf.explain(model, "I like the movie", tokenizer).save("why.json")
    >>> wf.load("why.json").show()
    """
    if files.is_folder(files.path_of(path)) and files.is_file(Path(path) / "manifest.json"):
        return public().ExplainedDataset(path)
    if str(path).endswith(".learned"):
        return public().Learned.load(path)
    return Result.load(path)  # type: ignore[type-abstract]


def _levels_inside() -> int:
    """Count the calls inside this package, so that a warning points at the user's line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("whyformer."):
        level, frame = level + 1, frame.f_back
    return level


# Files: .json is plain; .npz holds the same, with fields that are arrays (or lists or dicts of them) as arrays.


def _npz(result: Result) -> bytes:
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
            arrays |= {f"{name}:{key_of(key)}": part for key, part in parts.items()}
        del plain[name]
    arrays[HEADER] = np.array(json.dumps(plain, ensure_ascii=False))
    np.savez_compressed(packed := BytesIO(), **arrays)
    try:
        with zipfile.ZipFile(packed) as archive:
            files.require_room(files.members_bytes(archive, archive.infolist()), len(packed.getbuffer()))
    except files.Damaged:  # packed so tightly (all zeros) that reading would take it for a trap
        np.savez(packed := BytesIO(), **arrays)
    return packed.getvalue()


def _read(path: Path) -> dict[str, Any]:
    if path.suffix.lower() != ".npz":
        return mapping(files.read_json(path), "it")
    arrays = files.read_arrays(path)
    if HEADER not in arrays:
        raise files.Damaged(f"it has no {HEADER!r}")
    data = mapping(files.parsed(str(arrays.pop(HEADER))), HEADER)
    for entry, array in arrays.items():
        name, _, key = entry.partition(":")
        if key:
            mapping(data.setdefault(name, {}), name)[key] = array
        else:
            data[name] = array
    return data


def _check_axes(result: Result, at: str) -> None:
    """One letter, one size."""
    sizes: dict[str, tuple[int, str]] = {}
    for name, letters in result.axes.items():
        value = getattr(result, name)
        if value is None:
            continue
        shape = value.shape if isinstance(value, np.ndarray) else (len(value),)
        if len(shape) != len(letters):
            raise Misfit(below(at, name), f"an array with {len(letters)} axes", value)
        for letter, size in zip(letters, shape, strict=True):
            expected, first = sizes.setdefault(letter, (size, name))
            if size != expected:
                raise Misfit(below(at, name), f"of length {expected} on one axis, as {first} is,", value)
