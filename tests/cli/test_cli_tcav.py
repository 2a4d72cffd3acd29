"""whyformer tcav, on folders of images and files of texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.concepts.textures import FOLDER
from whyformer.cli.main import app
from whyformer.concepts.concept_vectors import tcav
from whyformer.demo import load_sentiment, model_folder
from whyformer.demo import pictures as drawn


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for i in range(5):
        for texture in ("striped", "dotted"):
            _put(tmp_path / texture / f"{i}.png", drawn.swatch(texture, i))
        for number in range(3):
            _put(tmp_path / "random" / str(number) / f"{i}.png", drawn.picture("ball", "plain", 100 * number + i))
        _put(tmp_path / "zebras" / f"{i}.png", drawn.picture("horse", "striped", i))
    return tmp_path


def _put(path: Path, pixels: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def _run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["tcav", *map(str, arguments)])
    return result.exit_code, result.output


def test_folders_of_images(folders: Path) -> None:
    code, text = _run(
        "--model", FOLDER, "-c", f"striped={folders / 'striped'}", "-c", f"dotted={folders / 'dotted'}",
        "--random", folders / "random", "--inputs", folders / "zebras", "--target", "zebra-like", "--layer", 2,
        "--out", folders / "bars.png",
    )  # fmt: skip
    assert code == 0, text
    assert "striped" in text and "dotted" in text and "weak test" in text
    assert (folders / "bars.png").stat().st_size > 5000


def test_relative_concepts_need_no_random_sets(folders: Path) -> None:
    how = (
        "--model", FOLDER, "-c", f"striped={folders / 'striped'}", "-c", f"dotted={folders / 'dotted'}",
        "--inputs", folders / "zebras", "--target", "zebra-like", "--layer", 2,
    )  # fmt: skip
    code, text = _run(*how, "--relative", "--json")
    assert code == 0, text
    rows = json.loads(text[text.index("{") :])["rows"]
    assert [(row["concept"], row["versus"]) for row in rows] == [("striped", "dotted"), ("dotted", "striped")]
    code, text = _run(*how)
    assert code == 2 and "--relative" in text


def test_files_of_texts(tmp_path: Path) -> None:
    for name, line in (("good", "great film {}"), ("inputs", "I liked film {}"), ("random/a", "film {}"),
                       ("random/b", "{} people"), ("random/c", "at {} on monday")):  # fmt: skip
        path = tmp_path / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(line.format(i) for i in range(5)), encoding="utf-8")
    code, text = _run(
        "--model", model_folder("sentiment"), "-c", f"good={tmp_path / 'good.txt'}", "--random", tmp_path / "random",
        "--inputs", tmp_path / "inputs.txt", "--target", "positive", "--layer", 1, "--json",
    )  # fmt: skip
    assert code == 0, text
    found = json.loads(text[text.index("{") :])
    assert found["rows"][0]["concept"] == "good" and len(found["rows"][0]["scores"]) == 3
    model, tokenizer = load_sentiment()
    texts = {p.stem: p.read_text(encoding="utf-8").splitlines() for p in tmp_path.rglob("*.txt")}
    sets = [texts[name] for name in "abc"]
    same = tcav(
        model, layer=1, concepts={"good": texts["good"]}, random_sets=sets, class_inputs=texts["inputs"],
        target="positive", processor=tokenizer,
    )  # fmt: skip
    assert found["rows"][0]["magnitude"] == pytest.approx(same.rows[0].magnitude, rel=1e-4)  # one default for both


def test_wrong_usage_is_named(tmp_path: Path) -> None:
    assert _run("--model", FOLDER)[0] == 2
    assert _run("--out", tmp_path / "x.gif")[0] == 2
    code, text = _run("--model", FOLDER, "-c", f"a={tmp_path}", "-r", tmp_path, "-i", tmp_path, "-t", 0, "-l", 0)
    assert code == 1 and "no images" in text
