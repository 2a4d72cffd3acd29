"""A CSV file read a piece at a time, so that a long table never stands in memory."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from whyformer.errors import BadInput
from whyformer.files.paths import readable_file
from whyformer.inputs.table_schema import Columns, Table, require_once
from whyformer.parameters import BatchSize, checked


class CsvRows:
    """The rows of a CSV file with a header, as pieces of ``size`` rows: columns by name, for ``explain_global``."""

    @checked
    def __init__(self, path: str | Path, table: Table, size: BatchSize = 128) -> None:
        self.path, self.size = readable_file(path, "CSV file"), size
        self.spelled = {name: {str(v): v for v in values} for name, values in table.categorical.items()}
        try:
            with self._open() as stream:
                header = next(csv.reader(stream), None)
                self.rows = sum(1 for line in csv.reader(stream) if line)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise BadInput(
                f"{str(self.path)!r} cannot be read as CSV ({error}): give a UTF-8 text with a header and commas."
            ) from None
        if not header or not self.rows:
            raise BadInput(f"{str(self.path)!r} holds no rows under a header.")
        # An index column without a name (as pandas writes it) is no column of the table.
        self.header = [name.strip() for name in header]
        require_once([name for name in self.header if name])
        table.read({name: [] for name in self.header if name})  # wrong columns are found before any work

    def __len__(self) -> int:
        return math.ceil(self.rows / self.size)

    def __iter__(self) -> Iterator[Columns]:
        with self._open() as stream:
            reader = csv.reader(stream)
            next(reader)
            lines: list[list[str]] = []
            for line in reader:
                if line:
                    lines.append(line)
                if len(lines) == self.size:
                    yield self._columns(lines)
                    lines = []
            if lines:
                yield self._columns(lines)

    def check(self, table: Table) -> None:
        """Every row, before long work."""
        for number, piece in enumerate(self):
            try:
                table.encode(table.read(piece)[0])
            except BadInput as error:
                start = number * self.size
                raise BadInput(
                    f"{error} (Rows are counted from row {start} of the file.)" if start else str(error)
                ) from None

    def _open(self) -> Any:
        return self.path.open(encoding="utf-8-sig", newline="")

    def _columns(self, lines: list[list[str]]) -> Columns:
        for line in lines:
            if len(line) != len(self.header):
                raise BadInput(
                    f"{str(self.path)!r}: a row has {len(line)} cells, the header {len(self.header)}: {str(line)[:200]}"
                )
        made = {}
        for i, name in enumerate(self.header):
            if name:
                known: Mapping[str, Any] = self.spelled.get(name, {})
                cells = [line[i].strip() for line in lines]
                made[name] = np.array([*(known.get(c, c) for c in cells), None], dtype=object)[:-1]
        return made
