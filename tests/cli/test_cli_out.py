"""Files that commands write: every --out is read back by ``wf.load``; reports; folders of explained datasets."""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path

import pytest

import whyformer as wf
from tests.cli.test_cli import run
from whyformer.cli import concept_commands
from whyformer.cli._options import CommandArguments
from whyformer.cli._results import deliver_report
from whyformer.demo import load_sentiment

# The command line without --out, and the kind of result that each file holds.
WRITTEN = [
    ("explain text 'I like it' -m grad_sam", "Explanation"),
    ("explain text 'I like it' 'So boring' -m grad_sam -m random", "Explanation " * 4),
    ("explain text 'what is this' --model t5/", "Explanation " * 32),
    ("explain image cat.png --model detr/ --target 2:1", "Explanation"),
    ("explain table --row 0", "Explanation"),
    ("explain table --overall -m raw_attention", "GlobalExplanation"),
    ("explain pair cat.png 'a cat' 'a dog' --model clip/", "Explanation " * 2),
    ("explain similar 'a cat' 'two birds' --model encoder/", "Explanation"),
    ("explain sound clip.wav --model wav2vec2/", "Explanation"),
    ("explain prompt 'the cat sat' --model LM -m grad_sam -m random", "Explanation " * 2),
    ("explain prompt 'the cat sat' --model LM --generate 2", "Generation"),
    ("ask 'who ran ?' --model LM --answer 'the dog .'", "Generation"),
    ("ask 'who ran ?' --model LM --answer 'the dog .' --docs docs -m grad_sam", "Citations"),
    ("attention 'I like it' 'So boring' --layer 1 --head 2", "AttentionMaps " * 2),
    ("heads", "HeadImportance"),
    ("heads --what roles", "HeadRoles"),
    ("heads --what layers", "LayerProfile"),
    ("heads --what pruning --points 2", "PruningCurve"),
    ("heads --what gates --steps 2", "LearnedGates"),
    ("heads --what induction --model LM", "InductionScores"),
    ("heads --what circuits", "Circuits"),
    ("maximize --steps 2", "Maximized"),
    ("tcav --relative", "TCAVResult"),
    ("compare 'So boring' -m raw_attention --metric aopc", "Comparison"),
    ("recommend 'So boring' --scope instance --attention-only", "Recommendation"),
    ("check 'So boring' -c sinks", "CheckUp"),
]
TABLES = ("heads --what roles", "heads --what layers")  # --json prints their rows


@pytest.mark.parametrize(("command", "kinds"), WRITTEN, ids=lambda words: words.strip()[:60])
def test_every_file_is_read_back_and_is_what_json_prints(
    command: str,
    kinds: str,
    files: Path,
    folder: Path,
    lm_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = partial(concept_commands.shipped_concepts, sets=4, size=5)
    monkeypatch.setattr(concept_commands, "shipped_concepts", few)
    monkeypatch.chdir(folder)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("the dog ran home .", encoding="utf-8")
    (tmp_path / "out").mkdir()
    places = {"LM": lm_folder, "docs": tmp_path / "docs", "photo.jpg": files / "photo.jpg"}
    words = [places.get(word, word) for word in shlex.split(command)]
    printed = json.loads(run(*words, "--json", "--out", tmp_path / "out" / "x.json").stdout)
    paths = sorted((tmp_path / "out").iterdir())
    assert [type(wf.load(path)).__name__ for path in paths] == kinds.split()
    plain = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if command in TABLES:
        assert printed == json.loads(json.dumps(wf.load(paths[0]).rows()))
    elif isinstance(printed, list):
        assert sorted(map(json.dumps, printed)) == sorted(map(json.dumps, plain))
    else:
        assert [printed] == plain


# explain … --report


TEXTS = ("This is so boring", "I like it")


def test_named_methods_are_compared(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = run("explain", "text", *TEXTS, "-m", "grad_sam", "-m", "raw_attention", "-t", "negative", "--report", out)
    assert "grad_sam" in done.stdout and f"wrote {out}" in done.stderr
    report = wf.load(out)
    model, tokenizer = load_sentiment()
    again = wf.compare(
        model, list(TEXTS), processor=tokenizer, methods=["grad_sam", "raw_attention"], target="negative"
    )
    assert repr([row.scores for row in report.comparison.rows]) == repr([row.scores for row in again.rows])
    assert {e.target.label for each in report.explanations for e in each} == {"negative"}
    assert report.checkup is not None and report.checkup.inputs == 2


def test_a_single_method_with_options_stands_among_the_usual_ones(tmp_path: Path) -> None:
    asked = {}

    class Explainer:
        def source(self, raw: list[str]) -> object:
            return type("Source", (), {"modality": type("Text", (), {"kind": "text"})})

        def report(self, raw: list[str], **how: object) -> object:
            asked.update(how)
            return type("Report", (), {"save": lambda self, path: path})()

    how = {"target": None, "scalar": "logit", "batch_size": None, "seed": 3, "memory": "auto", "option": ["steps=4"]}
    how["report"] = tmp_path / "x.html"
    deliver_report(Explainer(), ["a"], CommandArguments(method=["integrated_gradients"], **how))
    assert asked["methods"][0] == {"method": "integrated_gradients", "steps": 4} and asked["seed"] == 3
    assert "integrated_gradients" not in asked["methods"][1:] and len(asked["methods"]) == 5
    deliver_report(Explainer(), ["a"], CommandArguments(method=["integrated_gradients", "grad_sam"], **how))
    assert asked["methods"] == [{"method": "integrated_gradients", "steps": 4}, "grad_sam"]


# batch


def test_a_file_becomes_a_folder(bert_folder: Path, files: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ("batch", files / "table.csv", "--model", bert_folder, "--out", out, "--column", "words", "--key", "id")
    shown = run(*asked, "-m", "grad_sam", "-o", "reduce=key", "--part-rows", 2)
    assert "What matters in this dataset" in shown.stdout and "1 (1 BadInput)" in shown.stdout
    dataset = wf.load(out)
    assert [place["name"] for place, _ in dataset.entries()] == ["a", "c"]
    assert all(e.options["reduce"] == "key" for e in dataset) and (out / "summary.html").is_file()
    refused = run(*asked, "-m", "grad_sam", "--part-rows", 2, code=1)
    assert "was asked for something else: options was" in refused.stderr
    quiet = run(*asked, "-m", "grad_sam", "-o", "reduce=key", "--quiet")
    assert quiet.stdout == quiet.stderr == ""


def test_each_row_says_what_is_explained_and_lines_are_for_a_log(bert_folder: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "rows.csv", tmp_path / "out"
    path.write_text("words,gold\ngood movie,1\nso boring the film was,0\n", encoding="utf-8")
    shown = run("batch", path, "--model", bert_folder, "--out", out, "-c", "words", "--target-column", "gold", "--log")
    assert [e.target.index for e in wf.load(out)] == [1, 0]
    last = json.loads(shown.stderr.splitlines()[-1])
    assert (last["event"], last["rows"], last["errors"]) == ("done", 2, 0) and shown.stdout == ""
