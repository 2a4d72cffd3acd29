"""explain_dataset: a dataset of any size explained into a folder of Parquet files, resumed where it stopped."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

from whyformer import parameters
from whyformer.choices import answers
from whyformer.errors import BadInput, JobStopped, NotOffered, require
from whyformer.explainer import CoreExplainer
from whyformer.files import is_file, path_of
from whyformer.jobs.dataset import ExplainedDataset
from whyformer.jobs.folder import MANIFEST, WHY, Commit, JobFolder, Written, read_manifest
from whyformer.jobs.processes import Actors, Pool, Processes, cluster, require_whole, run_here
from whyformer.jobs.source import Part, RowFields, Unreadable, arrow, parts_of, rows_of
from whyformer.jobs.worker import Work, Worker, sizes_for
from whyformer.loan.digests import Undescribed, digest
from whyformer.loan.spread import is_sharded
from whyformer.options import Request
from whyformer.registry import AUTO, LEARNED, SUFFIX, get_method, learned_file
from whyformer.results.codec import to_plain
from whyformer.run.session import loaded_as
from whyformer.targets import Aims, Scalar

EVERY = {"line": 0.1, "json": 1.0}  # seconds between two words


class Progress:
    """Report progress at most every so often, and at the end."""

    def __init__(self, shown: bool | str | None, size: int | None, done: int = 0, errors: int = 0) -> None:
        wanted = sys.stderr.isatty() if shown is None else bool(shown)
        self.kind = "json" if shown == "json" else "line" if wanted else ""
        self.size, self.before, self.rows, self.errors = size, done, done, errors
        self.started, self.last = time.monotonic(), -1e9

    def add(self, commit: Commit) -> None:
        """A part is done."""
        self.rows, self.errors = self.rows + commit.rows, self.errors + commit.errors
        if self.kind and time.monotonic() - self.last >= EVERY[self.kind]:
            self.say("part")

    def say(self, event: str) -> None:
        """Write rows, total, rows per second since this run began, seconds left and errors."""
        self.last = time.monotonic()
        seconds = self.last - self.started
        rate = (self.rows - self.before) / seconds if seconds > 0 else 0.0
        left = None if self.size is None or not rate else round(max(0.0, (self.size - self.rows) / rate), 1)
        if self.kind == "json":
            facts = {"event": event, "rows": self.rows, "of": self.size, "rows_per_second": round(rate, 2)}
            sys.stderr.write(json.dumps(facts | {"seconds_left": left, "errors": self.errors}) + "\n")
        elif self.kind == "line":
            of = "" if self.size is None else f" of {self.size:,}"
            words = [f"{self.rows:,}{of} rows", f"{rate:,.1f} rows/s"]
            if left is not None:
                clock = str(timedelta(seconds=round(left)))
                words.append(f"{clock.removeprefix('0:').removeprefix('0')} left")
            words.append(f"{self.errors:,} error{'' if self.errors == 1 else 's'}")
            sys.stderr.write(f"\r\033[K{' · '.join(words)}" + ("\n" if event == "done" else ""))
        sys.stderr.flush()


ENGINES = ("local", "ray")
PART_ROWS = 512
# Parameters that the manifest holds by what they came to, and those that change no number. All others are in it.
RESOLVED = {
    "model", "processor", "tokenizer", "attention_at", "method", "column", "key", "options", "part_rows",
    "batch_tokens", "batch_size", "source", "out", "engine", "workers", "address", "top", "progress",
}  # fmt: skip
NOT_HERE = {"self", "inputs", "method", "progress", "keep_layers", "memory", "batch_size"}  # of explain


@parameters.checked
def explain_dataset(
    model: Any,
    source: Any,
    *,
    out: str | Path,
    processor: Any = None,
    tokenizer: Any = None,
    method: str | parameters.Named | Annotated[Sequence[str | parameters.Named], parameters.NotEmpty()] | None = None,
    engine: Annotated[str, parameters.OneOf(*ENGINES)] = "local",
    column: str | Annotated[Sequence[str], parameters.NotEmpty()] | None = None,
    key: str | None = None,
    target: Aims = None,
    target_column: str | None = None,
    scalar: Scalar = "centred",
    too_long: Annotated[str, parameters.OneOf("error", "cut")] = "error",
    part_rows: parameters.Count | None = None,
    batch_tokens: parameters.Count | None = None,
    batch_size: parameters.BatchSize | None = None,
    workers: parameters.Count | None = None,
    address: str | None = None,
    top: Annotated[int, parameters.Limits(0, 1000)] = 5,
    seed: parameters.Seed = 0,
    progress: bool | Annotated[str, parameters.OneOf("json")] | None = None,
    attention_at: Mapping[str, str] | None = None,
    **options: Any,
) -> ExplainedDataset:
    """Explain every row of a dataset and write the results into the folder ``out``; call again to resume a stopped job.

    source: a CSV, JSONL, Parquet or text file, a folder of images, a Dataset, a DataFrame, or an iterable of texts or
    dicts. column: the column of the input (two: a pair of texts); key: the column with names of rows; target_column:
    the column with the class to explain, by name or number (a missing value: the prediction). Several methods share one
    pass. Rows that cannot be explained are written to ``errors/`` with the reason; so are texts that are too long,
    unless ``too_long="cut"``. ``part_rows``: rows per file. ``batch_size`` and ``batch_tokens``: the most rows and
    positions per batch. ``top``: the number of outliers and disagreements in the summary. workers: the number of
    processes, each with a copy of the model: on GPUs in turn if the model is on one, else with a share of torch's
    threads. engine: "ray" runs them on a Ray cluster: the one at ``address``, or a new local one. progress: None shows
    it on a terminal, "json" writes lines for a log. options: those of ``explain``.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> wf.explain_dataset(model, "reviews.csv", column="text", out="reviews", tokenizer=tokenizer)
    """
    arguments = dict(locals())
    arrow(WHY)
    if engine == "ray":
        require("ray", why="engine='ray'")  # before anything is done
    explainer = loaded_as(CoreExplainer, model, processor, attention_at)
    apart = "engine='ray'" if engine == "ray" else f"workers={workers}" if (workers or 1) > 1 else ""
    _refuse_unusable(explainer, target, target_column, engine, address, apart)
    methods = [method] if isinstance(method, (str, parameters.Named)) else method or ()
    names = tuple(get_method(name).name for name in methods)
    rows = rows_of(source)
    columns = RowFields(rows, column, key, explainer.processor, target_column)
    folder = path_of(out, "out")
    part_rows, tokens, most = _sizes(folder, explainer, part_rows, batch_tokens, batch_size)
    parts = parts_of(rows, columns, part_rows)
    first = next(parts, None)
    if first is None:
        raise BadInput("source is empty: give at least one row.")
    names, options = _named_methods(names, options, explainer, first)
    settings = _admitted(names, {"target": target, "scalar": scalar, "seed": seed, **options})
    learned = tuple(_learned_file(name) for name in (*names, settings.get("guide"))) if apart else ()
    work = Work(names, settings, tokens, most, too_long == "cut", target_column is not None, learned)
    store = JobFolder(folder)
    with store.held():
        store.begin(rows.name, _asked(arguments, explainer, columns, work, part_rows))
        done = store.commits.values()
        shown = Progress(progress, rows.size, sum(c.rows for c in done), sum(c.errors for c in done))
        worker = Worker(explainer, work, any(c.explanations for c in done))
        _run(worker, store, chain([first], parts), shown, engine, workers, address)
        dataset = ExplainedDataset(folder)
        if top:
            _summarize(dataset, top)
        if shown.kind:
            shown.say("done")
    return dataset


def _run(
    worker: Worker,
    store: JobFolder,
    parts: Iterator[Part],
    shown: Progress,
    engine: str,
    workers: int | None,
    address: str | None,
) -> None:
    """Explain the parts that are left, here, in processes or on a cluster, and write each down when it is done."""

    def commit(written: Written) -> None:
        store.commit(written)
        shown.add(written.commit)

    left = store.left(parts)
    if engine == "ray":
        with cluster(address, workers) as ray:
            Pool(Actors(ray, worker.explainer, worker.work, workers), worker.proven).run(left, commit)
    elif workers is not None and workers > 1:
        Pool(Processes(worker.explainer, worker.work, workers), worker.proven).run(left, commit)
    else:
        run_here(worker, left, commit)


def _summarize(dataset: ExplainedDataset, top: int) -> None:
    try:
        dataset.summarize(top)
    except BadInput as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise JobStopped(
            f"all {dataset.rows} rows are saved in {str(dataset.folder)!r}, but the summary could not be written "
            f"({error.__cause__.strerror}): free some disk space, and run the job again."
        ) from error


def _named_methods(
    names: tuple[str, ...], options: dict[str, Any], explainer: CoreExplainer, part: Part
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Methods and options; if none is named, the method for the kind of the first readable row, one for all rows."""
    if names not in ((), (AUTO,)):
        return names, options
    for row in part.rows:
        if not isinstance(row.content, Unreadable):
            name, chosen = answers(explainer.source([row.content]).modality.kind, 1, options.get("passes"))[0]
            return (name,), {k: v for k, v in options.items() if k != "passes"} | chosen
    raise BadInput(f"none of the first {len(part.rows)} rows can be read: {part.rows[0].content.reason}")


def _refuse_unusable(
    explainer: CoreExplainer, target: Any, target_column: str | None, engine: str, address: str | None, apart: str
) -> None:
    """Raise for arguments that contradict each other, and for models that cannot be used here."""
    if isinstance(target, list):
        raise BadInput(
            "target: give one class for all rows of a dataset, or None for the prediction of each row. For different "
            "targets per row, name their column with target_column=."
        )
    if target is not None and target_column is not None:
        raise BadInput("target is one class for all rows, target_column a class for each: give one of the two.")
    if engine == "local" and address is not None:
        raise BadInput("address is the address of a Ray cluster: add engine='ray', or omit address=.")
    if is_sharded(explainer.model.parameters()):
        raise NotOffered(
            "the model is distributed over processes (tensor parallelism), and each of them would write this folder. "
            "Call explain on the rows in all processes, and save the results of one of them."
        )
    if apart:
        require_whole(explainer.model, apart)


def _learned_file(name: Any) -> str:
    """The file that other processes load a learned method from; "" for methods that they know."""
    if not isinstance(name, str) or not (name.startswith(LEARNED) or name.endswith(SUFFIX)):
        return ""
    path = learned_file(get_method(name).name)
    if path is None:
        raise BadInput(
            f"{name} exists in this process only: save it (learned.save('name.learned')) for workers to load."
        )
    return str(path)


def _admitted(names: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Options of explain and of the methods, refused before any work where they cannot be."""
    for name in options.keys() & NOT_HERE:
        raise BadInput(f"{name}=… is not supported for datasets: omit it.")
    request, methods = Request.of(explain_dataset, names, options), [get_method(name) for name in names]
    for name, value in request.rest.items():
        for m in [m for m in methods if name in m.options] or methods[:1]:
            m.checked({name: value})
    shared = {name: value for name, value in options.items() if name not in request.rest}
    return options | parameters.parameters_of(CoreExplainer.explain).admit(shared)


def _sizes(
    folder: Path, explainer: CoreExplainer, part_rows: int | None, tokens: int | None, most: int | None
) -> tuple[int, int, int]:
    """Return the sizes of parts and batches: those passed, those of the job in the folder, or the device's defaults."""
    usual = dict(zip(("batch_tokens", "batch_size"), sizes_for(explainer), strict=True)) | {"part_rows": PART_ROWS}
    sizes = usual | (read_manifest(folder)["asked"] if is_file(folder / MANIFEST) else {})
    return part_rows or sizes["part_rows"], tokens or sizes["batch_tokens"], most or sizes["batch_size"]


def _asked(
    arguments: Mapping[str, Any], explainer: CoreExplainer, columns: RowFields, work: Work, part_rows: int
) -> dict[str, Any]:
    """Return all parameters that scores depend on; a job is resumed only if they are unchanged."""
    question = explainer.question()
    model = question.pop("model")
    held = {name: _named(value) for name, value in question.items() if name != "versions"}
    return {
        **question["versions"],
        **{name: _named(value) for name, value in arguments.items() if name not in RESOLVED},
        **held,
        "model": type(model).__name__,
        "weights": _named(model),
        "column": list(columns.chosen) or None,
        "key": columns.key,
        "method": list(work.methods),
        "options": {name: _named(value) for name, value in sorted(arguments["options"].items())},
        "part_rows": part_rows,
        "batch_tokens": work.tokens,
        "batch_size": work.most,
    }


def _named(value: Any) -> Any:
    """Return a value that JSON can hold as it is, else a digest; one without a digest equals no other."""
    try:
        if to_plain(value) == json.loads(json.dumps(value)):
            return value
    except (TypeError, ValueError):
        pass
    try:
        return digest(value)
    except Undescribed as reason:
        warnings.warn(f"this job cannot be resumed: {reason}", RuntimeWarning, stacklevel=2)
        return f"undescribed {uuid4().hex}"
