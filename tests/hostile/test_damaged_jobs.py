"""Folders of jobs that were damaged: what is read is as it was, or an error names the file and what to do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whyformer as wf
from tests.jobs.sentences import HOW, sentences
from tests.support import folders
from whyformer import files
from whyformer.errors import WhyformerError

ROWS = [*sentences(5), ""]
PART, ERRORS = "explanations/part-000000.parquet", "errors/part-000001.parquet"
DEEP = "[" * 100_000 + "]" * 100_000
COMMIT = {"part": 0, "digest": "", "rows": 1, "explanations": 1, "errors": 0}
Damage = Callable[[Path], object]


def contents(name: str, data: bytes | str) -> Damage:
    return lambda folder: (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def manifest(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(folder: Path) -> None:
        plain = json.loads((folder / "manifest.json").read_text())
        change(plain)
        (folder / "manifest.json").write_text(json.dumps(plain))

    return damage


def asked(**parameters: Any) -> Damage:
    return manifest(lambda plain: plain["asked"].update(parameters))


def cell(name: str, value: Any, field: str = "") -> Damage:
    """A value of the first row, or a field of it; "short": the value with its first entry alone."""

    def damage(folder: Path) -> None:
        table = pq.read_table(folder / PART)
        values = table[name].to_pylist()
        first = values[0][:1] if value == "short" else value
        values[0] = values[0] | {field: first} if field else first
        at = table.schema.get_field_index(name)
        new = table.set_column(at, name, pa.array(values, table.schema.field(name).type))
        pq.write_table(new, folder / PART, compression="zstd")

    return damage


def table(change: Callable[[Any], Any]) -> Damage:
    return lambda folder: pq.write_table(change(pq.read_table(folder / PART)), folder / PART)


def a_folder(name: str) -> Damage:
    return lambda folder: ((folder / name).unlink(), (folder / name).mkdir())


def pipe(name: str) -> Damage:
    """Who opens it to read waits for somebody who writes."""
    return lambda folder: ((folder / name).unlink(), os.mkfifo(folder / name))


DAMAGES: dict[str, Damage] = {
    "manifest nested": contents("manifest.json", DEEP),
    "manifest a list": contents("manifest.json", "[]"),
    "manifest of bytes": contents("manifest.json", b"\xff\xfe\0"),
    "manifest a folder": a_folder("manifest.json"),
    "source missing": manifest(lambda plain: plain.pop("source")),
    "parameters missing": manifest(lambda plain: plain.pop("asked")),
    "an older format": manifest(lambda plain: plain.update(format=1)),
    **{f"{name} null": asked(**{name: None}) for name in ("method", "model", "seed", "part_rows", "torch")},
    "method a number": asked(method=3),
    "methods numbers": asked(method=[1, 2]),
    "model a number": asked(model=3),
    "seed a word": asked(seed="x"),
    "parts of no rows": asked(part_rows=0),
    "parts of words": asked(part_rows="a"),
    "commits nested": contents("commits.jsonl", DEEP),
    "commits of bytes": contents("commits.jsonl", b"\xff\xfe"),
    "commits a list": contents("commits.jsonl", "[1]\n"),
    "commits of words": contents("commits.jsonl", json.dumps(COMMIT | {"part": "a", "rows": "x"})),
    "commits too large": contents("commits.jsonl", json.dumps(COMMIT | {"part": 10**30})),
    "commits below zero": contents("commits.jsonl", json.dumps(COMMIT | {"part": -1})),
    "part cut off": lambda folder: (folder / PART).write_bytes((folder / PART).read_bytes()[:500]),
    "part of junk": contents(PART, b"junk"),
    "part a folder": a_folder(PART),
    "part of other columns": table(lambda read: pa.table({"a": [1]})),
    "part of a row many times": table(lambda read: read.take([0] * 20_000)),
    "a score many times": cell("scores", [0.0] * 10**6),
    "a word that is long": cell("name", "x" * 10**7),
    "commits a pipe": pipe("commits.jsonl"),
    "lock a pipe": pipe("lock"),
    "part a pipe": pipe(PART),
    "errors many times": lambda folder: pq.write_table(
        pq.read_table(folder / ERRORS).take([0] * 50_000), folder / ERRORS
    ),
    "part without units": table(lambda read: read.drop_columns(["units"])),
    "scores words": table(
        lambda read: read.set_column(read.schema.get_field_index("scores"), "scores", [["x"] * len(read)])
    ),
    "errors missing": lambda folder: (folder / ERRORS).unlink(),
    "errors of junk": contents(ERRORS, b"junk"),
    "options nested": cell("options", DEEP),
    "options broken": cell("options", "{no"),
    "options a list": cell("options", "[1]"),
    "scores too few": cell("scores", "short"),
    "labels too few": cell("units", ["a"], "labels"),
    "special null": cell("units", None, "special"),
    "a grid of one": cell("units", [1], "grid"),
    "label null": cell("target", None, "label"),
    **{
        f"{name} of a row null": cell(name, None)
        for name in "options scores units target cost checks warnings method place".split()
    },
    "summary cut off": contents("summary.json", "{"),
    "summary nested": contents("summary.json", DEEP),
}
BEFORE = ("a score many times", "a word that is long")  # refused before they are read
TODO = (
    "run the same job again",
    "run the job again",
    "Give a folder",
    "name a file in it",
    "give a new or an empty folder",
)
READS: dict[str, Callable[[Any], object]] = {
    "repr": repr,
    "iterate": list,
    "row": lambda dataset: dataset.row(0) if dataset.rows else None,
    "failures": lambda dataset: dataset.failures(),
    "frame": lambda dataset: dataset.to_frame(),
    "summary": lambda dataset: dataset.summary.ranked(),
    "summarize": lambda dataset: dataset.summarize(2).ranked(),
}


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ARRAY_BYTES", 2**20)
    monkeypatch.setattr(files, "WORD_BYTES", 2**20)


@pytest.fixture(scope="module")
def explainer(tmp_path_factory: pytest.TempPathFactory) -> wf.Explainer:
    return wf.Explainer(folders.bert(), folders.tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def job(explainer: wf.Explainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("job") / "out"
    wf.explain_dataset(explainer, ROWS, out=out, **(HOW | {"top": 2}))
    return out


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_job_is_read_or_names_the_file(
    name: str, job: Path, explainer: wf.Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in BEFORE:
        monkeypatch.setattr(files, "ARRAY_BYTES", 2**40)
    calls: dict[str, Callable[[Path], object]] = {
        what: lambda out, read=read: read(wf.load(out))  # type: ignore[misc]
        for what, read in READS.items()
    }
    calls["resume"] = lambda out: wf.explain_dataset(explainer, ROWS, out=out, **(HOW | {"top": 2}))
    refused = 0
    for what, call in calls.items():
        out = tmp_path / what
        shutil.copytree(job, out)
        DAMAGES[name](out)
        try:
            call(out)
        except WhyformerError as error:
            refused += 1
            words = str(error)
            assert str(out) in words and any(todo in words for todo in TODO), what
    assert refused or name.startswith(("commits", "summary")), "these are made again"
