"""whyformer batch: a dataset into a folder, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import whyformer as wf
from tests.cli.test_cli import run


def rows_file(folder: Path) -> Path:
    path = folder / "rows.csv"
    path.write_text("id,words\na,good movie\nb,\nc,so boring the film was\n", encoding="utf-8")
    return path


def test_a_file_becomes_a_folder(bert_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ("batch", rows_file(tmp_path), "--model", bert_folder, "--out", out, "--column", "words", "--key", "id")
    shown = run(*asked, "-m", "grad_sam", "-o", "reduce=key", "--part-rows", 2)
    assert "What matters in this dataset" in shown.stdout and "1 (1 BadInput)" in shown.stdout
    dataset = wf.load(out)
    assert [place["name"] for place, _ in dataset.entries()] == ["a", "c"]
    assert all(e.options["reduce"] == "key" for e in dataset) and (out / "summary.html").is_file()
    refused = run(*asked, "-m", "grad_sam", "--part-rows", 2, code=1)
    assert "was asked for something else: options was" in refused.stderr
    quiet = run(*asked, "-m", "grad_sam", "-o", "reduce=key", "--quiet")
    assert quiet.stdout == quiet.stderr == ""


def test_lines_for_a_log(bert_folder: Path, tmp_path: Path) -> None:
    asked = ("batch", rows_file(tmp_path), "--model", bert_folder, "--out", tmp_path / "out", "-c", "words", "--log")
    shown = run(*asked)
    last = json.loads(shown.stderr.splitlines()[-1])
    assert (last["event"], last["rows"], last["errors"]) == ("done", 3, 1) and shown.stdout == ""


def test_each_row_says_what_is_explained(bert_folder: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "rows.csv", tmp_path / "out"
    path.write_text("words,gold\ngood movie,1\nso boring the film was,0\n", encoding="utf-8")
    run("batch", path, "--model", bert_folder, "--out", out, "-c", "words", "--target-column", "gold", "--quiet")
    assert [e.target.index for e in wf.load(out)] == [1, 0]


def test_what_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    source = rows_file(tmp_path)
    assert "no file at" in run("batch", tmp_path / "none.csv", "--out", tmp_path / "o", code=1).stderr
    assert "choose one" in run("batch", source, "--out", tmp_path / "o", "--quiet", "--log", code=2).stderr
    assert "unknown method" in run("batch", source, "--out", tmp_path / "o", "-m", "gradsam", code=1).stderr
    assert "which column holds the input" in run("batch", source, "--out", tmp_path / "o", code=1).stderr
