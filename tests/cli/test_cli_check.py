"""whyformer check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.support import folders
from tests.support.snapshots import compare
from whyformer.cli.main import app


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["check", *(str(a) for a in arguments)], env={"COLUMNS": "80"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def test_command_help() -> None:
    shown = run("--help").stdout
    compare(shown, Path(__file__).parent / "snapshots" / "help-check.txt")
    assert 'whyformer check "I like the movie"' in shown.split("Examples:")[1]
    assert max(map(len, shown.splitlines())) <= 80


def test_command_on_the_shipped_model(tmp_path: Path) -> None:
    shown = run("I like the movie", "-c", "sinks", "-c", "class_dependence", "--out", tmp_path / "check.html")
    assert "Check-up of generic_attention on BertForSequenceClassification, 1 input" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "Sink tokens" in (tmp_path / "check.html").read_text()
    plain = json.loads(run("I like the movie", "-c", "sinks", "-m", "grad_sam", "--json").stdout)
    assert plain["method"] == "grad_sam"
    kept = tmp_path / "kept"
    both = [json.loads(run("So boring", "-c", "stability", "--cache", kept, "--json").stdout) for _ in range(2)]
    assert both[0]["findings"] == both[1]["findings"]
    assert len(list(kept.glob("*.check.json"))) == 1 + 1 + 5  # explanations, the check, its five draws


def test_command_on_an_image(tmp_path: Path) -> None:
    import numpy as np
    from PIL import Image

    folders.vit().save_pretrained(tmp_path / "vit")
    folders.image_processor().save_pretrained(tmp_path / "vit")
    ys, xs = np.mgrid[:40, :60]
    Image.fromarray(np.stack([ys * 6, xs * 4, ys + xs], -1).astype(np.uint8)).save(tmp_path / "cat.png")
    out = tmp_path / "check.png"
    run(tmp_path / "cat.png", "--model", tmp_path / "vit", "-c", "jain_wallace", "-c", "invariance", "--out", out)
    assert out.stat().st_size > 20_000


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("text", "-c", "sink"), 1, "Did you mean 'sinks'"),
        (("text", "--out", "check.xls"), 2, "use .html"),
        (("text", "--out", "nowhere/check.html"), 2, "no folder"),
        ((), 2, "give a text"),
    ],
)
def test_command_wrong_use(arguments: tuple[str, ...], code: int, says: str) -> None:
    assert says in run(*arguments, code=code).stderr
