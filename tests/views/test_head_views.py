"""Pictures and terminal tables of heads, and the command that prints them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import whyformer as wf
from tests.methods.properties import model_of
from tests.models import CASES
from tests.support import folders
from whyformer.cli.main import app
from whyformer.heads import circuits, direct_logit, head_importance, induction, layer_profile, pruning_curve, roles
from whyformer.views.heads import grid, show_curve, show_grid, show_rows


def drawn(figure: Any, path: Path) -> Path:
    assert path.stat().st_size > 5_000
    assert figure.axes
    return path


def test_every_result_can_be_drawn(tmp_path: Path) -> None:
    bert, inputs = model_of("bert"), CASES["bert"].inputs()
    gpt2, tokens = model_of("gpt2"), CASES["gpt2"].inputs()
    importance = head_importance(bert, inputs)
    curve = pruning_curve(bert, inputs, [0, 1], order=importance, metric="loss")
    chance = pruning_curve(bert, inputs, [0, 1], metric="loss")
    results = {
        "importance": importance,
        "ablation": head_importance(bert, inputs, kind="ablation"),
        "curve": curve,
        "profile": layer_profile(bert, inputs),
        "induction": induction(gpt2, length=6, sequences=2),
        "circuits": circuits(gpt2),
        "direct": direct_logit(gpt2, tokens),
    }
    for name, result in results.items():
        drawn(result.plot(path=tmp_path / f"{name}.png"), tmp_path / f"{name}.png")
    both = curve.plot(tmp_path / "both.png", beside=[chance])
    assert len(both.axes[0].get_lines()) == 2
    assert [t.get_text() for t in both.axes[0].get_legend().get_texts()] == [curve.name, chance.name]
    assert importance.save(tmp_path / "heads.svg").read_text().startswith("<?xml")


def test_heat_maps_say_what_they_hold() -> None:
    scores = np.array([[0.5, -0.25], [1.0, np.nan]])
    figure = grid(scores, "title", signed=True)
    axes = figure.axes[0]
    assert {t.get_text() for t in axes.texts} == {"0.50", "-0.25", "1.00"}
    image = axes.get_images()[0]
    assert image.get_clim() == (-1.0, 1.0)  # white is zero
    assert image.get_array().mask.tolist() == [[False, False], [False, True]]
    assert axes.get_ylabel() == "layer"
    assert grid(np.zeros((2, 2)), "nothing").axes[0].get_images()[0].get_clim() == (0.0, 1.0)


def test_terminal_tables(capsys: pytest.CaptureFixture[str]) -> None:
    show_grid(np.array([[0.5, -0.25], [1.0, np.nan]]), "a title", signed=True, notes=["mind the gap"])
    shown = capsys.readouterr().out
    assert "a title" in shown
    assert shown.index("1.00") < shown.index("0.50")  # the last layer is on top
    assert "mind the gap" in shown
    show_curve(np.array([4, 0]), 4, np.array([1.0, 0.5]), np.array([1.0, 0.4]), np.array([1.0, 0.6]), "accuracy", "t")
    assert "4 of 4" in capsys.readouterr().out
    show_rows([], "empty")
    roles(model_of("bert"), CASES["bert"].inputs()).show()
    assert "positional" in capsys.readouterr().out


# whyformer heads


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["heads", *(str(a) for a in arguments)], env={"COLUMNS": "80"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    folders.bert().save_pretrained(folder)
    folders.tokenizer(folder).save_pretrained(folder)
    return folder


def test_help_has_examples() -> None:
    shown = run("--help").stdout
    assert "whyformer heads --what layers" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_by_default_the_shipped_model_and_its_sentences() -> None:
    shown = json.loads(run("--json").stdout)
    assert np.array(shown["scores"]).shape == (4, 4)
    assert shown["inputs"] == 5
    assert "head importance" in run().stdout


def test_texts_kinds_and_files(bert_folder: Path, tmp_path: Path) -> None:
    texts = ("the movie was so bad", "i like it")
    out = tmp_path / "heads.png"
    run(*texts, "--model", bert_folder, "--kind", "ablation", "--target", "negative", "--out", out)
    assert out.stat().st_size > 5_000
    run(*texts, "--model", bert_folder, "--out", tmp_path / "heads.json")
    saved = wf.heads.HeadImportance.load(tmp_path / "heads.json")
    assert saved.samples.shape == (2, 2, 4)
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(texts), encoding="utf-8")
    assert json.loads(run("--file", lines, "--model", bert_folder, "--what", "roles", "--json").stdout)[0]["layer"] == 0
    layers = json.loads(run("--file", lines, "--model", bert_folder, "--what", "layers", "--json").stdout)
    assert [row["layer"] for row in layers] == [0, 1]
    assert "entropy" in run(*texts, "--model", bert_folder, "--what", "layers").stdout
    assert "copying" in run("--model", bert_folder, "--what", "circuits").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--what", "colours"), 1, "unknown value of --what"),
        (("--kind", "gradeint"), 1, "Did you mean 'gradient'"),
        (("--out", "heads.xls"), 2, "use .png"),
        (("--what", "roles", "--out", "roles.png"), 2, "use .json"),
        (("--out", "nowhere/heads.png"), 2, "no folder"),
        (("--what", "induction"), 1, "looks ahead"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], code: int, says: str) -> None:
    assert says in run(*arguments, code=code).stderr
