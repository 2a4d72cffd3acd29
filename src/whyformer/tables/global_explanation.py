"""Explain many rows and average the scores of each column; rows are read from CSV files or frames."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from whyformer.errors import BadInput, NotOffered
from whyformer.evidence import standard_errors
from whyformer.explainer import CoreExplainer
from whyformer.files import csv_header, csv_lines, readable_file
from whyformer.inputs.modalities import are_tensors, as_list
from whyformer.inputs.table_schema import Columns, Table, require_once
from whyformer.parameters import BatchSize, Count, Limits, Seed, checked
from whyformer.results.codec import Float64, Int64
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.results.types import Explanation
from whyformer.run.session import loaded_as, tracker
from whyformer.shapes import Array
from whyformer.tables.permutation import TorchPredictor, feature_permutation
from whyformer.tables.table_results import FeaturePermutation, GlobalExplanation, agreement_of
from whyformer.targets import Aims, Scalar
from whyformer.views.table_marks import corpus_view
from whyformer.views.view import view_of

LONGEST = 160  # characters of an example


@dataclass(frozen=True, eq=False)
class CorpusExplanation(Result):
    """Scores of words over many texts: the mean over their occurrences, with 95 % confidence intervals.

    Words are compared in lower case. ``examples``: the text with the largest |score| of each word. The intervals treat
    occurrences as independent; occurrences in one text are not quite independent.
    """

    what: ClassVar[str] = "corpus explanation"
    later: ClassVar[tuple[str, ...]] = ("least",)

    words: tuple[str, ...]  # from the largest mean size to the smallest
    counts: Int64  # occurrences
    mean: Float64
    low: Float64  # NaN for a single occurrence, which shows no spread
    high: Float64
    mean_size: Float64  # of absolute scores
    examples: tuple[str, ...]
    texts: int
    left_out: int  # words that occur fewer than ``least`` times
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    target: str = ""
    scalar: str = "logit"
    signed: bool = False
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    model: str = ""
    least: int | None = None

    def ranked(self) -> list[tuple[str, float]]:
        """Return words from the highest mean score to the lowest; ties keep their order."""
        return [(self.words[i], float(self.mean[i])) for i in np.argsort(-self.mean, kind="stable")]

    def to_frame(self) -> DataFrame:
        """Return one row per word."""
        numbers = {name: getattr(self, name) for name in ("counts", "mean", "low", "high", "mean_size")}
        return dataframe({"word": self.words, **numbers, "example": self.examples})


@dataclass
class _Word:
    """One word's scores as they go along (Welford), and the text in which it weighed most."""

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
        return standard_errors(self.count) * (self.spread / max(self.count - 1, 1) / self.count) ** 0.5


class _WordSums:
    """What each word is worth over its occurrences; only sums are kept."""

    of = "text"
    mixed = "pass target= to explain one class."

    def __init__(self, texts: Sequence[str], least: int) -> None:
        self.texts, self.least = texts, least
        self.words: dict[str, _Word] = {}

    def add(self, explanation: Explanation, number: int) -> None:
        for word, score in explanation.words():
            if known := word.strip().casefold():
                self.words.setdefault(known, _Word()).add(score, self.texts[number])

    def result(self, first: Explanation, common: dict[str, Any]) -> CorpusExplanation:
        often = sorted((w for w in self.words if self.words[w].count >= self.least), key=lambda w: -self.words[w].size)
        if not often:
            most = max((word.count for word in self.words.values()), default=1)
            rare = f"no word occurs least={self.least} times in {len(self.texts)} texts"
            raise BadInput(f"{rare}: pass least={most}, or more texts.")
        known = [self.words[w] for w in often]
        mean, error = np.array([w.mean for w in known]), np.array([w.error for w in known])
        return CorpusExplanation(
            words=tuple(often),
            counts=np.array([w.count for w in known]),
            mean=mean,
            low=mean - error,
            high=mean + error,
            mean_size=np.array([w.size for w in known]),
            examples=tuple(w.example[:LONGEST] for w in known),
            texts=len(self.texts),
            left_out=len(self.words) - len(often),
            least=self.least,
            **common,
        )


view_of.register(CorpusExplanation, corpus_view)


NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?%?(?!\w)")


class Remarks:
    """Warnings of many rows; those that differ in their numbers only are one kind."""

    def __init__(self, of: str) -> None:
        self.of = of
        # By kind, which is the words around the numbers: how many rows, and the lowest and highest of each number.
        self.rows: Counter[tuple[str, ...]] = Counter()
        self.ranges: dict[tuple[str, ...], list[tuple[str, str]]] = {}

    def add(self, warnings: Sequence[str]) -> None:
        """Those of one row."""
        for warning in warnings:
            kind, numbers = tuple(NUMBER.split(warning)), NUMBER.findall(warning)
            known = zip(self.ranges.get(kind, [(n, n) for n in numbers]), numbers, strict=True)
            self.ranges[kind] = [(min(low, n, key=_value), max(high, n, key=_value)) for (low, high), n in known]
        self.rows.update({tuple(NUMBER.split(warning)) for warning in warnings})

    def told(self, size: int) -> list[str]:
        """One sentence per kind, with the range of each number, and in how many of ``size`` rows it was met."""
        told = []
        for kind, ranges in self.ranges.items():
            numbers = [low if low == high else f"{low} to {high}" for low, high in ranges]
            text = "".join(word + number for word, number in zip(kind, [*numbers, ""], strict=True))
            rows = self.rows[kind]
            if rows < size or any(low != high for low, high in ranges):
                text += f" ({f'all {size}' if rows == size else f'{rows} of {size}'} {self.of})"
            told.append(text)
        return told


def _value(number: str) -> float:
    return float(number.rstrip("%"))


class CsvRows:
    """The rows of a CSV file with a header, in chunks of ``size`` rows, for ``explain_global``."""

    @checked
    def __init__(self, path: str | Path, table: Table, size: BatchSize = 128) -> None:
        self.path, self.size = readable_file(path, "CSV file"), size
        self.table = table
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
        """Check every row, before long work."""
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
                cells = (self.table.parsed(name, line[i].strip()) for line in lines)
                made[name] = np.array([*cells, None], dtype=object)[:-1]
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
    scalar: Scalar = "centred",
    batch_size: BatchSize | None = None,
    samples: Annotated[int, Limits(0, 2**31 - 1)] = 500,
    least: Count = 2,
    reference: Literal["permutation"] | FeaturePermutation | Mapping[str, float] | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
    **options: Any,
) -> GlobalExplanation | CorpusExplanation:
    """Explain many rows and average their scores per column; or many texts, per word.

    inputs: rows as for ``explain`` (with ``processor`` a Table), a CSV file (``tables.CsvRows``, which reads it in
    chunks), or the model's own tensors. Rows are explained ``batch_size`` at a time; only sums and ``samples`` rows for
    pictures are kept. Confidence intervals are Student's t over rows. Words of texts that occur fewer
    than ``least`` times are left out. reference: "permutation" compares columns with ``feature_permutation`` of the
    same rows, or pass its result, or other scores by column; ``agreement`` of the result is the rank correlation.
    Answers are the table's target column where rows have one, else the model's own predictions.

    >>> model, table = wf.demo.load_adult()
    >>> wf.explain_global(model, wf.demo.census.adult_rows()[:8], table).show()
    """
    started = time.perf_counter()
    explainer = loaded_as(CoreExplainer, model, processor)
    step = batch_size or BATCH_SIZE
    pieces, size, sums = _pieces(explainer.processor, inputs, step, samples, least)
    _refuse_unfitting(inputs, size, target, reference, isinstance(sums, _WordSums))
    settings: dict[str, Any] = {"method": method, "scalar": scalar, "seed": seed, "batch_size": step, **options}
    remarks, names, at = Remarks(f"{sums.of}s"), set(), 0
    first: Explanation | None = None
    for piece in tracker(progress)(pieces, "explaining"):
        part = target[at : at + step] if isinstance(target, list) else target
        for explanation in explainer.explain(piece, target=part, progress=False, **settings):
            if not isinstance(explanation, Explanation):
                raise NotOffered("each text has several explanations (generated tokens), so words have several scores.")
            first = first or explanation
            names.add(str(explanation.target))
            remarks.add(explanation.warnings)
            sums.add(explanation, at)
            at += 1
    assert first is not None
    if reference == "permutation":
        reference = _permutation(explainer, inputs, seed, progress)
    warnings = remarks.told(size)
    if len(names) > 1 and target is None and (first.signed or sums.of == "text"):
        mixed = f"each {sums.of}'s own prediction was explained, and scores for different classes were averaged"
        warnings.append(f"{mixed}: {sums.mixed}")
    common = {
        "method": first.method,
        "options": {k: v for k, v in first.options.items() if first.changed is None or k in first.changed},
        "target": next(iter(names)) if len(names) == 1 else f"the prediction of each {sums.of}",
        "scalar": first.scalar,
        "signed": first.signed,
        "warnings": tuple(warnings),
        "seconds": time.perf_counter() - started,
        "model": first.model,
    }
    result = sums.result(first, common)
    if reference is None or not isinstance(result, GlobalExplanation):
        return result
    if isinstance(reference, FeaturePermutation):
        return replace(result, agreement=reference.agreement(result, seed))
    scores_U1 = np.array(list(reference.values()), float)[:, None]
    agreement = agreement_of(result.compared, list(reference), scores_U1, seed, model=first.model)
    return replace(result, agreement=agreement)


def _refuse_unfitting(inputs: Any, size: int, target: Any, reference: Any, texts: bool) -> None:
    """Raise where there are no rows, or targets or a reference do not fit them."""
    if size == 0:
        raise BadInput("inputs has no rows: give at least one.")
    if reference is not None and (texts or are_tensors(inputs) or isinstance(inputs, CsvRows)):
        raise BadInput("reference= compares columns of rows in memory (a DataFrame, dicts): pass these, with a Table.")
    if isinstance(target, list) and len(target) != size:
        raise BadInput(f"targets: {len(target)}, rows: {size}. Give one target, or one per row.")


def _permutation(explainer: CoreExplainer, inputs: Any, seed: int, progress: bool | None) -> FeaturePermutation:
    """Permutation importance of the same rows, by the answers that they hold or else by the model's predictions."""
    table = explainer.processor
    columns = table.read(inputs)[0]
    answers = _answers(inputs, table.target)
    predictor = TorchPredictor(explainer.model, table, columns, BATCH_SIZE)
    if answers is None:
        output = predictor.output(None, ())
        answers = output[:, 0].astype(float) if output.shape[1] == 1 else output.argmax(1)
    return feature_permutation(explainer.model, columns, answers, processor=table, seed=seed, progress=progress)


def _answers(inputs: Any, target: str | None) -> Any:
    if not target:
        return None
    if hasattr(inputs, "columns"):
        return inputs[target].to_numpy() if target in inputs.columns else None
    if isinstance(inputs, Mapping):
        return inputs.get(target)
    named = all(isinstance(row, Mapping) and target in row for row in inputs)
    return [row[target] for row in inputs] if named else None


class _ColumnSums:
    """Means and variances as they go along (Welford), so that memory does not grow with the table."""

    of = "row"
    mixed = "use the mean |score|, or pass target=."

    def __init__(self, sampled: set[int]) -> None:
        self.sampled, self.count = sampled, 0
        self.labels: tuple[str, ...] = ()
        self.mean = self.spread = self.matrix = np.zeros(())  # arrays from the first row on
        self.samples: list[Array] = []
        self.values: list[tuple[str, ...]] = []
        self.classes: list[str] = []

    def add(self, explanation: Explanation, number: int) -> None:
        scores = explanation.scores.astype(float)
        both = np.stack([scores, np.abs(scores)])
        if not self.count:
            self.labels = explanation.units.labels
        if explanation.units.labels != self.labels:
            raise BadInput("rows have different units: explain_global is for tables, whose columns stay the same.")
        self.count += 1
        away = both - self.mean
        self.mean = self.mean + away / self.count
        self.spread = self.spread + away * (both - self.mean)
        if isinstance(explanation.matrix, np.ndarray):
            self.matrix = self.matrix + (explanation.matrix - self.matrix) / self.count
        if number in self.sampled:
            self.samples.append(explanation.scores)
            self.values.append(explanation.units.values or ())
            self.classes.append(explanation.prediction.label or str(explanation.prediction.index))

    def result(self, first: Explanation, common: dict[str, Any]) -> GlobalExplanation:
        """Limits are NaN for a single row, which shows no spread."""
        spread = self.spread / (self.count - 1) if self.count > 1 else np.full_like(self.mean, np.nan)
        error = standard_errors(self.count) * np.sqrt(spread / self.count)
        (low, size_low), (high, size_high) = self.mean - error, self.mean + error
        return GlobalExplanation(
            labels=self.labels,
            special=first.units.special,
            mean=self.mean[0], low=low, high=high,
            mean_size=self.mean[1], size_low=size_low, size_high=size_high,
            rows=self.count,
            unseen=first.units.unseen,
            matrix=self.matrix if self.matrix.ndim else None,
            samples=np.stack(self.samples) if self.samples else None,
            sample_values=tuple(self.values) if all(self.values) else (),
            sample_classes=tuple(self.classes),
            **common,
        )  # fmt: skip


def _pieces(
    processor: Any, inputs: Any, step: int, samples: int, least: int
) -> tuple[Any, int, _WordSums | _ColumnSums]:
    """Return batches of texts or rows, how many there are, and the sums that their scores go into."""
    texts = as_list(inputs) if hasattr(inputs, "dtype") else inputs
    if isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        batches = [texts[start : start + step] for start in range(0, len(texts), step)]
        return batches, len(texts), _WordSums(texts, least)
    pieces, size = _rows_of(processor, inputs, step)
    return pieces, size, _ColumnSums(set(np.linspace(0, size - 1, min(samples, size)).round().astype(int).tolist()))


def _rows_of(processor: Any, inputs: Any, step: int) -> tuple[Any, int]:
    """Return batches of rows, and how many rows there are; rows in memory are all checked before long work."""
    if isinstance(inputs, CsvRows):
        inputs.check(processor)
        return inputs, inputs.rows
    if not are_tensors(inputs):
        if not isinstance(processor, Table):
            raise BadInput(
                "explain_global takes a list of texts, rows with processor=Table(…), or the model's own tensors."
            )
        inputs, _ = processor.read(inputs)
        processor.encode(inputs)
    if isinstance(inputs, Tensor):
        return inputs.split(step), len(inputs)
    names = list(inputs) if isinstance(inputs, Mapping) else range(len(inputs))
    rows = len(inputs[names[0]])
    parts = [[inputs[name][start : start + step] for name in names] for start in range(0, rows, step)]
    return [dict(zip(names, part, strict=True)) if isinstance(inputs, Mapping) else tuple(part) for part in parts], rows
