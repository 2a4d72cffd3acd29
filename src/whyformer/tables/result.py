"""What is known about columns over many rows: frozen, saved and reloaded without the model."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from whyformer.errors import BadInput, UnknownName
from whyformer.result import dataframe, in_folder

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]
FORMAT = 1
HEADER = "__header__"
Kind = TypeVar("Kind", bound="ColumnResult")


@dataclass(frozen=True, eq=False)
class ColumnResult:
    """What every result about columns can do: be drawn, saved and read back."""

    what: ClassVar[str]  # it is, in words
    arrays: ClassVar[tuple[str, ...]]  # the fields that hold arrays

    def show(self) -> None:
        """Print to the terminal."""
        _view(self).show()

    def plot(self) -> Any:
        """A matplotlib figure."""
        return _view(self).plot()

    def to_html(self) -> str:
        """One page that needs no network."""
        return str(_view(self).to_html())

    def _repr_html_(self) -> str:
        return str(_view(self)._repr_html_())

    def save(self, path: str | Path) -> Path:
        """Write a picture (.html, .png, .svg), or .json or .npz, which ``load`` reads back."""
        return _save(self, Path(path))

    @classmethod
    def load(cls: type[Kind], path: str | Path) -> Kind:
        """Read what ``save`` wrote; no model is needed."""
        return cls(**_loaded(cls, Path(path)))


@dataclass(frozen=True, eq=False)
class GlobalExplanation(ColumnResult):
    """Scores of many rows, averaged per column, with 95 % limits of the mean.

    Columns that no unit stands for (a TabTransformer's numbers) are in ``unseen``, not among the scores. ``mean_size``
    is the mean of absolute scores, the usual summary of signed ones. ``samples`` are the scores of some rows, drawn
    evenly, with the values that stood there, for pictures.
    """

    labels: tuple[str, ...]
    special: tuple[bool, ...]
    mean: Array
    low: Array
    high: Array
    mean_size: Array
    size_low: Array
    size_high: Array
    rows: int
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    target: str = ""
    scalar: str = "logit"
    signed: bool = False
    unseen: tuple[str, ...] = ()
    matrix: Array | None = None  # the mean map (position × position), where the method has one
    samples: Array | None = None  # (S, U)
    sample_values: tuple[tuple[str, ...], ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    model: str = ""

    what: ClassVar[str] = "global explanation"
    arrays: ClassVar[tuple[str, ...]] = (
        "mean", "low", "high", "mean_size", "size_low", "size_high", "matrix", "samples",
    )  # fmt: skip

    @property
    def importance(self) -> Array:
        """(U,) what columns are ranked by: the mean, or the mean size of signed scores."""
        return self.mean_size if self.signed else self.mean

    def ranked(self, specials: bool = False) -> list[tuple[str, float]]:
        """Columns from the most to the least important; ties keep their order."""
        order = np.argsort(-self.importance, kind="stable")
        return [(self.labels[i], float(self.importance[i])) for i in order if specials or not self.special[i]]

    def to_frame(self) -> pd.DataFrame:
        """One row per column; what attention does not explain has no score (NaN)."""
        names = ("mean", "low", "high", "mean_size", "size_low", "size_high")
        rows = [
            {"column": label, "explained": True, "special": self.special[i], **{n: getattr(self, n)[i] for n in names}}
            for i, label in enumerate(self.labels)
        ]
        rows += [
            {"column": c, "explained": False, "special": False, **dict.fromkeys(names, np.nan)} for c in self.unseen
        ]
        return dataframe(rows)


@dataclass(frozen=True, eq=False)
class FeaturePermutation(ColumnResult):
    """How much a metric falls when a column is shuffled: the mean over repeats, with 95 % limits over them."""

    labels: tuple[str, ...]
    drops: Array  # (columns or groups, repeats): metric on the table, less the metric with the column shuffled
    score: float  # the metric on the table itself
    metric: str
    rows: int
    mean: Array
    low: Array  # NaN for a single repeat, which shows no spread
    high: Array
    seed: int = 0
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    model: str = ""

    what: ClassVar[str] = "feature permutation"
    arrays: ClassVar[tuple[str, ...]] = ("drops", "mean", "low", "high")

    def ranked(self) -> list[tuple[str, float]]:
        """Columns from the most to the least important; ties keep their order."""
        return [(self.labels[i], float(self.mean[i])) for i in np.argsort(-self.mean, kind="stable")]

    def to_frame(self) -> pd.DataFrame:
        """One row per column or group."""
        return dataframe(
            [
                {"column": label, "mean": self.mean[i], "low": self.low[i], "high": self.high[i]}
                for i, label in enumerate(self.labels)
            ]
        )


def _view(result: ColumnResult) -> Any:
    from whyformer.views.table import view_of_columns  # views draw, results only hold

    return view_of_columns(result)


def _save(result: ColumnResult, path: Path) -> Path:
    if path.suffix in {".html", ".png", ".svg"}:
        saved: Path = _view(result).save(path)
        return saved
    if path.suffix not in {".json", ".npz"}:
        raise UnknownName("file type", path.suffix or str(path), (".html", ".png", ".svg", ".json", ".npz"))
    in_folder(path)
    data = plain_data(result)
    if path.suffix == ".npz":
        arrays: dict[str, Any] = {n: getattr(result, n) for n in result.arrays if data.pop(n) is not None}
        np.savez_compressed(path, **{HEADER: np.array(_text(data)), **arrays})
    else:
        path.write_text(_text(data), encoding="utf-8")
    return path


def _text(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, default=str)


def plain_data(result: ColumnResult) -> dict[str, Any]:
    """Plain data, arrays as nested lists."""
    data = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
    for name in result.arrays:
        data[name] = None if data[name] is None else _listed(data[name])
    return {"format": FORMAT, "what": result.what, **data}


def _listed(array: Array) -> Any:
    """Nested lists; JSON has no NaN."""
    plain = array.astype(object)
    plain[np.isnan(array)] = None
    return plain.tolist()


def _read(path: Path) -> dict[str, Any]:
    if path.suffix != ".npz":
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return data
    with np.load(path) as file:
        return json.loads(str(file[HEADER])) | {name: file[name] for name in file.files if name != HEADER}


def _loaded(kind: type[ColumnResult], path: Path) -> dict[str, Any]:
    try:
        data = _read(path)
        if (data.pop("format", None), data.pop("what", None)) != (FORMAT, kind.what):
            raise ValueError("it holds something else")
        for name in kind.arrays:
            data[name] = None if data.get(name) is None else np.array(data[name], dtype=float)
        for name, value in data.items():
            if isinstance(value, list):
                data[name] = tuple(tuple(v) if isinstance(v, list) else v for v in value)
        if "groups" in data:
            data["groups"] = {k: tuple(v) for k, v in data["groups"].items()}
        return data
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{str(path)!r} is no saved {kind.what} ({error}).") from error
