"""Table: a description of columns, and how cells become the numbers that a model reads."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from itertools import chain
from numbers import Real
from typing import Annotated, Any

import numpy as np

from whyformer.brief import brief, called, writable
from whyformer.errors import BadInput, UnknownName, not_allowed, reading, shown
from whyformer.parameters import Limits, checked
from whyformer.shapes import Array

Columns = dict[str, Array]  # column name -> its values, one per row
NOT_CONVERTED = (TypeError, ValueError, OverflowError)
CELLS = ("a cell of the table cannot be read", "Give numbers and texts.")  # a cell may be an object of any library
NUMBERS = (int, float, np.integer, np.floating)
# What numpy would turn into a float, or refuse in words of its own.
NO_NUMBERS = (complex, np.complexfloating, date, timedelta, np.datetime64, np.timedelta64, bytes, np.void)


@dataclass(frozen=True)
class Standardize:
    """(x - mean) / std per numerical column; unlike other preprocessing it can be saved with the table.

    >>> wf.Table(numerical=["age", "hours"], preprocess=wf.Standardize(mean=(38.6, 40.4), std=(13.7, 12.3)))
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __repr__(self) -> str:
        return brief(self)

    def __call__(self, numbers: Array) -> Array:
        return (numbers - np.asarray(self.mean)) / np.asarray(self.std)

    def check(self, columns: Sequence[str]) -> None:
        """Raise unless there is one mean and one std for each column (numpy would broadcast a single one)."""
        for what, values in (("mean", self.mean), ("std", self.std)):
            if not _are_numbers(values):
                raise not_allowed(what, values, "one number for each numerical column", owner="Standardize")
            if np.shape(values) != (len(columns),):
                amount = np.size(values) if np.ndim(values) else "a single number"
                raise BadInput(
                    f"Standardize: {what} has {amount} for {len(columns)} numerical columns: give one value for each, "
                    f"in this order: {', '.join(columns) or 'none'}."
                )
        for name, mean, std in zip(columns, self.mean, self.std, strict=True):
            if not (np.isfinite(mean) and np.isfinite(std) and std > 0):
                raise BadInput(
                    f"Standardize: column {name!r} has mean {mean} and std {std}: both have to be finite and std above "
                    "0 (use 1 for a column that never varies)."
                )


def _are_numbers(values: Any) -> bool:
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    if isinstance(kind, str) and kind:
        return kind in "fiu"
    return isinstance(values, Real) or (
        isinstance(values, (tuple, list)) and all(isinstance(value, Real) for value in values)
    )


class Table:
    """The columns of a table: names, categories, preprocessing.

    numerical: names, in the order of the model's numerical tensor. categorical: name -> its categories, in the order
    of their codes. columns: the order of columns in plain arrays (numerical, then categorical, unless given; if it is
    given, ``numerical`` may be omitted). preprocess: converts raw numbers (rows, numerical) to the model's input: a
    function, or an object with ``transform`` (a fitted scikit-learn scaler). classes: names of the outputs. target:
    name of the predicted column, which is ignored in inputs. first_code: code of the first category.

    call: for other call signatures, ``(numerical, categorical) -> arguments`` (a tuple or a dict; either tensor is None
    if there are no such columns). tokens: the column of each token, for models where it cannot be detected (None for a
    token that the model adds). reference: rows for the baseline of masked columns, and for models whose rows attend to
    each other (SAINT); ``reference_name`` is their name in results. groups: name -> columns that ``units="groups"``
    scores as one; by default, columns that carry the same information in the reference (``tables.same_columns``).

    >>> wf.Table(numerical=["age"], categorical={"job": ["Sales", "Tech"]}, classes=["<=50K", ">50K"])
    >>> model, table = wf.demo.load_adult()
    >>> wf.explain(model, wf.demo.census.adult_rows()[0], table).show()
    """

    @checked
    def __init__(
        self,
        *,
        numerical: Sequence[str | int] = (),
        categorical: Mapping[str | int, Sequence[Any]] | None = None,
        columns: Sequence[str | int] | None = None,
        preprocess: Any = None,
        classes: Sequence[Any] = (),
        target: str = "",
        first_code: Annotated[int, Limits(0)] = 0,
        call: Callable[[Any, Any], Any] | None = None,
        tokens: Sequence[str | None] | None = None,
        reference: Any = None,
        reference_name: str = "reference rows",
        groups: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.categorical = {str(k): tuple(v) for k, v in (categorical or {}).items()}
        if columns is not None and not numerical:
            numerical = [c for c in columns if c not in self.categorical]
        self.numerical = tuple(map(str, numerical))
        self.columns = tuple(map(str, columns)) if columns is not None else (*self.numerical, *self.categorical)
        with reading("classes of the Table have no names", "Give texts or numbers."):
            self.classes, self.target = tuple(map(str, classes)), target
        self._check_names()
        if isinstance(preprocess, Standardize):
            preprocess.check(self.numerical)
        transform = getattr(preprocess, "transform", None)
        if preprocess is not None and not callable(transform or preprocess):
            raise not_allowed("preprocess", preprocess, "a function, or an object with transform", owner="Table")
        self.preprocess: Callable[[Array], Any] | None = transform or preprocess
        self.first_code, self.call = first_code, call
        self.tokens = None if tokens is None else tuple(tokens)
        for name in self.tokens or ():
            if name is not None and name not in self.columns:
                raise UnknownName("column in tokens", name, self.columns)
        self.codes = {
            name: {value: code for code, value in enumerate(values, start=first_code)}
            for name, values in self.categorical.items()
        }
        self.groups = None if groups is None else {k: tuple(v) for k, v in groups.items()}
        columns_by_group(self.columns, self.groups)
        self.reference_name = reference_name
        self.reference: Columns | None = None
        if reference is not None:
            self.reference, _ = self.read(reference)
            self.encode(self.reference)  # a bad reference row is found here, not in the middle of long work

    def __repr__(self) -> str:
        counts = f"{len(self.numerical)} numerical and {len(self.categorical)} categorical columns"
        parts = [counts, f"columns: {', '.join(self.columns)}"]
        parts += [f"classes: {', '.join(self.classes)}"] if self.classes else []
        return called("Table", parts)

    def _check_names(self) -> None:
        both = [c for c in self.numerical if c in self.categorical]
        if both:
            raise BadInput(f"column {both[0]!r} is described as numerical and as categorical: choose one.")
        twice = [c for c in self.columns if self.columns.count(c) > 1]
        if twice:
            raise BadInput(f"column {twice[0]!r} is named twice.")
        if not self.columns:
            raise BadInput("a table needs columns: numerical=[…], categorical={name: categories}.")
        described = {*self.numerical, *self.categorical}
        for name in (*self.columns, *self.classes, *map(str, chain(*self.categorical.values()))):
            if name != writable(name):
                raise BadInput(f"the name {name!r} has half a character (of a surrogate pair): decode it again.")
        for name in (*self.columns, *described):
            if name not in described or name not in self.columns:
                raise BadInput(
                    f"column {name!r} must be in columns= and in numerical= or categorical=; one of them is missing."
                )
        for name, values in self.categorical.items():
            with reading(f"categories of column {name!r} cannot be compared", "Give texts or numbers."):
                count = len(set(values))
            if not values or count != len(values):
                raise BadInput(f"the categories of column {name!r} are empty or hold one twice.")

    # Reading

    @reading(*CELLS)
    def read(self, inputs: Any) -> tuple[Columns, bool]:
        """Return columns by name, in the table's order, and whether a single row was given.

        Takes a DataFrame, a Series, a dict of values or of columns, a list of dicts or Series, or an array whose
        columns are in the order of ``columns``.
        """
        if hasattr(inputs, "columns") and hasattr(inputs, "__getitem__"):
            require_once([str(c) for c in inputs.columns])
            return self._named({str(c): np.asarray(inputs[c]) for c in inputs.columns}), False
        inputs = row_of(inputs)
        if isinstance(inputs, Mapping):
            axes = {str(k): _axes(v) for k, v in inputs.items()}
            single = not any(axes.values())
            odd = [] if single else [k for k, count in axes.items() if count != 1]
            if odd:
                raise BadInput(f"column {odd[0]!r} has a single value, or a table of them, where others have a list.")
            return self._named({str(k): column_of([v] if single else v) for k, v in inputs.items()}), single
        listed = isinstance(inputs, (list, tuple)) and len(inputs) > 0 and not np.isscalar(inputs[0])
        if listed and not isinstance(inputs[0], (np.ndarray, list, tuple)):
            return self._listed(list(inputs)), False
        return self._unnamed(inputs)

    def _listed(self, rows: list[Any]) -> Columns:
        plain = [row_of(r) for r in rows]
        if not all(isinstance(r, Mapping) for r in plain):
            return self._unnamed(rows, dtype=object)[0]
        for i, row in enumerate(plain):
            self._check_columns([str(k) for k in row], f" of row {i}")
        return {c: column_of([row[c] for row in plain]) for c in self.columns}

    def _unnamed(self, inputs: Any, dtype: Any = None) -> tuple[Columns, bool]:
        try:
            # numpy would make texts of the numbers beside a text.
            rows = np.asarray(inputs, dtype=dtype if isinstance(inputs, np.ndarray) else object)
        except ValueError:
            raise BadInput("the rows have different lengths: give one value per column in each.") from None
        single = rows.ndim == 1
        rows = rows[None] if single else rows
        if rows.ndim != 2:
            raise BadInput(f"an array of shape {rows.shape} is not a table: give (rows, columns), or a DataFrame.")
        if rows.shape[1] != len(self.columns):
            raise BadInput(
                f"{rows.shape[1]} columns were given without names and the table has {len(self.columns)}, in this "
                f"order: {', '.join(self.columns)}."
            )
        return {name: rows[:, i] for i, name in enumerate(self.columns)}, single

    def _named(self, columns: Columns) -> Columns:
        self._check_columns(list(columns))
        sizes = {k: len(columns[k]) for k in self.columns}
        if len(set(sizes.values())) > 1:
            odd = next(k for k in sizes if sizes[k] != sizes[self.columns[0]])
            raise BadInput(f"column {odd!r} has {sizes[odd]} values and {self.columns[0]!r} {sizes[self.columns[0]]}.")
        return {c: columns[c] for c in self.columns}

    def _check_columns(self, names: list[str], where: str = "") -> None:
        missing = [c for c in self.columns if c not in names]
        extra = [c for c in names if c not in self.columns and c != self.target]
        if missing:
            close = difflib.get_close_matches(missing[0], extra, n=1, cutoff=0.6)
            hint = f" Is it {close[0]!r}? Rename it." if close else ""
            others = f" (and {', '.join(map(repr, missing[1:]))})" if missing[1:] else ""
            raise BadInput(f"column {missing[0]!r}{others} is missing{where}.{hint} Needed: {', '.join(self.columns)}.")
        if extra:
            raise BadInput(
                f"column {extra[0]!r} is not in the table"
                + (f" (nor {', '.join(map(repr, extra[1:]))})" if extra[1:] else "")
                + f": drop it{where}. Known: {', '.join(self.columns)}."
            )

    # Encoding

    def encode(self, columns: Columns) -> tuple[Array | None, Array | None]:
        """(rows, numerical) floats and (rows, categorical) codes as the model reads them; None where there are none."""
        rows = len(columns[self.columns[0]])
        if not rows:
            raise BadInput("the table has no rows: give at least one.")
        with reading(*CELLS):
            numbers = [numbers_of(name, columns[name]) for name in self.numerical]
            codes = [self._coded(name, columns[name]) for name in self.categorical]
        made = np.stack(numbers, 1) if numbers else None
        if made is not None and self.preprocess is not None:
            made = self._preprocessed(self.preprocess, made)
        return made, np.stack(codes, 1) if codes else None

    def _preprocessed(self, preprocess: Callable[[Array], Any], numbers: Array) -> Array:
        with reading("preprocess of the Table failed", "It is called with an array of (rows, numerical) floats."):
            made = np.asarray(preprocess(numbers), dtype=float)
        if made.shape != numbers.shape:
            raise BadInput(f"preprocess made {made.shape} of {numbers.shape} numbers: it has to keep every column.")
        bad = np.argwhere(~np.isfinite(made))
        if len(bad):
            row, at = bad[0]
            raise BadInput(f"preprocess made {made[row, at]} of column {self.numerical[at]!r} in row {row}.")
        return made

    def _coded(self, name: str, values: Array) -> Array:
        known = self.codes[name]
        codes = np.empty(len(values), dtype=np.int64)
        for row, value in enumerate(values.tolist()):
            try:
                code = known.get(value)
            except Exception:  # an object of the user's own that cannot be hashed or compared
                code = None
            if code is None:
                if is_missing(value):
                    raise BadInput(missing_message(name, values))
                raise UnknownName(f"category in row {row} of column {name!r}:", value, self.categorical[name])
            codes[row] = code
        return codes

    def parsed(self, name: str, cell: str) -> Any:
        """Return what a cell of a CSV file means, which holds texts only: a number, or a category by its spelling."""
        if name in self.codes:
            return next((value for value in self.codes[name] if str(value) == cell.strip()), cell)
        try:
            return float(cell) if name in self.numerical else cell
        except ValueError:
            return cell  # refused where the row is read

    # Showing and saving

    def shown(self, columns: Columns, row: int) -> dict[str, str]:
        """Return the raw values of one row as text."""
        values = {name: columns[name][row] for name in self.columns}
        return {name: f"{v:.6g}" if isinstance(v, (float, np.floating)) else str(v) for name, v in values.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a file; a function cannot be saved, ``Standardize`` can."""
        if self.call is not None or not (self.preprocess is None or isinstance(self.preprocess, Standardize)):
            raise BadInput("a table with a function (call, preprocess) cannot be saved: use Standardize(mean, std).")
        scaled = self.preprocess
        return {
            "numerical": list(self.numerical),
            "categorical": {k: list(v) for k, v in self.categorical.items()},
            "columns": list(self.columns),
            "standardize": None if scaled is None else {"mean": list(scaled.mean), "std": list(scaled.std)},
            "classes": list(self.classes),
            "target": self.target,
            "first_code": self.first_code,
            "tokens": None if self.tokens is None else list(self.tokens),
            "reference": None if self.reference is None else {k: v.tolist() for k, v in self.reference.items()},
            "reference_name": self.reference_name,
            "groups": None if self.groups is None else {k: list(v) for k, v in self.groups.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Table:
        """What ``to_dict`` made."""
        rest = dict(data)
        scaled = rest.pop("standardize", None)
        preprocess = None if scaled is None else Standardize(tuple(scaled["mean"]), tuple(scaled["std"]))
        return cls(preprocess=preprocess, **rest)


def columns_by_group(columns: Sequence[str], groups: Mapping[str, Sequence[str]] | None) -> dict[str, tuple[str, ...]]:
    """Return the groups, and each column of no group by itself; raise unless every column is in at most one."""
    chosen: dict[str, tuple[str, ...]] = {}
    grouped: dict[str, str] = {}
    for name, members in (groups or {}).items():
        for column in members:
            if column not in columns:
                raise UnknownName(f"column in group {name!r}:", column, columns)
            if column in grouped:
                raise BadInput(f"column {column!r} is in two groups, {grouped[column]!r} and {name!r}.")
            grouped[column] = name
        if not members:
            raise BadInput(f"group {name!r} holds no column.")
        chosen[name] = tuple(members)
    return chosen | {column: (column,) for column in columns if column not in grouped}


def row_of(row: Any) -> Any:
    """A Series as a dict; anything else as it is."""
    if not hasattr(row, "to_dict") or isinstance(row, Mapping):
        return row
    require_once([str(name) for name in getattr(row, "index", ())])
    return row.to_dict()


def require_once(names: Sequence[str]) -> None:
    """Raise if two columns have the same name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        others = f" (as are {', '.join(map(repr, twice[1:]))})" if twice[1:] else ""
        raise BadInput(f"column {twice[0]!r} is there more than once{others}: keep the one that is meant.")


def column_of(values: Any) -> Array:
    """Return values as an array; numbers beside a string must not become strings."""
    if isinstance(values, np.ndarray) and values.ndim == 1:
        return values if values.dtype.kind in "fiub" else values.astype(object)
    values = list(values)
    if all(isinstance(value, NUMBERS) and not isinstance(value, bool) for value in values):
        made = np.array(values)
        if made.dtype.kind in "fiub":  # whole numbers beyond 64 bits make objects
            return made
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):  # one by one: numpy would take lists for another axis
        column[row] = value
    return column


def numbers_of(name: str, values: Array) -> Array:
    values = np.asarray(values)
    objects = values.dtype.kind == "O"
    # numpy would take "12" and True as numbers, which may be a category or a mistake.
    cells = enumerate(values.tolist()) if objects or values.dtype.kind in "bU" else ()
    for row, cell in cells:
        if isinstance(cell, (str, bool, np.bool_)) and not is_missing(cell):
            raise BadInput(
                f"column {name!r} holds {shown(cell)} in row {row}: numbers that a float can hold are expected. "
                "Convert the column (astype(float)), or describe it as categorical."
            )
    others = (value for value in values.flat if isinstance(value, NO_NUMBERS) and not is_missing(value))
    other = next(others, None) if objects else None
    if values.dtype.kind in "mMcSV" or other is not None:
        raise BadInput(
            f"column {name!r} holds {type(other).__name__ if objects else values.dtype}, and numbers are expected "
            "there: say which (a year, days since a date) by converting it."
        )
    try:
        if objects and any(is_missing(value) for value in values.flat):  # numpy reads some of them as 0
            raise BadInput(missing_message(name, values))
        numbers = np.asarray(values, dtype=float)
    except NOT_CONVERTED:
        for row, value in enumerate(values.tolist()):
            try:
                float(0 if is_missing(value) else value)
            except NOT_CONVERTED:
                raise BadInput(
                    f"column {name!r} holds {shown(value)} in row {row}: numbers that a float can hold are expected."
                ) from None
        raise BadInput(missing_message(name, values)) from None
    if np.isnan(numbers).any():
        raise BadInput(missing_message(name, values))
    if not np.isfinite(numbers).all():
        raise BadInput(f"column {name!r} is infinite in row {int(np.argmax(~np.isfinite(numbers)))}.")
    return numbers


def is_missing(value: Any) -> bool:
    """None, NaN of any library, an empty text, or a masked entry."""
    if value is None or value is np.ma.masked or type(value).__name__ in {"NAType", "NaTType"}:
        return True
    if isinstance(value, str):
        return value in {"", "<NA>"}
    if isinstance(value, Decimal):
        return value.is_nan()
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def _axes(value: Any) -> int:
    """Return 0 for a single value, 1 for a column of them, without converting it, which may be slow or raise."""
    if isinstance(value, (list, tuple, range)):
        return 1 + (len(value) > 0 and isinstance(value[0], (list, tuple)))
    axes = getattr(value, "ndim", 0)
    return axes if isinstance(axes, int) else 0


def missing_message(name: str, values: Array) -> str:
    rows = [i for i, value in enumerate(values.tolist()) if is_missing(value)]
    if len(values) == 1:  # of a job, whose rows have numbers of their own
        return f"column {name!r} has no value: fill it, or leave the row out."
    where = f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:5]))}{', …' if len(rows) > 5 else ''}"
    return f"column {name!r} has no value in {where}: fill it, or leave those rows out."
