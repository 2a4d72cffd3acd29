"""Explain many rows and average the scores of each column; rows are read from CSV files or frames."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from torch import Tensor

from whyformer.errors import BadInput, NotOffered
from whyformer.explainer import CoreExplainer
from whyformer.files.paths import csv_header, csv_lines, readable_file
from whyformer.inputs.modalities import are_tensors, as_list
from whyformer.inputs.table_schema import Columns, Table, require_once
from whyformer.parameters import BatchSize, Count, Limits, Seed, checked
from whyformer.results.codec import Float64, Int64
from whyformer.results.interop import dataframe
from whyformer.results.result import Result
from whyformer.results.types import Explanation
from whyformer.run.session import loaded_as, tracker
from whyformer.shapes import Array
from whyformer.tables.table_results import ABOUT_95, GlobalExplanation, Remarks
from whyformer.targets import Aims, Scalar
from whyformer.views.table_marks import corpus_view
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd


# Words over many texts: what each is worth to a model, wherever it stands.

LONGEST = 160  # characters of an example


@dataclass(frozen=True, eq=False)
class CorpusExplanation(Result):
    """Scores of words over many texts: the mean over their occurrences, with 95 % limits.

    Words are taken without their case. ``examples`` are the texts in which each weighed most. Limits take
    occurrences for independent, which those inside one text are not quite.
    """

    what: ClassVar[str] = "corpus explanation"

    words: tuple[str, ...]  # from the largest mean size to the smallest
    counts: Int64  # occurrences
    mean: Float64
    low: Float64  # NaN for a single occurrence, which shows no spread
    high: Float64
    mean_size: Float64  # of absolute scores
    examples: tuple[str, ...]
    texts: int
    left_out: int  # words that occur too rarely
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    target: str = ""
    scalar: str = "logit"
    signed: bool = False
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    model: str = ""

    def ranked(self) -> list[tuple[str, float]]:
        """Words from the highest mean score to the lowest; ties keep their order."""
        return [(self.words[i], float(self.mean[i])) for i in np.argsort(-self.mean, kind="stable")]

    def to_frame(self) -> pd.DataFrame:
        """One row per word."""
        names = ("counts", "mean", "low", "high", "mean_size")
        return dataframe(
            [
                {"word": word, **{n: getattr(self, n)[i] for n in names}, "example": self.examples[i]}
                for i, word in enumerate(self.words)
            ]
        )


@dataclass
class _Word:
    """One word's scores as they go along (Welford)."""

    count: int = 0
    mean: float = 0.0
    spread: float = 0.0
    size: float = 0.0
    most: float = -1.0
    example: str = ""

    def add(self, score: float, text: str) -> None:
        self.count += 1
        away = score - self.mean
        self.mean += away / self.count
        self.spread += away * (score - self.mean)
        self.size += (abs(score) - self.size) / self.count
        if abs(score) > self.most:
            self.most, self.example = abs(score), text

    @property
    def error(self) -> float:
        return float("nan") if self.count < 2 else ABOUT_95 * (self.spread / (self.count - 1) / self.count) ** 0.5


def explain_corpus(
    explainer: CoreExplainer,
    texts: Sequence[str],
    *,
    target: Any,
    step: int,
    least: int,
    progress: bool | None,
    **settings: Any,
) -> CorpusExplanation:
    """Explain many texts and average the scores of each word over its occurrences; only sums are kept."""
    started = time.perf_counter()
    words: dict[str, _Word] = {}
    remarks, names = Remarks("texts"), set()
    first: Explanation | None = None
    starts = list(range(0, len(texts), step))
    for start in tracker(progress)(starts, "explaining"):
        part = list(texts[start : start + step])
        aims = target[start : start + step] if isinstance(target, list) else target
        for text, explanation in zip(
            part, explainer.explain(part, target=aims, batch_size=step, progress=False, **settings), strict=True
        ):
            if not isinstance(explanation, Explanation):
                raise NotOffered("each text gives several explanations (generated tokens): words have no one score.")
            first = first or explanation
            names.add(str(explanation.target))
            remarks.add(explanation.warnings)
            for word, score in explanation.words():
                if word.strip():
                    words.setdefault(word.strip().casefold(), _Word()).add(score, text)
    assert first is not None
    often = sorted((w for w in words if words[w].count >= least), key=lambda w: -words[w].size)
    if not often:
        raise BadInput(f"no word occurs {least} times in {len(texts)} texts: give more texts, or a smaller least=.")
    known = [words[w] for w in often]
    mean, error = np.array([w.mean for w in known]), np.array([w.error for w in known])
    warnings = remarks.told(len(texts))
    if len(names) > 1 and target is None:
        warnings.append(
            "each text's own prediction was explained, and scores for different classes were averaged: pass target= to "
            "ask about one."
        )
    return CorpusExplanation(
        words=tuple(often),
        counts=np.array([w.count for w in known]),
        mean=mean,
        low=mean - error,
        high=mean + error,
        mean_size=np.array([w.size for w in known]),
        examples=tuple(w.example[:LONGEST] for w in known),
        texts=len(texts),
        left_out=len(words) - len(often),
        method=first.method,
        options={k: v for k, v in first.options.items() if first.changed is None or k in first.changed},
        target=next(iter(names)) if len(names) == 1 else "the prediction of each text",
        scalar=first.scalar,
        signed=first.signed,
        warnings=tuple(warnings),
        seconds=time.perf_counter() - started,
        model=first.model,
    )


view_of.register(CorpusExplanation, corpus_view)

# A CSV file read a piece at a time, so that a long table never stands in memory.


class CsvRows:
    """The rows of a CSV file with a header, as pieces of ``size`` rows: columns by name, for ``explain_global``."""

    @checked
    def __init__(self, path: str | Path, table: Table, size: BatchSize = 128) -> None:
        self.path, self.size = readable_file(path, "CSV file"), size
        self.spelled = {name: {str(v): v for v in values} for name, values in table.categorical.items()}
        self.header, self.rows = csv_header(self.path)
        # An index column without a name (as pandas writes it) is no column of the table.
        require_once([name for name in self.header if name])
        table.read({name: [] for name in self.header if name})  # wrong columns are found before any work

    def __len__(self) -> int:
        return math.ceil(self.rows / self.size)

    def __iter__(self) -> Iterator[Columns]:
        lines = islice(csv_lines(self.path), 1, None)
        while piece := list(islice(lines, self.size)):
            yield self._columns(piece)

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


BATCH_SIZE = 128


@checked
def explain_global(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    method: str | None = None,
    target: Aims = None,
    scalar: Scalar = "logit",
    batch_size: BatchSize | None = None,
    samples: Annotated[int, Limits(0, 2**31 - 1)] = 500,
    least: Count = 2,
    seed: Seed = 0,
    progress: bool | None = None,
    **options: Any,
) -> GlobalExplanation | CorpusExplanation:
    """Explain many rows and average their scores per column; or many texts, per word.

    inputs: rows as for ``explain`` (with ``processor`` a Table), a CSV file (``tables.CsvRows``, which reads it a piece
    at a time), or the model's own tensors. Rows are explained ``batch_size`` at a time and only sums are kept, besides
    ``samples`` rows drawn evenly for pictures. Limits are mean ± 1.96 standard errors over rows. Of texts, words that
    occur fewer than ``least`` times are left out.

    >>> model, table = wf.demo.load_adult()
    >>> wf.explain_global(model, wf.demo.census.adult_rows()[:8], table).show()
    """
    started = time.perf_counter()
    explainer = loaded_as(CoreExplainer, model, processor)
    step = batch_size or BATCH_SIZE
    texts = as_list(inputs) if hasattr(inputs, "dtype") else inputs
    if isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        _check(len(texts), target)
        settings: dict[str, Any] = {"method": method, "scalar": scalar, "seed": seed, **options}
        return explain_corpus(explainer, texts, target=target, step=step, least=least, progress=progress, **settings)
    pieces, size = _pieces(explainer.processor, inputs, step)
    _check(size, target)
    sample_rows = set(np.linspace(0, size - 1, min(samples, size)).round().astype(int).tolist()) if samples else set()
    sums = _Sums()
    at = 0
    first: Explanation | None = None
    names: set[str] = set()
    for piece in tracker(progress)(pieces, "explaining"):
        part = target[at : at + step] if isinstance(target, list) else target
        explanations = explainer.explain(
            piece,
            method=method,
            target=part,
            scalar=scalar,
            seed=seed,
            batch_size=step,
            progress=False,
            **options,
        )
        for explanation in explanations:
            first = first or explanation
            names.add(str(explanation.target))
            sums.add(explanation, keep=at in sample_rows)
            at += 1
    assert first is not None
    return _result(first, sums, names, target, time.perf_counter() - started)


class _Sums:
    """Means and variances as they go along (Welford), so that memory does not grow with the table."""

    def __init__(self) -> None:
        self.count = 0
        self.labels: tuple[str, ...] = ()
        self.mean: Array = np.zeros(0)
        self.spread: Array = np.zeros(0)
        self.matrix: Array | None = None
        self.samples: list[Array] = []
        self.values: list[tuple[str, ...]] = []
        self.remarks = Remarks()

    def add(self, explanation: Explanation, keep: bool) -> None:
        scores = explanation.scores.astype(float)
        both = np.stack([scores, np.abs(scores)])
        if not self.count:
            self.labels = explanation.units.labels
            self.mean, self.spread = np.zeros_like(both), np.zeros_like(both)
        if explanation.units.labels != self.labels:
            raise BadInput("rows have different units: explain_global is for tables, whose columns stay the same.")
        self.count += 1
        away = both - self.mean
        self.mean += away / self.count
        self.spread += away * (both - self.mean)
        if isinstance(explanation.matrix, np.ndarray):
            before = np.zeros_like(explanation.matrix, dtype=float) if self.matrix is None else self.matrix
            self.matrix = before + (explanation.matrix - before) / self.count
        if keep:
            self.samples.append(explanation.scores)
            self.values.append(explanation.units.values or ())
        self.remarks.add(explanation.warnings)

    def limits(self) -> tuple[Array, Array]:
        """(2, U) low and high; NaN for a single row, which shows no spread."""
        if self.count < 2:
            return np.full_like(self.mean, np.nan), np.full_like(self.mean, np.nan)
        error = ABOUT_95 * np.sqrt(self.spread / (self.count - 1) / self.count)
        return self.mean - error, self.mean + error


def _result(first: Explanation, sums: _Sums, names: set[str], target: Any, seconds: float) -> GlobalExplanation:
    low, high = sums.limits()
    warnings = sums.remarks.told(sums.count)
    if first.signed and len(names) > 1 and target is None:
        warnings.append(
            "each row's own prediction was explained, and scores for different classes were averaged: the mean size is "
            "what to look at, or pass target=."
        )
    return GlobalExplanation(
        labels=sums.labels,
        special=first.units.special,
        mean=sums.mean[0], low=low[0], high=high[0],
        mean_size=sums.mean[1], size_low=low[1], size_high=high[1],
        rows=sums.count,
        method=first.method,
        options={k: v for k, v in first.options.items() if first.changed is None or k in first.changed},
        target=next(iter(names)) if len(names) == 1 else "the prediction of each row",
        scalar=first.scalar,
        signed=first.signed,
        unseen=first.units.unseen,
        matrix=sums.matrix,
        samples=np.stack(sums.samples) if sums.samples else None,
        sample_values=tuple(sums.values) if all(sums.values) else (),
        warnings=tuple(warnings),
        seconds=seconds,
        model=first.model,
    )  # fmt: skip


def _check(size: int, target: Any) -> None:
    if size == 0:
        raise BadInput("inputs has no rows: give at least one.")
    if isinstance(target, list) and len(target) != size:
        raise BadInput(f"{len(target)} targets for {size} rows: give one target, or one per row.")


def _pieces(processor: Any, inputs: Any, step: int) -> tuple[Any, int]:
    """Batches of rows, and how many rows there are; rows in memory are all checked before long work."""
    if isinstance(inputs, CsvRows):
        inputs.check(processor)
        return inputs, inputs.rows
    if isinstance(processor, Table) and not are_tensors(inputs):
        columns, _ = processor.read(inputs)
        processor.encode(columns)
        return _Pieces(columns, step), len(columns[processor.columns[0]])
    if not are_tensors(inputs):
        raise BadInput(
            "explain_global takes a list of texts, rows with processor=Table(…), or the model's own tensors."
        )
    pieces = _Pieces(inputs, step)
    return pieces, pieces.rows


class _Pieces:
    """Columns or tensors, a few rows at a time."""

    def __init__(self, inputs: Any, step: int) -> None:
        self.inputs, self.step = inputs, step
        if isinstance(inputs, Mapping):
            inputs = list(inputs.values())
        self.rows = len(inputs) if isinstance(inputs, Tensor) else len(inputs[0])

    def __len__(self) -> int:
        return math.ceil(self.rows / self.step)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, self.rows, self.step):
            part = slice(start, start + self.step)
            if isinstance(self.inputs, Tensor):
                yield self.inputs[part]
            elif isinstance(self.inputs, Mapping):
                yield {k: v[part] for k, v in self.inputs.items()}
            else:
                yield tuple(v[part] for v in self.inputs)
