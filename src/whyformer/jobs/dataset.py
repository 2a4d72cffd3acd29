"""A folder of explanations, read a part at a time: what explain_dataset returns, and wf.load(folder)."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whyformer.errors import BadInput
from whyformer.files.paths import is_file, readable_folder
from whyformer.jobs.folder import ERRORS, EXPLANATIONS, Commit, read_commits, read_manifest
from whyformer.jobs.schema import SEVERAL, explanations_in, failure_schema, schema
from whyformer.jobs.source import arrow
from whyformer.jobs.summary import DatasetSummary, summary_of
from whyformer.parameters import checked
from whyformer.types import Explanation

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "summary.json"


class ExplainedDataset:
    """Explanations of a dataset in a folder. Going through them reads one part at a time.

    ``show``, ``save``, ``plot`` and ``to_html`` are those of its summary.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> wf.explain_dataset(model, ["I like the movie", "This is so boring"], out="explained", tokenizer=tokenizer)
    >>> dataset = wf.load("explained")
    >>> dataset.to_frame()
    """

    @checked
    def __init__(self, folder: str | Path) -> None:
        self.folder = readable_folder(folder, "folder of explanations")
        manifest = read_manifest(self.folder)
        self.source, self.asked = str(manifest["source"]), dict(manifest["asked"])
        parts: dict[int, Commit] = {commit.part: commit for commit in read_commits(self.folder)}
        self.parts = tuple(parts[number] for number in sorted(parts))
        self.rows = sum(commit.rows for commit in self.parts)
        self.errors = sum(commit.errors for commit in self.parts)
        self._explanations = sum(commit.explanations for commit in self.parts)

    def __len__(self) -> int:
        """Explanations: one per row and method, where each row gives one."""
        return self._explanations

    def __repr__(self) -> str:
        methods = ", ".join(self.methods)
        return f"ExplainedDataset({str(self.folder)!r}: {self.rows} rows, {methods}, {self.errors} errors)"

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods that every row was explained by."""
        return tuple(self.asked["method"])

    def __iter__(self) -> Iterator[Explanation]:
        """Every explanation, in the order of the rows, then of the methods."""
        return (explanation for _, explanation in self.entries())

    def entries(self) -> Iterator[tuple[dict[str, Any], Explanation]]:
        """Every explanation with what its row is called: row_id, place, name, step."""
        for commit in self.parts:
            yield from explanations_in(self.table(commit.part), self._same)

    def entries_of(self, part: int, lines: Sequence[int]) -> Iterator[tuple[dict[str, Any], Explanation]]:
        """Some lines of one part."""
        return explanations_in(self.table(part).take(list(lines)), self._same)

    @property
    def _same(self) -> dict[str, Any]:
        """What all explanations have in common, and the manifest knows."""
        versions = {name: self.asked[name] for name in ("whyformer", "torch")}
        return {
            "seed": self.asked["seed"],
            "model": self.asked["model"],
            "versions": versions | {"python": platform.python_version()},
        }

    @checked
    def row(self, place: int) -> dict[str, Any]:
        """The explanations of one row, by method; a list where the row gave several. Reads one part."""
        number = place // self.asked["part_rows"]
        if number not in {commit.part for commit in self.parts} or place < 0:
            raise BadInput(f"there is no row {place}: {self.rows} rows are done, counted from 0.")
        table = self.table(number)
        pa = arrow("reading explanations")
        chosen = table.filter(pa.compute.equal(table["place"], place))
        by_method: dict[str, Any] = {}
        for _, explanation in explanations_in(chosen, self._same):
            by_method.setdefault(explanation.method, []).append(explanation)
        if not by_method:
            reason = [f["reason"] for f in self.failures() if f["place"] == place]
            raise BadInput(f"row {place} could not be explained: {reason[0] if reason else 'nothing is known of it'}")
        several = any(chosen[SEVERAL].to_pylist())
        return by_method if several else {name: each[0] for name, each in by_method.items()}

    def table(self, part: int, columns: Sequence[str] | None = None) -> Any:
        """One part as a table of pyarrow."""
        path = self.folder / EXPLANATIONS / f"part-{part:06d}.parquet"
        if not is_file(path):
            raise BadInput(f"{str(path)!r} is gone: run the same job again to make it anew.")
        return arrow("reading explanations").parquet.read_table(path, schema=_some(columns), partitioning=None)

    def failures(self) -> list[dict[str, Any]]:
        """Rows that could not be explained: row_id, place, name, kind, reason, content."""
        pa = arrow("reading errors")
        files = [self.folder / ERRORS / f"part-{commit.part:06d}.parquet" for commit in self.parts if commit.errors]
        tables = [pa.parquet.read_table(path, schema=failure_schema(), partitioning=None) for path in files]
        return [row for table in tables for row in table.to_pylist()]

    def to_frame(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """All explanations in a pandas table, one row each; ``columns``: some of them only, of a large dataset."""
        pa = arrow("to_frame()")
        known = schema().names
        for name in columns or ():
            if name not in known:
                raise BadInput(f"there is no column {name!r}: there are {', '.join(known)}.")
        tables = [self.table(commit.part, columns) for commit in self.parts]
        return pa.concat_tables(tables).unify_dictionaries().to_pandas()

    # The summary

    @property
    def summary(self) -> DatasetSummary:
        """What matters overall, outliers, and rows where methods disagree; made once, and read from then on."""
        if is_file(self.folder / SUMMARY):
            summary = DatasetSummary.load(self.folder / SUMMARY)
            if summary.rows == self.rows and summary.errors == self.errors:
                return summary
        return self.summarize()

    @checked
    def summarize(self, top: int = 5) -> DatasetSummary:
        """Make the summary anew, with ``top`` outliers and disagreements, as summary.json and summary.html."""
        summary = summary_of(self, top)
        for path in (self.folder / SUMMARY, (self.folder / SUMMARY).with_suffix(".html")):
            beside = path.with_name(f"unfinished-{path.name}")  # by its ending a result knows what it is to be
            try:
                summary.save(beside)
                beside.replace(path)
            finally:
                beside.unlink(missing_ok=True)
        return summary

    def view(self) -> Any:
        """The picture of the summary."""
        return self.summary.view()

    def show(self) -> None:
        """Print the summary to the terminal."""
        self.summary.show()

    def plot(self) -> Any:
        """The summary as a matplotlib figure."""
        return self.summary.plot()

    def to_html(self) -> str:
        """The summary as one page that needs no network."""
        return self.summary.to_html()

    def save(self, path: str | Path) -> Path:
        """Write the summary: .html, .png, .svg, .pdf, .json or .npz."""
        return self.summary.save(path)

    def _repr_html_(self) -> str:
        return self.summary._repr_html_()


def _some(columns: Sequence[str] | None) -> Any:
    whole = schema()
    return whole if columns is None else arrow("reading explanations").schema([whole.field(name) for name in columns])
