"""Workers: explain the rows of a part in batches of similar length, report bad rows, and build the files."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from whyformer import errors
from whyformer.explainer import CoreExplainer
from whyformer.inputs.modalities import Source
from whyformer.inputs.text import TextRead
from whyformer.jobs.folder import WHY, Commit, Entry, Failure, Written, failure_schema, parquet_bytes, table_of
from whyformer.jobs.source import Part, Row, Unreadable, arrow, batches_of
from whyformer.registry import get_method
from whyformer.results.types import Units, word_pieces
from whyformer.run.session import POSITIONS
from whyformer.shapes import Array

ACROSS, DOWN = ("left", "middle", "right"), ("top", "middle", "bottom")
MOST_KEPT = 100_000  # units of one method and class: of more, those that hardly occur are dropped
# Of texts with many words, one that occurs less often is no general one: at all, or as a share of the class's rows.
RARE, RARE_SHARE = 2, 0.005
MANY = 50  # units, from which on rare ones are left out


class Tallies:
    """Count, sum and sum of sizes, by method, class and unit."""

    def __init__(self) -> None:
        self.sums: dict[tuple[str, str], dict[str, list[float]]] = {}
        self.rows: Counter[tuple[str, str]] = Counter()
        self.dropped = 0
        self.unit = "unit"

    def add(self, method: str, target: str, units: Units, scores: Array) -> None:
        """Count the units of one explanation."""
        sums = self.sums.setdefault((method, target), {})
        self.rows[method, target] += 1
        for name, score in self._named(units, scores):
            entry = sums.setdefault(name, [0, 0.0, 0.0])
            entry[0] += 1
            entry[1] += score
            entry[2] += abs(score)
        if len(sums) > MOST_KEPT:
            often = dict(sorted(sums.items(), key=lambda item: -item[1][0])[: MOST_KEPT // 2])
            self.dropped += len(sums) - len(often)
            self.sums[method, target] = often

    def _named(self, units: Units, scores: Array) -> Iterator[tuple[str, float]]:
        """Yield names and scores: of columns, of nine regions of a picture, or of words in lower case."""
        if units.values is None and units.grid is not None:
            self.unit = "region"
            yield from _regions(units, scores).items()
        elif units.values is None and units.word is not None:
            self.unit = "word"
            for members in word_pieces(units, range(len(scores))):
                name = units.text_of(members)
                if name.removeprefix("##").lstrip("Ġ▁"):  # not a space alone
                    yield name.casefold(), float(sum(scores[i] for i in members))
        else:
            self.unit = self.unit if units.values is None else "column"
            each = zip(units.labels, scores, units.special, strict=True)
            yield from ((label, float(score)) for label, score, special in each if not special)

    def importances(self, most: int) -> tuple[list[tuple[str, str, str, int, float, float]], int]:
        """(method, class, unit, count, mean, mean size), the largest first; and how many are left out."""
        listed: list[tuple[str, str, str, int, float, float]] = []
        left_out = self.dropped
        for (method, target), sums in sorted(self.sums.items()):
            least = max(RARE, RARE_SHARE * self.rows[method, target]) if len(sums) > MANY else 1
            often = [(name, entry) for name, entry in sums.items() if entry[0] >= least]
            often.sort(key=lambda item: (-item[1][2] / item[1][0], item[0]))
            left_out += len(sums) - len(often[:most])
            for name, (count, total, size) in often[:most]:
                listed.append((method, target, name, int(count), total / count, size / count))
        return listed, left_out


def _regions(units: Units, scores: Array) -> dict[str, float]:
    """Return nine regions of the picture, and the sum of the patches in each."""
    rows, columns = units.grid or (0, 0)
    sums: dict[str, float] = {}
    for place, i in enumerate([i for i in range(len(scores)) if units.is_patch(i)][: rows * columns]):
        row, column = divmod(place, columns)
        name = f"{DOWN[row * 3 // rows]} {ACROSS[column * 3 // columns]}".replace("middle middle", "centre")
        sums[name] = sums.get(name, 0.0) + float(scores[i])
    return sums


TELLING = 8  # rows that fail together, before any was explained: then it is not the rows
# What is wrong with the call, not with a row; as long as no row was explained.
OF_THE_JOB = (errors.MissingProcessor, errors.MissingExtra, errors.NotAllowed, errors.UnknownName, errors.CaptureError)
SHOWN = 200  # characters of a row in its error


@dataclass(frozen=True)
class Work:
    """The methods and options of a job, the same for all rows and workers."""

    methods: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)  # for explain
    tokens: int = 1024
    most: int = 32
    cut: bool = False  # texts that are too long, instead of refusing them
    targets_vary: bool = False  # each row brings its own
    learned: tuple[str, ...] = ()  # files of learned methods, which other processes load; "" for other methods


@dataclass(frozen=True)
class ReadPart:
    """A part with its rows encoded, batch by batch."""

    part: Part
    batches: list[tuple[list[Row], Source]]
    failures: list[Failure]


class Worker:
    """A model that explains parts. ``proven``: rows were explained before, so what fails now is the rows' own."""

    def __init__(self, explainer: CoreExplainer, work: Work, proven: bool = False) -> None:
        self.explainer, self.work, self.proven = explainer, work, proven
        for path in filter(None, work.learned):
            get_method(path)

    def prepared(self, part: Part) -> ReadPart:
        """The part's rows as tensors. Touches no weight, and may run beside :meth:`explained`."""
        rows = [row for row in part.rows if not isinstance(row.content, Unreadable)]
        unreadable = [row for row in part.rows if isinstance(row.content, Unreadable)]
        failures = [_failure(row, errors.BadInput(row.content.reason)) for row in unreadable]
        lengths, limit = self._lengths(rows)
        fitting = []
        for row, length in zip(rows, lengths, strict=True):
            if limit is not None and length > limit and not self.work.cut:
                failures.append(
                    _failure(row, errors.TooLong(f"the text has {length} tokens, and the model takes {limit}."))
                )
            else:
                fitting.append((row, min(length, limit) if limit is not None else length))
        batches = []
        for batch in batches_of([length for _, length in fitting], self.work.tokens, self.work.most):
            batches += self._encoded([fitting[i][0] for i in batch], failures)
        return ReadPart(part, batches, failures)

    def _lengths(self, rows: list[Row]) -> tuple[list[int], int | None]:
        """Tokens of each row, where they are texts, and how many the model takes; 1 each where they are not."""
        contents = [row.content if isinstance(row.content, (tuple, list)) else (row.content,) for row in rows]
        plain = [
            (row, tuple(parts))
            for row, parts in zip(rows, contents, strict=True)
            if all(isinstance(part, str) for part in parts) and any(part.strip() for part in parts)
        ]
        read = self.explainer.source([plain[0][0].content]).modality.read if plain else None
        if not isinstance(read, TextRead) or read.processor is None:
            return [1] * len(rows), None
        texts: list[Any] = [parts for _, parts in plain]
        if all(len(text) == 1 for text in texts):  # in one call, which the tokenizer spreads over its threads
            ids = read.encoding_of([text for (text,) in texts])["input_ids"]  # type: ignore[arg-type]
        else:
            ids = [read.encoding_of(*text)["input_ids"] for text in texts]
        lengths = {row.place: len(tokens) for (row, _), tokens in zip(plain, ids, strict=True)}
        return [lengths.get(row.place, 1) for row in rows], read.max_length()

    def _encoded(self, rows: list[Row], failures: list[Failure]) -> list[tuple[list[Row], Source]]:
        """Encode rows as one batch; rows that fail are reported, and the others encoded without them."""
        try:
            return [(rows, self._source(rows))]
        except Exception as error:
            self._refuse_for_all(error)
            if len(rows) == 1:
                failures.append(_failure(rows[0], error))
                return []
        fine = []
        for row in rows:
            try:
                self._source([row])
                fine.append(row)
            except Exception as error:
                failures.append(_failure(row, error))
        if len(fine) == len(rows):  # they do not go together
            return [pair for row in rows for pair in self._encoded([row], failures)]
        return self._encoded(fine, failures) if fine else []

    def _source(self, rows: list[Row]) -> Source:
        source = self.explainer.source([row.content for row in rows])
        if source.size != len(rows):
            raise errors.BadInput(f"{len(rows)} rows were read as {source.size} inputs: give one input per row.")
        return replace(source, whole=source.batch())

    def explained(self, prepared: ReadPart) -> Written:
        """The part's explanations and errors, as files."""
        started = time.perf_counter()
        failures = list(prepared.failures)
        entries: list[Entry] = []
        for rows, source in prepared.batches:
            before = len(failures)
            entries += self._entries(rows, source, failures)
            self.proven = self.proven or bool(entries)
            if not self.proven and len(failures) - before == len(rows) >= TELLING:
                reason = failures[-1].reason
                raise errors.BadInput(f"none of the first {len(rows)} rows could be explained. First error: {reason}")
        order = {name: number for number, name in enumerate(self.work.methods)}
        entries.sort(key=lambda entry: (entry[0].place, order.get(entry[2].method, 0), entry[1]))
        failures.sort(key=lambda failure: failure.place)
        part, data = prepared.part, parquet_bytes(table_of(entries))
        seconds = round(time.perf_counter() - started, 3)
        commit = Commit(part.number, part.digest, len(part.rows), len(entries), len(failures), len(data), seconds)
        if not failures:
            return Written(commit, data)
        told = arrow(WHY).Table.from_pylist([vars(failure) for failure in failures], schema=failure_schema())
        return Written(commit, data, parquet_bytes(told))

    def _entries(self, rows: list[Row], source: Source, failures: list[Failure]) -> list[Entry]:
        options = dict(self.work.options)
        if not options.keys() & {"generate", "span"}:  # tokens of an answer are run as one, however many there are
            options["batch_size"] = len(rows)
        if self.work.targets_vary:
            options["target"] = [row.target for row in rows]
        try:
            prepared: Any = source  # its kind is found already
            by_method = self.explainer.explain(prepared, method=list(self.work.methods), progress=False, **options)
        except Exception as error:
            self._refuse_for_all(error)
            if len(rows) == 1:
                failures.append(_failure(rows[0], error))
                return []
            middle = len(rows) // 2
            halves = [pair for half in (rows[:middle], rows[middle:]) for pair in self._encoded(half, failures)]
            return [entry for half, part in halves for entry in self._entries(half, part, failures)]
        entries: list[Entry] = []
        for explained in by_method.values():
            for row, each in zip(rows, explained, strict=True):
                explanations = each if isinstance(each, list) else [each]
                entries += [(row, step, explanation) for step, explanation in enumerate(explanations)]
        return entries

    def _refuse_for_all(self, error: Exception) -> None:
        if self.work.targets_vary and isinstance(error, errors.UnknownName):
            return  # it may be the row's own target that nobody knows
        if isinstance(error, OF_THE_JOB) and not self.proven:
            raise error


def _failure(row: Row, error: Exception) -> Failure:
    content = row.content.content if isinstance(row.content, Unreadable) else row.content
    reason = str(error) if isinstance(error, errors.WhyformerError) else f"{type(error).__name__}: {error}"
    plain = isinstance(content, (str, Mapping, Sequence, int, float)) or hasattr(content, "__fspath__")
    shown = str(content)[:SHOWN] if plain or content is None else type(content).__name__
    return Failure(row.id, row.place, row.name, type(error).__name__, reason, shown)


def sizes_for(explainer: CoreExplainer) -> tuple[int, int]:
    """Positions and rows of a batch that suit the device."""
    on_device = any(p.device.type not in ("cpu", "meta") for p in explainer.model.parameters())
    return (16384, 256) if on_device and torch.cuda.is_available() else (POSITIONS, 32)
