"""Explanations as columns of Parquet, and back. What is known of units, targets and costs comes from their classes."""

from __future__ import annotations

import dataclasses
import io
import json
import types
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from whyformer.jobs.source import Row, arrow
from whyformer.results.codec import from_plain, to_plain
from whyformer.results.types import Cost, Explanation, Target, Units

WHY = "explaining a dataset"
SEVERAL = "step"  # which of several explanations of one row
PARTS = {"target": Target, "prediction": Target, "units": Units, "cost": Cost}


@dataclasses.dataclass(frozen=True)
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
    pa = arrow(WHY)
    plain = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        rest = [part for part in inner if part is not type(None)]
        return arrow_type(rest[0]) if len(rest) == 1 else None
    if origin is tuple and len({*inner} - {Ellipsis}) == 1:
        member = arrow_type(inner[0])
        return None if member is None else pa.list_(member)
    if dataclasses.is_dataclass(hint):
        kind: Any = hint
        return pa.struct([(name, arrow_type(part) or pa.string()) for name, part in _hints(kind).items()])
    return plain.get(hint)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


@cache
def _as_json(kind: Any) -> tuple[str, ...]:
    """Fields of a class that Arrow has no type for."""
    return tuple(name for name, hint in _hints(kind).items() if arrow_type(hint) is None)


@cache
def schema() -> Any:
    """The columns of explanations."""
    pa = arrow(WHY)
    words = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            ("row_id", pa.string()),
            ("place", pa.int64()),
            ("name", pa.string()),
            (SEVERAL, pa.int32()),
            ("method", words),
            *((name, arrow_type(kind)) for name, kind in PARTS.items() if name != "cost"),
            ("scores", pa.list_(pa.float32())),
            ("value", pa.float64()),
            ("base", pa.float64()),
            ("scalar", words),
            ("signed", pa.bool_()),
            ("checks", pa.map_(pa.string(), pa.float64())),
            ("readout", words),
            ("cost", arrow_type(Cost)),
            ("warnings", pa.list_(pa.string())),
            ("options", words),
            ("changed", pa.list_(pa.string())),
        ]
    )


@cache
def failure_schema() -> Any:
    """The columns of errors."""
    return arrow(WHY).schema([(name, arrow_type(hint)) for name, hint in _hints(Failure).items()])


Entry = tuple[Row, int, Explanation]  # row, which of its explanations


def table_of(entries: Sequence[Entry]) -> Any:
    """Explanations as a table of Arrow."""
    pa = arrow(WHY)
    told = _Told()
    columns: dict[str, Sequence[Any]] = {
        "row_id": [row.id for row, _, _ in entries],
        "place": [row.place for row, _, _ in entries],
        "name": [row.name for row, _, _ in entries],
        SEVERAL: [step for _, step, _ in entries],
        "checks": [list(e.checks.items()) for _, _, e in entries],
        "options": [told(e) for _, _, e in entries],
    }
    for name in ("method", "value", "base", "scalar", "signed", "readout", "warnings", "changed"):
        columns[name] = [getattr(e, name) for _, _, e in entries]
    for name in PARTS:
        columns[name] = [_struct(getattr(e, name)) for _, _, e in entries]
    arrays = {name: pa.array(values, type=schema().field(name).type) for name, values in columns.items()}
    scores = [e.scores for _, _, e in entries]
    ends = np.cumsum([0, *map(len, scores)], dtype=np.int32)
    flat = np.concatenate(scores) if scores else np.zeros(0, np.float32)
    arrays["scores"] = pa.ListArray.from_arrays(ends, flat.astype(np.float32, copy=False))
    return pa.table([arrays[name] for name in schema().names], schema=schema())


def failures_table(failures: Sequence[Failure]) -> Any:
    """Errors as a table of Arrow."""
    return arrow(WHY).Table.from_pylist([vars(failure) for failure in failures], schema=failure_schema())


def parquet_bytes(table: Any) -> bytes:
    """Return the table as Parquet; equal tables give equal bytes."""
    stream = io.BytesIO()
    arrow(WHY).parquet.write_table(table, stream, compression="zstd")
    return stream.getvalue()


class _Told:
    """Options as JSON; those of one method are the same in every explanation, and are written once."""

    def __init__(self) -> None:
        self.last: dict[str, tuple[dict[str, Any], str]] = {}

    def __call__(self, explanation: Explanation) -> str:
        options = explanation.options
        known, text = self.last.get(explanation.method, ({}, "{}"))
        # The very same objects by the same names: some (arrays) could not be asked whether they are equal.
        if known.keys() != options.keys() or any(options[name] is not value for name, value in known.items()):
            text = json.dumps(to_plain(options), ensure_ascii=False)
            self.last[explanation.method] = options, text
        return text


def _struct(value: Any) -> Any:
    """A value as Arrow takes it: a class as a dict, also in a tuple; its fields that Arrow has no type for as JSON."""
    if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        return [_struct(part) for part in value]
    if not dataclasses.is_dataclass(value):
        return value
    kind: Any = type(value)
    as_json = _as_json(kind)
    return {
        name: json.dumps(to_plain(part)) if name in as_json else _struct(part) for name, part in vars(value).items()
    }


def explanations_in(table: Any, same: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Explanation]]:
    """Row by row: where it belongs (row_id, place, name, step), and the explanation. ``same``: what all have."""
    for batch in table.to_batches():
        for entry in batch.to_pylist():
            place = {name: entry.pop(name) for name in ("row_id", "place", "name", SEVERAL)}
            entry |= {name: _part(kind, entry[name]) for name, kind in PARTS.items()}
            entry |= {
                "scores": np.array(entry["scores"], np.float32),
                "checks": dict(entry["checks"]),
                "warnings": tuple(entry["warnings"]),
                "options": json.loads(entry["options"]),
                "changed": None if entry["changed"] is None else tuple(entry["changed"]),
            }
            yield place, Explanation(**entry, **same)


def _part(kind: Any, plain: dict[str, Any]) -> Any:
    fields = _as_json(kind)
    return from_plain(kind, plain | {name: json.loads(plain[name]) for name in fields} if fields else plain)
