"""Read the rows of a job one at a time, and cut them into parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from whyformer.errors import BadInput, require
from whyformer.files import IMAGES, csv_header, csv_lines, is_file, is_folder, parsed, path_of, readable_file
from whyformer.inputs.table_schema import Table

FILES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".txt")
# Columns that hold the input where nobody says which does, the likeliest first.
INPUT_COLUMNS = ("text", "sentence", "prompt", "image", "review", "content")
AT_ONCE = 1024  # rows of a Parquet file that are in memory


@dataclass(frozen=True)
class Unreadable:
    """A row that cannot be read, with the reason."""

    reason: str
    content: str = ""


@dataclass(frozen=True)
class Rows:
    """The rows of an input: its name, their number (None if unknown), and an iterator over them."""

    name: str
    size: int | None
    read: Callable[[], Iterator[Any]]
    names: Callable[[Any], str] | None = None  # what a row is called, where the input has names for them
    columns: tuple[str, ...] = ()  # where they are known beforehand


def rows_of(source: Any) -> Rows:
    """Return the rows of a file, folder, Dataset, DataFrame or iterable."""
    if isinstance(source, (str, Path)):
        path = path_of(source, "source")
        return _of_folder(path) if is_folder(path) else _of_file(path)
    if hasattr(source, "column_names") and hasattr(source, "__getitem__"):  # a Dataset of the datasets library
        size = len(source) if hasattr(source, "__len__") else None
        return Rows(type(source).__name__, size, lambda: iter(source), columns=tuple(source.column_names or ()))
    if hasattr(source, "itertuples") and hasattr(source, "columns"):  # a DataFrame of pandas
        names = tuple(map(str, source.columns))
        return Rows(
            "DataFrame",
            len(source),
            lambda: (dict(zip(names, row, strict=True)) for row in source.itertuples(index=False, name=None)),
            columns=names,
        )
    if isinstance(source, Mapping) or not isinstance(source, Iterable):
        raise BadInput(
            f"source is a {type(source).__name__}: give a file ({', '.join(FILES)}), a folder of images, a Dataset, a "
            "DataFrame, or a list of texts or of dicts."
        )
    size = len(source) if isinstance(source, Sequence) else None
    if size == 0:
        raise BadInput("source is empty: give at least one row.")
    return Rows(f"a {type(source).__name__}", size, lambda: iter(source))


def _of_file(path: Path) -> Rows:
    readable_file(path, "file", "source")
    kind = path.suffix.lower()
    if kind == ".parquet":
        return _of_parquet(path.name, [path])
    if kind in (".csv", ".tsv"):
        return _of_csv(path, "\t" if kind == ".tsv" else ",")
    if kind in (".jsonl", ".ndjson"):
        return Rows(path.name, _lines(path), lambda: _json_rows(path))
    if kind == ".txt":
        return Rows(path.name, _lines(path), lambda: _text_rows(path))
    raise BadInput(f"{str(path)!r}: the ending says how a file is read; use {', '.join(FILES)}, or a folder of images.")


def _of_folder(folder: Path) -> Rows:
    files = sorted(p for p in folder.rglob("*") if is_file(p))
    tables = [p for p in files if p.suffix.lower() == ".parquet"]
    if tables:
        return _of_parquet(folder.name, tables)
    images = [p for p in files if p.suffix.lower() in IMAGES]
    if not images:
        raise BadInput(f"{str(folder)!r} has neither images ({', '.join(IMAGES)}) nor .parquet files.")
    return Rows(folder.name, len(images), lambda: iter(images), lambda image: image.relative_to(folder).as_posix())


def _of_parquet(name: str, paths: list[Path]) -> Rows:
    parquet = arrow("reading Parquet files").parquet
    try:
        files = [parquet.ParquetFile(path) for path in paths]
    except Exception as error:  # each kind of damage has an error of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadInput(f"{name!r} cannot be read as Parquet ({reason}).") from error

    def read() -> Iterator[Any]:
        for path in paths:
            for batch in parquet.ParquetFile(path).iter_batches(batch_size=AT_ONCE):
                yield from batch.to_pylist()

    return Rows(name, sum(f.metadata.num_rows for f in files), read, columns=tuple(files[0].schema_arrow.names))


OTHER_SEPARATORS = (";", "\t", "|")  # of files called .csv: a whole line would be explained as one text


def _of_csv(path: Path, separator: str) -> Rows:
    header, size = csv_header(path, separator)
    if len(header) == 1 and (other := next((sign for sign in OTHER_SEPARATORS if sign in header[0]), None)):
        raise BadInput(
            f"{str(path)!r} has a single column, {header[0]!r}: its separator seems to be {other!r}. Save it with "
            "commas, or pass a DataFrame: pandas.read_csv(path, sep=…)."
        )
    if len(set(header)) < len(header):
        raise BadInput(f"{str(path)!r} has two columns of the same name: {', '.join(header)}.")

    def read() -> Iterator[Any]:
        for line in islice(csv_lines(path, separator), 1, None):
            if len(line) != len(header):
                yield Unreadable(f"the row has {len(line)} cells, the header {len(header)}.", str(line)[:200])
            else:
                # An index column without a name (as pandas writes it) is no column of the table.
                yield {name: cell for name, cell in zip(header, line, strict=True) if name}

    return Rows(path.name, size, read, columns=tuple(name for name in header if name))


def _json_rows(path: Path) -> Iterator[Any]:
    for line in _text_rows(path):
        try:
            yield parsed(line)
        except ValueError as error:
            yield Unreadable(f"the line cannot be read: {error}.", line[:200])


def _text_rows(path: Path) -> Iterator[str]:
    with path.open("rb") as stream:
        for line in stream:
            if line.strip():
                yield line.decode("utf-8", "replace").strip("\r\n\ufeff")


def _lines(path: Path) -> int:
    with path.open("rb") as stream:
        size = sum(1 for line in stream if line.strip())
    if not size:
        raise BadInput(f"{str(path)!r} has no rows.")
    return size


def arrow(why: str) -> Any:
    """The pyarrow library, with what reads and writes Parquet."""
    require("pyarrow", why=why)
    import pyarrow
    import pyarrow.parquet

    return pyarrow


class RowFields:
    """Takes the input, the row's name and its target out of a row: ``column`` (several: a pair), ``key``, ``aim``."""

    def __init__(
        self, rows: Rows, column: str | Sequence[str] | None, key: str | None, processor: Any, aim: str | None = None
    ) -> None:
        self.names, self.key, self.aim = rows.names, key, aim
        self.table = processor if isinstance(processor, Table) else None
        self.chosen = (column,) if isinstance(column, str) else tuple(column or ())
        if len(self.chosen) > 2:
            raise BadInput(f"column={list(self.chosen)!r}: name one column, or two for a pair of texts.")
        for name in filter(None, (*self.chosen, key, aim)):
            if rows.columns and name not in rows.columns:
                raise BadInput(f"unknown column {name!r} of {rows.name}. Known: {', '.join(rows.columns)}.")
        if rows.columns and not self.chosen and self.table is None:
            self.chosen = (self._likely(rows.columns),)

    def _likely(self, columns: Sequence[str]) -> str:
        if len(columns) == 1:
            return columns[0]
        likely = [name for name in INPUT_COLUMNS if name in columns]
        if not likely:
            raise BadInput(
                f"the column of the input is not clear: give column=…, one of {', '.join(columns)}; for a model or a "
                "function of whole rows, describe them, processor=wf.Table(numerical=[…], reference=rows)."
            )
        return likely[0]

    def name(self, row: Any) -> str:
        """Return the name of a row, from its key column or from the input."""
        if self.key is not None:
            return str(row.get(self.key, "")) if isinstance(row, Mapping) else ""
        return self.names(row) if self.names is not None else ""

    def target(self, row: Any) -> Any:
        """Return the target of a row: the name or number of a class, or None for the prediction."""
        if self.aim is None or not isinstance(row, Mapping):
            return None
        cell: Any = row.get(self.aim)
        if isinstance(cell, str):  # all cells of a CSV file are
            return int(cell) if cell.strip().isdecimal() else cell.strip() or None
        return cell.item() if isinstance(cell, np.generic) else cell

    def content(self, row: Any) -> Any:
        """Return the input in a row."""
        if not isinstance(row, Mapping):
            return row
        if self.table is not None and not self.chosen:
            cells = {name: row[name] for name in self.table.columns if name in row}
            parsed = self.table.parsed
            return {name: parsed(name, cell) if isinstance(cell, str) else cell for name, cell in cells.items()}
        if not self.chosen:
            self.chosen = (self._likely(list(row)),)
        missing = [name for name in (*self.chosen, self.aim) if name and name not in row]
        if missing:
            return Unreadable(f"the row has no {missing[0]!r}, only {', '.join(map(str, row))}.", str(dict(row))[:200])
        parts = tuple(row[name] for name in self.chosen)
        return parts[0] if len(parts) == 1 else parts


# The plan of a job, from the input alone: rows with ids, parts of rows, and batches of like length in a part.
#
# Nothing here knows the machine or the engine. A row's id is a hash of its content and place, a part is a stretch of
# rows, and what is run together follows from the part: so a part can be run again anywhere, with the same numbers.


@dataclass(frozen=True)
class Row:
    """One input: where it stands, what it is called, and what is explained of it."""

    id: str
    place: int
    name: str
    content: Any
    target: Any = None  # of this row, where each has one of its own


@dataclass(frozen=True)
class Part:
    """Rows that are run, written and committed together."""

    number: int
    rows: tuple[Row, ...]

    @property
    def digest(self) -> str:
        """A name for its rows."""
        return hashlib.blake2b("".join(row.id for row in self.rows).encode(), digest_size=16).hexdigest()


def parts_of(rows: Rows, columns: RowFields, size: int) -> Iterator[Part]:
    """The input, ``size`` rows at a time; only these are in memory."""
    numbered = enumerate(rows.read())
    for number in count():
        stretch = tuple(_row(place, raw, columns) for place, raw in islice(numbered, size))
        if not stretch:
            return
        yield Part(number, stretch)


def _row(place: int, raw: Any, columns: RowFields) -> Row:
    content, target = columns.content(raw), columns.target(raw)
    digest = hashlib.blake2b(f"{place}\n".encode(), digest_size=16)
    for part in _bytes(content if target is None else (content, target)):
        digest.update(part)
    return Row(digest.hexdigest(), place, columns.name(raw), content, target)


def _bytes(content: Any) -> Iterator[bytes]:
    """Yield bytes that identify a content in every process; of a file, its content, not its path."""
    if isinstance(content, str):
        yield b"text" + content.encode("utf-8", "surrogatepass")
    elif content is None or isinstance(content, (bool, int, float, np.generic)):
        yield repr(content.item() if isinstance(content, np.generic) else content).encode()
    elif isinstance(content, bytes):
        yield content
    elif isinstance(content, Path):
        try:
            yield content.read_bytes()
        except OSError as error:
            yield f"{content.name}: {error.strerror}".encode()
    elif isinstance(content, Unreadable):
        yield f"{content.reason}\n{content.content}".encode("utf-8", "surrogatepass")
    elif isinstance(content, Mapping):
        for key in content:
            yield f"\0{key}\0".encode()
            yield from _bytes(content[key])
    elif isinstance(content, (list, tuple)):
        yield f"\0{len(content)}\0".encode()
        for part in content:
            yield b"\0"
            yield from _bytes(part)
    elif isinstance(content, (np.ndarray, Tensor)):
        array = content.detach().cpu().numpy() if isinstance(content, Tensor) else content
        yield f"{array.dtype}{array.shape}".encode()
        yield array.tobytes()
    elif hasattr(content, "tobytes") and hasattr(content, "mode"):  # a picture of Pillow's
        yield f"{content.mode}{content.size}".encode()
        yield content.tobytes()
    else:
        raise BadInput(
            f"a row is a {type(content).__name__}: give texts, pictures or their paths, dicts of columns, or arrays."
        )


def batches_of(lengths: Sequence[int], tokens: int, most: int) -> list[list[int]]:
    """Rows of like length together: at most ``most`` of them, and with their padding at most ``tokens`` positions."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        last = batches[-1] if batches else []
        if last and len(last) < most and (len(last) + 1) * lengths[index] <= tokens:
            last.append(index)
        else:
            batches.append([index])
    return batches
