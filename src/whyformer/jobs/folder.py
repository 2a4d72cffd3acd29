"""The folder of a job: its parameters, finished parts, and the files of each part, which are written atomically.

manifest.json                    the parameters: input, model, methods, options, the sizes of parts and batches
commits.jsonl                    one line per part that is done; a part that is not in it is run again
explanations/part-000000.parquet
errors/part-000000.parquet       only of parts with rows that could not be explained
summary.json, summary.html       when all parts are done
"""

from __future__ import annotations

import io
import json
import logging
import os
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from whyformer import files
from whyformer.errors import BadInput, JobStopped, reading
from whyformer.files import write_file
from whyformer.jobs.source import Part, Row, arrow
from whyformer.results.codec import filled, from_plain, mapping, to_plain
from whyformer.results.result import FORMAT as RESULT
from whyformer.results.types import Cost, Explanation, Target, Units

WHY = "explaining a dataset"
AT_ONCE = 64  # rows
STEP = "step"  # which of several explanations of one row
PLACE = {"row_id": str, "place": int, "name": str, STEP: int}
PARTS = {"target": Target, "prediction": Target, "units": Units, "cost": Cost}
# Fields of an Explanation that have a column.
FIELDS = (
    *("method", "target", "prediction", "units", "scores", "value", "base", "scalar", "signed", "checks", "readout"),
    *("cost", "warnings", "options", "changed"),
)


@dataclass(frozen=True)
class Failure:
    """A row that could not be explained, and why."""

    row_id: str
    place: int
    name: str
    kind: str  # of the error
    reason: str
    content: str


def arrow_type(hint: Any) -> Any:
    """Return the Arrow type of an annotation; None if there is none (JSON is used)."""
    pa, origin, inner = arrow(WHY), get_origin(hint), get_args(hint)
    plain = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    if origin in (Union, types.UnionType):
        rest = [part for part in inner if part is not type(None)]
        return arrow_type(rest[0]) if len(rest) == 1 else None
    if origin is tuple and len({*inner} - {Ellipsis}) == 1:
        member = arrow_type(inner[0])
        return None if member is None else pa.list_(member)
    if is_dataclass(hint):
        kind: Any = hint
        return pa.struct([(name, arrow_type(part) or pa.string()) for name, part in _hints(kind).items()])
    return plain.get(hint)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


@cache
def _as_json(kind: Any) -> tuple[str, ...]:
    """Fields of a class that Arrow has no type for."""
    return tuple(name for name, hint in _hints(kind).items() if arrow_type(hint) is None)


@cache
def schema() -> Any:
    """The columns of explanations: lists, structs and plain values, as other libraries lack maps and dictionaries."""
    pa, hints = arrow(WHY), _hints(Explanation)
    types = {name: arrow_type(kind) for name, kind in PLACE.items()} | {STEP: pa.int32()}
    types |= {name: arrow_type(hints[name]) or pa.string() for name in FIELDS}
    check = pa.struct([("name", pa.string()), ("value", pa.float64())])
    types |= {"scores": pa.list_(pa.float32()), "checks": pa.list_(check)}
    return pa.schema([*types.items()])


@cache
def failure_schema() -> Any:
    """The columns of errors."""
    return arrow(WHY).schema([(name, arrow_type(hint)) for name, hint in _hints(Failure).items()])


Entry = tuple[Row, int, Explanation]  # row, which of its explanations


def table_of(entries: Sequence[Entry]) -> Any:
    pa = arrow(WHY)
    columns: dict[str, Sequence[Any]] = {
        "row_id": [row.id for row, _, _ in entries],
        "place": [row.place for row, _, _ in entries],
        "name": [row.name for row, _, _ in entries],
        STEP: [step for _, step, _ in entries],
        **{name: [_struct(getattr(e, name)) for _, _, e in entries] for name in FIELDS if name != "scores"},
        "checks": [[{"name": k, "value": v} for k, v in e.checks.items()] for _, _, e in entries],
        "options": [json.dumps(to_plain(e.options), ensure_ascii=False) for _, _, e in entries],
    }
    arrays = {name: pa.array(values, type=schema().field(name).type) for name, values in columns.items()}
    scores = [e.scores for _, _, e in entries]
    ends = np.cumsum([0, *map(len, scores)], dtype=np.int32)
    flat = np.concatenate(scores) if scores else np.zeros(0, np.float32)
    arrays["scores"] = pa.ListArray.from_arrays(ends, flat.astype(np.float32, copy=False))
    return pa.table([arrays[name] for name in schema().names], schema=schema())


def parquet_bytes(table: Any) -> bytes:
    """Return the table as Parquet; equal tables give equal bytes."""
    stream = io.BytesIO()
    arrow(WHY).parquet.write_table(table, stream, compression="zstd")
    return stream.getvalue()


def _struct(value: Any) -> Any:
    """A value as Arrow takes it: a class as a dict, also in a tuple; its fields that Arrow has no type for as JSON."""
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return [_struct(part) for part in value]
    if not is_dataclass(value):
        return value
    kind: Any = type(value)
    as_json = _as_json(kind)
    return {
        name: json.dumps(to_plain(part)) if name in as_json else _struct(part) for name, part in vars(value).items()
    }


def read_part(path: Path, schema: Any) -> Any:
    """Read a table batch by batch: a small file can say that a row, or a score of it, is there a billion times."""
    pa, batches, size = arrow(WHY), [], 0
    with pa.parquet.ParquetFile(path) as file:
        groups = (file.metadata.row_group(number) for number in range(file.num_row_groups))
        columns = [group.column(number) for group in groups for number in range(group.num_columns)]
        values = sum(4 * each.num_values + each.total_uncompressed_size for each in columns)
        files.require_room((0, values), path.stat().st_size)  # as words: each becomes an object
    for batch in pa.parquet.ParquetFile(path).iter_batches(AT_ONCE, columns=schema.names):
        size += batch.nbytes
        files.require_room((size, 0), path.stat().st_size)
        batches.append(batch)
    return pa.Table.from_batches(batches, batches[0].schema if batches else schema).select(schema.names).cast(schema)


def explanations_in(table: Any, same: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Explanation]]:
    """Row by row: where it belongs (row_id, place, name, step), and the explanation. ``same``: what all have."""
    for batch in table.to_batches():
        for entry in batch.to_pylist():
            place = {name: from_plain(kind, entry.pop(name), name) for name, kind in PLACE.items()}
            for name, kind in PARTS.items():
                part = mapping(entry[name], name)
                entry[name] = part | {key: files.parsed(part[key]) for key in _as_json(kind)}
            entry |= {
                "scores": np.array(entry["scores"], np.float32),
                "checks": {check["name"]: check["value"] for check in entry["checks"]},
                "options": files.parsed(entry["options"]),
            }
            yield place, Explanation._from_dict({"format": RESULT, **entry, **same})


log = logging.getLogger("whyformer.jobs")
SIZES = ("part_rows", "batch_tokens", "batch_size")
# What is read back of the parameters in a manifest; the others are compared only.
ASKED: dict[str, Any] = dict.fromkeys(("model", "whyformer", "torch"), str) | dict.fromkeys(("seed", *SIZES), int)
ASKED["method"] = tuple[str, ...]
MANIFEST, COMMITS, LOCK = "manifest.json", "commits.jsonl", "lock"
EXPLANATIONS, ERRORS = "explanations", "errors"
FORMAT = 2  # 1 had checks as a map, which datasets cannot read


@dataclass(frozen=True)
class Commit:
    """A part that is done: which rows it held, and what became of them."""

    part: int
    digest: str
    rows: int
    explanations: int
    errors: int
    bytes: int = 0  # of the file of explanations
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if min(self.part, self.rows, self.explanations, self.errors) < 0:
            raise ValueError("a number in it is negative")


@dataclass(frozen=True)
class Written:
    """The result of a part: its commit, and the bytes of its files."""

    commit: Commit
    data: bytes
    error_data: bytes = b""


class JobFolder:
    """One folder; the only writer is the process that holds its lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commits: dict[int, Commit] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """The folder, for this process alone."""
        files.private_folder(self.folder, "out")
        with self._stopping():
            lock = files.append_to(self.folder / LOCK)
        with lock:
            _lock(lock, self.folder)
            yield

    def begin(self, source: str, asked: Mapping[str, Any]) -> None:
        """Start in a new folder, or resume a job with the same parameters; raise if they differ."""
        path = self.folder / MANIFEST
        if not files.is_file(path):
            strangers = sorted(
                p.name for p in self.folder.iterdir() if p.name != LOCK and files.UNFINISHED not in p.name
            )
            if strangers:
                raise BadInput(
                    f"out={str(self.folder)!r} contains other files ({strangers[0]}): give a new or an empty folder."
                )
            self.write(path, json.dumps({"format": FORMAT, "source": source, "asked": dict(asked)}, indent=1).encode())
        before, now = read_manifest(self.folder)["asked"], json.loads(json.dumps(dict(asked)))
        other = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if other:
            told = "; ".join(f"{name} was {_shown(before.get(name))} and is {_shown(now.get(name))}" for name in other)
            raise BadInput(
                f"out={str(self.folder)!r} contains a job with other parameters: {told}. Use the same parameters to "
                "resume it, or give another folder."
            )
        for kind in (EXPLANATIONS, ERRORS):
            files.private_folder(self.folder / kind, kind)
        for leftover in self.folder.rglob(f"*{files.UNFINISHED}"):
            leftover.unlink()
        for commit in read_commits(self.folder):
            file = part_file(self.folder, commit.part)
            whole = files.is_file(file) and file.stat().st_size == commit.bytes
            if whole and (not commit.errors or files.is_file(part_file(self.folder, commit.part, ERRORS))):
                self.commits[commit.part] = commit  # others are made again

    def left(self, parts: Iterator[Part]) -> Iterator[Part]:
        """Yield the parts that are not committed; raise if rows that are committed have changed or are gone."""
        changed = ""
        last = -1
        for part in parts:
            last = part.number
            if last not in self.commits:
                yield part
            elif self.commits[last].digest != part.digest:
                first = part.rows[0].place
                changed = f"rows {first} to {first + len(part.rows) - 1} are different"
                break
        if changed or max(self.commits, default=-1) > last:
            raise BadInput(
                f"the input has changed since this job began: {changed or 'it has fewer rows'}. Give the original "
                "input, or another folder."
            )

    def commit(self, written: Written) -> None:
        """Write the files of a part, move them into place, then append the commit."""
        commit = written.commit
        with self._stopping():
            self.write(part_file(self.folder, commit.part), written.data)
            if written.error_data:
                self.write(part_file(self.folder, commit.part, ERRORS), written.error_data)
            self._append(json.dumps(asdict(commit)))
        self.commits[commit.part] = commit
        log.info("%s: %d rows more, %d of them with errors", self.folder, commit.rows, commit.errors)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file atomically."""
        with self._stopping():
            write_file(path, data, files.PRIVATE)

    def _append(self, line: str) -> None:
        with files.append_to(self.folder / COMMITS) as log:
            start = log.seek(0, os.SEEK_END)
            if start:  # a line that was cut short by a crash is no commit: the next one begins on its own
                log.seek(start - 1)
                line = line if log.read(1) == b"\n" else f"\n{line}"
            try:
                log.write(f"{line}\n".encode())
                log.flush()
                os.fsync(log.fileno())
            except OSError:
                log.truncate(start)
                raise

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Raise JobStopped for errors of the system (a full disk); all that is committed stays."""
        try:
            yield
        except OSError as error:
            if isinstance(error, JobStopped):
                raise
            rows = sum(commit.rows for commit in self.commits.values())
            raise JobStopped(
                f"writing into {str(self.folder)!r} failed ({error.strerror or error}). {rows} rows are saved there: "
                "free some disk space, and run the job again to resume."
            ) from error


def part_file(folder: Path, part: int, kind: str = EXPLANATIONS) -> Path:
    return folder / kind / f"part-{part:06d}.parquet"


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not files.is_file(path):
        raise BadInput(f"{str(folder)!r} is not an explained dataset: it has no {MANIFEST}.")
    with reading(f"{str(path)!r} cannot be read", "Give a folder that this version of explain_dataset wrote."):
        manifest = mapping(files.read_json(path), "it")
        asked = mapping(manifest["asked"], "asked")
        for name, kind in ASKED.items():
            from_plain(kind, asked.get(name), name)
        from_plain(str, manifest["source"], "source")
        if manifest["format"] != FORMAT or min(asked[name] for name in SIZES) < 1:
            raise files.Damaged(f"it has another format than {FORMAT}, or an impossible size")
    return manifest


def read_commits(folder: Path) -> Iterator[Commit]:
    """Yield committed parts; lines cut short by a crash are skipped. The last record of a part wins."""
    path = folder / COMMITS
    if not files.is_file(path):
        return
    for line in path.read_bytes().splitlines():
        try:
            plain = files.parsed(line.decode())
        except ValueError:
            continue
        with reading(f"{str(path)!r} cannot be read", "Delete it, and run the same job again."):
            yield filled(Commit, plain)


def _lock(stream: IO[bytes], folder: Path) -> None:
    """Lock a file until this process ends; systems without such locks go without."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BadInput(f"another job is writing into out={str(folder)!r}: wait for it, or stop it first.") from None


def _shown(value: Any) -> str:
    words = json.dumps(value, ensure_ascii=False)
    return words if len(words) <= 80 else f"{words[:77]}…"
