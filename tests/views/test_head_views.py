"""Pictures and terminal tables of heads, and the command that prints them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import whyformer as wf
from tests.methods.properties import model_of
from tests.models import CASES
from tests.support import folders
from tests.views.results import head_roles
from whyformer.cli.main import app
from whyformer.heads import circuits, direct_logit, head_importance, induction, layer_profile, pruning_curve, roles
from whyformer.views.head_views import head_map, head_scale


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
        "roles": roles(bert, inputs),
        "induction": induction(gpt2, length=6, sequences=2),
        "circuits": circuits(gpt2),
        "direct": direct_logit(gpt2, tokens),
    }
    for name, result in results.items():
        assert result.plot().axes
        assert wf.load(result.save(tmp_path / f"{name}.npz")).to_html() == result.to_html()
    (mark,) = curve.view(beside=[chance]).panels[0].marks
    assert [line.name for line in mark.lines] == [curve.name, chance.name]
    np.testing.assert_array_equal(mark.lines[1].values, chance.values)
    np.testing.assert_allclose(mark.lines[0].x, 100 * curve.kept / curve.heads)


def test_heat_maps_say_what_they_hold() -> None:
    scores = np.array([[0.5, -0.25], [1.0, np.nan]])
    scale = head_scale([scores], signed=True)
    mark = head_map(scores, scale)
    assert (scale.low, scale.high, scale.signed) == (-1.0, 1.0, True)  # white is zero
    assert mark.row_labels == ("1", "0")  # the last layer is on top
    np.testing.assert_array_equal(mark.values, scores[::-1])
    assert (mark.row_axis, mark.column_axis, mark.numbers) == ("layer", "head", True)
    assert not head_map(np.zeros((12, 13)), scale).numbers
    nothing = head_scale([np.zeros((2, 2))])
    assert (nothing.low, nothing.high) == (0.0, 1.0)


def test_roles_are_points_by_kind() -> None:
    found = head_roles()
    scatter, table = (panel.marks[0] for panel in found.view().panels)
    rows = found.rows()
    assert sum(len(group.x) for group in scatter.groups) == len(rows)
    positional = next(group for group in scatter.groups if group.name == "positional")
    mine = [row for row in rows if row["role"].startswith("positional")]
    np.testing.assert_allclose(positional.x, [row["positional"] for row in mine])
    np.testing.assert_allclose(positional.y, [row["separator"] + row["first"] for row in mine])
    assert positional.labels[0] == "layer 0, head 0: positional -1"
    assert scatter.groups[0].name == "no role" and scatter.groups[0].quiet
    assert len(table.rows) == len(rows)


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
    for out in (tmp_path / "roles.html", tmp_path / "roles.npz", tmp_path / "roles.json"):
        run("--file", lines, "--model", bert_folder, "--what", "roles", "--out", out)
    assert "positional" in (tmp_path / "roles.html").read_text(encoding="utf-8")
    assert wf.load(tmp_path / "roles.npz").inputs == 2
    assert wf.load(tmp_path / "roles.json").inputs == 2
    assert "entropy" in run(*texts, "--model", bert_folder, "--what", "layers").stdout
    assert "copying" in run("--model", bert_folder, "--what", "circuits").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--what", "colours"), 1, "--what='colours' is not allowed: give"),
        (("--kind", "gradeint"), 1, "Did you mean 'gradient'"),
        (("--out", "heads.xls"), 2, "use .html, .png"),
        (("--out", "nowhere/heads.png"), 2, "no folder"),
        (("--what", "induction"), 1, "looks ahead"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], code: int, says: str) -> None:
    assert says in run(*arguments, code=code).stderr
