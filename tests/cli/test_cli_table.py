"""whyformer explain table, the shipped model, and long files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.cli.test_cli import run, told
from tests.tables.models import LAYOUTS, NUMBERS, RTDL, rows, table
from whyformer import demo
from whyformer.demo.census import adult_rows
from whyformer.errors import BadInput
from whyformer.tables import CsvRows, GlobalExplanation, load_model, save_model

MINE = """
from tests.tables.models import LAYOUTS, table

def load():
    return LAYOUTS["cls_last"].build(), table()

def learns_in_context():
    import whyformer as wf
    from bench.in_context_model import InContext
    from tests.models.case import seeded

    model = seeded(lambda: InContext(width=8, layers=1, heads=2)).eval()
    return model, wf.Table(numerical=["age", "dose"], classes=["ill", "well"], target="state")

def wrong():
    return 3
"""


def written(path: Path, some: list[dict[str, object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(some[0]))
        writer.writeheader()
        writer.writerows(some)
    return path


def test_the_shipped_model_explains_its_rows(tmp_path: Path) -> None:
    shown = run("explain", "table", "--row", 1, "--row", 3, "--out", tmp_path / "x.html").stdout
    assert "row 1" in shown and "row 3" in shown and "age = " in shown and "integrated_gradients" in shown
    assert "marital-status" in (tmp_path / "x.html").read_text()
    data = told("explain", "table", "-r", 0, "-m", "occlusion", "-t", ">50K")
    model, described = demo.load_adult()
    found = wf.explain(model, adult_rows()[0], processor=described, method="occlusion", target=">50K")
    np.testing.assert_allclose(data[0]["scores"], found.scores, atol=1e-5)


def test_a_model_that_learns_in_context(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    known = [{"age": i * 0.3, "dose": (i * 7) % 5 - 2.0, "state": ["ill", "well"][i % 2]} for i in range(6)]
    training = written(tmp_path / "training.csv", known)
    asked = written(tmp_path / "asked.csv", [{"age": 0.5, "dose": 1.0}, {"age": 0.1, "dose": -1.0}])
    name = f"{tmp_path / 'mine.py'}:learns_in_context"
    command = ("explain", "table", asked, "--model", name, "--context", training)
    shown = run(*command, "-t", "well", "-r", 1, "--out", tmp_path / "why.json").stdout
    assert "training rows and their answers" in shown and "row 3 = well" in shown and "dose = -1" in shown
    saved = wf.load(tmp_path / "why.json")
    data = json.loads(run(*command, "-t", "well", "--json", "-o", "rows=cells").stdout)
    assert [len(d["row_scores"]) for d in data] == [6, 6] and data[1]["options"]["rows"] == "cells"
    np.testing.assert_allclose(data[1]["scores"], saved.scores, atol=1e-6)
    for row in known:
        row["state"] = "dead"
    for file, words in ((written(tmp_path / "t.csv", known), "'dead', which is no"), (asked, "no column 'state'")):
        assert words in " ".join(run(*command[:-1], file, code=1).output.split())
    for wrong, words in (
        (("--overall",), "leave out --overall"),
        (("--out", tmp_path / "why.html"), "--row N"),
        (("-m", "generic_attention", "-m", "input_x_gradient"), "one method at a time"),
    ):
        assert words in " ".join(run(*command, *wrong, code=2).output.split())


def test_all_rows_on_average(tmp_path: Path) -> None:
    arguments = ("explain", "table", "--overall", "-m", "raw_attention", "--batch-size", 7)
    shown = run(*arguments, "--out", tmp_path / "x.json").stdout
    assert "Columns over many rows" in shown and "capital-gain" in shown
    model, described = demo.load_adult()
    expected = wf.explain_global(model, adult_rows(), processor=described, method="raw_attention")
    np.testing.assert_allclose(GlobalExplanation.load(tmp_path / "x.json").mean, expected.mean, atol=1e-6)


def test_models_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "rows.csv", rows(3))
    (tmp_path / "mine.py").write_text(MINE)
    assert "age = " in run("explain", "table", file, "--model", f"{tmp_path / 'mine.py'}:load").stdout
    made = run("explain", "table", file, "--model", f"{tmp_path / 'mine.py'}:wrong", code=1)
    assert "has to return (model, whyformer.Table)" in made.output
    assert "no 'absent'" in run("explain", "table", file, "--model", f"{tmp_path / 'mine.py'}:absent", code=1).output


def test_a_saved_model_is_the_same_model(tmp_path: Path) -> None:
    model = LAYOUTS["rtdl"].build()
    described = table(preprocess=wf.Standardize((0.0,) * 3, (1.0,) * 3))
    again, read = load_model(save_model(model, RTDL, described, tmp_path / "model"))
    assert read.to_dict() == described.to_dict()
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in again.state_dict().items())
    file = written(tmp_path / "rows.csv", rows(2))
    assert "row 1" in run("explain", "table", file, "--model", tmp_path / "model").stdout
    with pytest.raises(BadInput, match="kind of saved model"):
        save_model(torch.nn.Linear(1, 1), {}, described, tmp_path / "other")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"library": "os", "class": "system"}))
    with pytest.raises(BadInput, match="kind of saved model"):
        load_model(tmp_path / "model")


def test_usage_errors(tmp_path: Path) -> None:
    few = run("explain", "table")
    assert "The first 3 of 40 rows: choose others with --row N" in few.stderr and few.stdout.count("──\n") == 3
    bad = adult_rows()
    bad[30]["workclass"] = "Spy"
    file = written(tmp_path / "bad.csv", bad)
    said = run("explain", "table", file, "--overall", "--batch-size", 8, code=1).output
    assert "row 6 of column 'workclass'" in said and "from row 24 of the file" in said
    short = written(tmp_path / "short.csv", [{k: v for k, v in row.items() if k != "age"} for row in bad])
    assert "'age' is missing" in run("explain", "table", short, "--row", 0, code=1).output


def test_a_long_file_is_read_in_pieces(tmp_path: Path) -> None:
    described = table()
    some = rows(60)
    pieces = CsvRows(written(tmp_path / "rows.csv", some), described, size=13)
    assert pieces.rows == 60 and [len(p["age"]) for p in pieces] == [13, 13, 13, 13, 8]
    model = LAYOUTS["rtdl"].build()
    streamed = wf.explain_global(model, pieces, processor=described, batch_size=13, samples=20)
    whole = wf.explain_global(model, some, processor=described, samples=20)
    np.testing.assert_allclose(streamed.mean, whole.mean, atol=1e-5)
    np.testing.assert_allclose(streamed.samples, whole.samples, atol=1e-5)
    assert len(streamed.samples) == 20 and set(streamed.labels) == {"[CLS]", *NUMBERS, "work", "sex"}


def test_the_shipped_model_is_small_and_as_good_as_its_card_says() -> None:
    folder = demo.model_folder("adult")
    assert sum(p.stat().st_size for p in folder.iterdir()) < 1_000_000
    model, described = demo.load_adult()
    some = adult_rows()
    assert len(some) == 40 and all(row["income"] in described.classes for row in some)
    numbers, codes = described.encode(described.read(some)[0])
    logits = model(torch.tensor(numbers).float(), torch.tensor(codes))
    right = [described.classes[i] == row["income"] for i, row in zip(logits.argmax(1).tolist(), some, strict=True)]
    assert np.mean(right) > 0.8
    assert "0.8567" in (folder / "MODEL_CARD.md").read_text()
