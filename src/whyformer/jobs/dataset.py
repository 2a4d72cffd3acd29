"""The result of explain_dataset: a folder of explanations, read a part at a time, and its summary page."""

from __future__ import annotations

import platform
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from whyformer.errors import BadInput, reading
from whyformer.files import Damaged, is_file, readable_folder
from whyformer.jobs import folder as job_folder
from whyformer.jobs.source import arrow
from whyformer.jobs.worker import RARE_SHARE, Tallies
from whyformer.parameters import checked
from whyformer.results.codec import from_plain
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Pictured, Result
from whyformer.results.types import Explanation, Target, Units
from whyformer.views import Page, View, side_by_side, view_of
from whyformer.views.header import number
from whyformer.views.marks import Bar, Bars, TableMark
from whyformer.views.scales import scale_of
from whyformer.views.view import Fact, Panel

MOST_UNITS = 1000  # per method and class, in the summary; the page shows fewer
MOST_BARS = 15
MOST_SHOWN = 24  # characters of a row in a table
FEWEST = 3  # units that ranks can be compared on
READ = ("row_id", "place", "name", "step", "method", "target", "units", "scores", "value")


@dataclass(frozen=True)
class Importance:
    """The mean score of a word, column or image region, for one class."""

    method: str
    target: str
    unit: str
    rows: int  # occurrences
    mean: float
    mean_size: float  # of absolute scores


@dataclass(frozen=True, eq=False)
class Case:
    """An unusual row: the reason, and its explanations."""

    row_id: str
    place: int
    name: str
    reason: str
    number: float
    explanations: tuple[Explanation, ...]


@dataclass(frozen=True, eq=False)
class DatasetSummary(Result):
    """Summary of the explanations of a dataset.

    ``importance``: per method and class, from the largest mean |score| to the smallest. ``outliers``: rows whose sum of
    scores is far from the median of their method and class (in robust standard deviations). ``disagreements``: rows
    with the lowest agreement between methods (mean Spearman correlation over pairs of methods).
    """

    what: ClassVar[str] = "dataset summary"
    last: ClassVar[tuple[str, ...]] = ("outliers", "disagreements")

    source: str
    model: str
    methods: tuple[str, ...]
    rows: int
    explained: int  # explanations
    errors: int
    error_kinds: dict[str, int] = field(default_factory=dict)
    importance: tuple[Importance, ...] = ()
    outliers: tuple[Case, ...] = ()
    disagreements: tuple[Case, ...] = ()
    agreement: float | None = None  # the mean over rows, of several methods
    unit: str = "unit"  # what importance is of: word, column, region
    left_out: int = 0  # units that occur too rarely, or matter too little, to be listed

    def ranked(self, method: str | None = None, target: str | None = None) -> list[tuple[str, float]]:
        """Return units from the largest mean |score| to the smallest, optionally of one method and class."""
        chosen = [i for i in self.importance if method in (None, i.method) and target in (None, i.target)]
        return [(i.unit, i.mean_size) for i in sorted(chosen, key=lambda i: -i.mean_size)]

    def overview(self) -> View:
        """The first picture of the page, without the explanations of single rows."""
        panels = []
        for method in self.methods:
            for target in sorted({i.target for i in self.importance if i.method == method}):
                chosen = [i for i in self.importance if (i.method, i.target) == (method, target)][:MOST_BARS]
                scale = scale_of([np.array([i.mean for i in chosen])], meaning="mean score")
                bars = tuple(Bar(i.unit, i.mean, note=f"{i.rows} ×") for i in chosen)
                panels.append(Panel((Bars(bars, scale),), f"{target}: {method}"))
        if self.disagreements:
            rows = tuple((_called(case), number(case.number)) for case in self.disagreements)
            panels.append(
                Panel((TableMark(("row", "agreement"), rows),), "rows where methods disagree most", wide=True)
            )
        if self.outliers:
            firsts = [(case, case.explanations[0]) for case in self.outliers]
            far = tuple((_called(case), one.method, str(one.target), number(case.number)) for case, one in firsts)
            panels.append(Panel((TableMark(("row", "method", "class", "distance"), far),), "outliers", wide=True))
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.error_kinds.items()))
        facts = [
            Fact("rows", f"{self.rows:,}"),
            Fact("explanations", f"{self.explained:,}"),
            Fact("errors", f"{self.errors:,}" + (f" ({kinds})" if kinds else "")),
            Fact("methods", ", ".join(self.methods)),
            Fact("model", self.model),
        ]
        if self.agreement is not None:
            facts.append(Fact("agreement", f"{number(self.agreement)} (Spearman, mean over rows)"))
        rare = f", without those in fewer than {RARE_SHARE:.1%} of a class's rows" if self.left_out else ""
        caption = (
            f"Mean score of each {self.unit}, largest mean |score| first{rare}; ×: number of occurrences. Outliers: "
            "distance of the sum of scores from the median of the class, in robust standard deviations (−: below)."
        )
        return View("Most important features of this dataset", tuple(panels), tuple(facts), (), caption, columns=2)

    def to_frame(self) -> DataFrame:
        """Return one row per method, class and unit."""
        names = ["method", "target", "unit", "rows", "mean", "mean_size"]
        return dataframe([tuple(getattr(i, name) for name in names) for i in self.importance], names)


_Agreement = tuple[float, int, int, list[int]]  # mean rank correlation between methods, place, part, lines


# The sum of |score| of each explanation, its part and line. Arrays: objects would take gigabytes for 10 million.
_Strengths = tuple["array[float]", "array[int]", "array[int]"]


def summary_of(dataset: ExplainedDataset, top: int) -> DatasetSummary:
    """Go through a folder once, a part at a time; sums and 16 bytes per explanation stay in memory."""
    tallies = Tallies()
    least: list[_Agreement] = []
    agreement, compared = 0.0, 0
    strengths: defaultdict[tuple[str, str], _Strengths]  # by method and class
    strengths = defaultdict(lambda: (array("d"), array("i"), array("i")))
    for commit in dataset.parts:
        with dataset._reading(commit.part):
            lines = dataset.table(commit.part, READ).to_pylist()
            for line, entry in enumerate(lines):
                scores = np.asarray(entry["scores"], np.float64)
                plain = ~np.asarray(entry["units"]["special"], bool)
                entry["plain_scores"] = scores[plain] if plain.any() else scores
                strength = float(np.abs(entry["plain_scores"]).sum())
                method, target = from_plain(str, entry["method"], "method"), str(Target(**entry["target"]))
                sums, parts, rows_of = strengths[method, target]
                sums.append(strength)
                parts.append(commit.part)
                rows_of.append(line)
                tallies.add(method, target, Units(**entry["units"]), scores)
            if len(dataset.methods) > 1:
                here = list(_agreements(commit.part, lines))
                agreement, compared = agreement + sum(value for value, *_ in here), compared + len(here)
                least = sorted(least + here)[:top]
    importance, left_out = tallies.importances(MOST_UNITS)
    differently = "methods rank its features differently"
    return DatasetSummary(
        source=dataset.source,
        model=dataset.asked["model"],
        methods=dataset.methods,
        rows=dataset.rows,
        explained=len(dataset),
        errors=dataset.errors,
        error_kinds=dict(Counter(failure["kind"] for failure in dataset._failed_rows())),
        importance=tuple(Importance(*entry) for entry in importance),
        outliers=tuple(_outliers(dataset, strengths, top)),
        disagreements=tuple(_case(dataset, part, rows, differently, value) for value, _, part, rows in least),
        agreement=agreement / compared if compared else None,
        unit=tallies.unit,
        left_out=left_out,
    )


def _outliers(dataset: ExplainedDataset, strengths: Mapping[tuple[str, str], _Strengths], top: int) -> Iterator[Case]:
    """Rows far from the median of their method and class: in units of 1.4826 times the median distance."""
    far: list[tuple[float, int, int, str]] = []
    for (method, target), (sums, parts, lines) in sorted(strengths.items(), key=lambda item: item[0]):
        values = np.frombuffer(sums)
        away = values - np.median(values)
        usual = 1.4826 * float(np.median(np.abs(away)))
        if usual == 0:
            continue
        for i in np.argsort(-np.abs(away), kind="stable")[:top]:
            what = "higher" if away[i] > 0 else "lower"
            reason = f"sum of scores by {method} {what} than usual for {target}"
            far.append((float(away[i]) / usual, parts[i], lines[i], reason))
    far.sort(key=lambda entry: -abs(entry[0]))
    for distance, part, line, reason in far[:top]:
        yield _case(dataset, part, [line], reason, distance)


def _agreements(part: int, lines: Sequence[dict[str, Any]]) -> Iterator[_Agreement]:
    """Yield, per row of a part, the mean rank correlation between its methods, its place, the part, and its lines."""
    from whyformer.evaluate.comparison import spearman  # brings scipy.stats, a second that no worker needs

    rows: dict[tuple[int, int], list[int]] = {}
    for line, entry in enumerate(lines):
        rows.setdefault((entry["place"], entry["step"]), []).append(line)
    for (place, _), members in rows.items():
        scores = [lines[i]["plain_scores"] for i in members]
        if len(scores) < 2 or len({len(s) for s in scores}) > 1 or len(scores[0]) < FEWEST:
            continue
        pairs = spearman(np.stack(scores))[np.triu_indices(len(scores), 1)]
        if not np.isnan(pairs).all():
            yield float(np.nanmean(pairs)), place, part, members


def _case(dataset: ExplainedDataset, part: int, lines: list[int], reason: str, value: float) -> Case:
    with dataset._reading(part):
        chosen = [*job_folder.explanations_in(dataset.table(part).take(lines), dataset._same)]
    place = chosen[0][0]
    explanations = tuple(explanation for _, explanation in chosen)
    return Case(place["row_id"], place["place"], place["name"], reason, value, explanations)


@checked
def summary_page(summary: DatasetSummary) -> Page:
    """Return the page: the summary, then unusual rows with their explanations."""
    views = [summary.overview()]
    for case in (*summary.disagreements, *summary.outliers):
        called = f" ({case.name})" if case.name else ""
        title = f"row {case.place}{called}: {case.reason} ({number(case.number)})"
        same = len({(e.units.labels, e.units.text) for e in case.explanations}) == 1
        views.append(side_by_side(case.explanations if same else case.explanations[:1], title=title))
    return Page(f"{summary.source}, explained", tuple(views))


def _called(case: Case) -> str:
    """The row in few words: its number, what it is called, and how it begins."""
    text = " ".join((case.explanations[0].units.text or "").split())
    beginning = text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"
    return " · ".join(filter(None, (str(case.place), case.name, beginning)))


view_of.register(DatasetSummary, summary_page)

SUMMARY = "summary.json"


class ExplainedDataset(Pictured):
    """Explanations of a dataset in a folder. Iteration reads one part at a time.

    ``show``, ``save``, ``plot`` and ``to_html`` draw its summary.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> wf.explain_dataset(model, ["I like the movie", "This is so boring"], out="explained", tokenizer=tokenizer)
    >>> dataset = wf.load("explained")
    >>> dataset.to_frame()
    """

    @checked
    def __init__(self, folder: str | Path) -> None:
        self.folder = readable_folder(folder, "folder of explanations")
        manifest = job_folder.read_manifest(self.folder)
        self.source, self.asked = str(manifest["source"]), dict(manifest["asked"])
        parts: dict[int, job_folder.Commit] = {commit.part: commit for commit in job_folder.read_commits(self.folder)}
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
        """Yield every explanation with the identity of its row: row_id, place, name, step."""
        for commit in self.parts:
            with self._reading(commit.part):
                yield from job_folder.explanations_in(self.table(commit.part), self._same)

    def _reading(self, part: int, kind: str = job_folder.EXPLANATIONS) -> AbstractContextManager[None]:
        """Turn errors about a damaged file into a BadInput that names it."""
        path = job_folder.part_file(self.folder, part, kind)
        return reading(f"{str(path)!r} cannot be read", "Delete it, and run the same job again to write it.")

    @property
    def _same(self) -> dict[str, Any]:
        """Fields that are the same for all explanations, from the manifest."""
        versions = {name: self.asked[name] for name in ("whyformer", "torch")}
        versions |= {"python": platform.python_version()}
        return {"seed": self.asked["seed"], "model": self.asked["model"], "versions": versions}

    @checked
    def row(self, place: int) -> dict[str, Any]:
        """Return the explanations of one row, by method; a list if the row has several. Reads one part."""
        number = place // self.asked["part_rows"]
        if number not in {commit.part for commit in self.parts} or place < 0:
            raise BadInput(f"row {place} does not exist: {self.rows} rows are done, counted from 0.")
        table = self.table(number)
        pa = arrow("reading explanations")
        chosen = table.filter(pa.compute.equal(table["place"], place))
        by_method: dict[str, Any] = {}
        with self._reading(number):
            for _, explanation in job_folder.explanations_in(chosen, self._same):
                by_method.setdefault(explanation.method, []).append(explanation)
        if not by_method:
            reason = [f["reason"] for f in self.failures() if f["place"] == place]
            raise BadInput(f"row {place} could not be explained: {reason[0] if reason else 'reason unknown'}")
        per_step = any(chosen[job_folder.STEP].to_pylist())
        return by_method if per_step else {name: each[0] for name, each in by_method.items()}

    def table(self, part: int, columns: Sequence[str] | None = None) -> Any:
        """Return one part as a pyarrow table."""
        path = job_folder.part_file(self.folder, part)
        if not is_file(path):
            raise BadInput(f"{str(path)!r} is missing: run the same job again to write it.")
        pa, whole = arrow("reading explanations"), job_folder.schema()
        wanted = whole if columns is None else pa.schema([whole.field(name) for name in columns])
        with self._reading(part):
            if missing := {*whole.names} - {*pa.parquet.read_schema(path).names}:
                raise Damaged(f"it has no column {min(missing)!r}")
            return job_folder.read_part(path, wanted)

    def failures(self) -> list[dict[str, Any]]:
        """Return the rows that could not be explained: row_id, place, name, kind, reason, content."""
        return list(self._failed_rows())

    def _failed_rows(self) -> Iterator[dict[str, Any]]:
        """Yield them; those of one part are in memory."""
        for commit in self.parts:
            if commit.errors:
                path = job_folder.part_file(self.folder, commit.part, job_folder.ERRORS)
                with self._reading(commit.part, job_folder.ERRORS):
                    table = job_folder.read_part(path, job_folder.failure_schema())
                yield from table.to_pylist()

    def to_frame(self, columns: Sequence[str] | None = None) -> DataFrame:
        """Return all explanations as a pandas table, one row each; ``columns``: only some columns."""
        pa = arrow("to_frame()")
        known = job_folder.schema().names
        for name in columns or ():
            if name not in known:
                raise BadInput(f"unknown column {name!r}. Known: {', '.join(known)}.")
        tables = [self.table(commit.part, columns) for commit in self.parts]
        return pa.concat_tables(tables or [job_folder.schema().empty_table()]).to_pandas()

    # The summary

    @property
    def summary(self) -> DatasetSummary:
        """Return the summary: mean scores, outliers, and rows where methods disagree. Computed once, then cached."""
        if is_file(self.folder / SUMMARY):
            with suppress(BadInput):  # a damaged one is made again
                summary = DatasetSummary.load(self.folder / SUMMARY)
                if summary.rows == self.rows and summary.errors == self.errors:
                    return summary
        return self.summarize()

    @checked
    def summarize(self, top: int = 5) -> DatasetSummary:
        """Recompute the summary, with ``top`` outliers and disagreements; write summary.json and summary.html."""
        summary = summary_of(self, top)
        for ending in (".json", ".html"):
            summary.save((self.folder / SUMMARY).with_suffix(ending))
        return summary

    def view(self, *settings: Any, **options: Any) -> Any:
        """Return the picture of the summary."""
        return self.summary.view(*settings, **options)

    def save(self, path: str | Path, *settings: Any, **options: Any) -> Path:
        """Write the summary: .html, .png, .svg, .pdf, .json or .npz."""
        return self.summary.save(path, *settings, **options)
