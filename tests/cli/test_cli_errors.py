"""What goes wrong: one line on stderr, nothing on stdout, 1 for whyformer's errors and 2 for wrong usage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_cli import run

WRONG_USAGE = [
    (("explain", "text"), "give a text"),
    (("explain", "text", "a", "--out", "x.gif"), ".html, .png"),
    (("explain", "text", "a", "--out", "no/such/folder/x.html"), "there is no folder"),
    (("explain", "text", "a", "--option", "heads"), "KEY=VALUE"),
    (("explain", "text", "a", "--by", "letter"), "neither token nor word"),
    (("explain", "text", "a", "--batch-size", "0"), "batch-size"),
    (("explain", "text", "--file", "nowhere.txt"), "does not exist"),
    (("explain", "image", "--model", "./nowhere/"), "give image files"),
    (("explain", "text", "a", "--report", "x.gif"), "--report"),
    (("explain", "table", "--overall", "--report", "x.html"), "leave out --overall"),
    (("demo", "--out", "x.png"), "something.html"),
    (("frobnicate",), "No such command"),
]
ERRORS = [
    (("explain", "text", " "), "empty"),
    (("explain", "text", "a", "-m", "grad_sm"), "Did you mean 'grad_sam'"),
    (("explain", "text", "a", "-t", "posi"), "Did you mean 'positive'"),
    (("explain", "text", "a", "-t", "7"), "unknown target"),
    (("explain", "text", "a", "-t", "²"), "unknown target '²'"),
    (("explain", "text", "a", "--target=--5"), "unknown target '--5'"),
    (("explain", "text", "a", "-t", "9" * 5000), "unknown target"),
    (("explain", "text", "a \ud83d b"), "half a character"),
    (("explain", "text", "a", "-o", "haeds=max", "-m", "raw_attention"), "Did you mean 'heads'"),
    (("explain", "text", "a", "--scalar", "loss"), "scalar='loss' of Explainer.explain is not allowed: give"),
    (("explain", "text", "a", "--model", "./nowhere/"), "there is no folder"),
    (("explain", "image", "nowhere.png", "--model", "./nowhere/"), "does not exist"),
    (("explain", "image", "nowhere.png"), "does not exist"),
    (("methods", "grad_sm"), "Did you mean 'grad_sam'"),
    (("capture", "--model", "./nowhere/"), "there is no folder"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_USAGE)
def test_wrong_usage_is_2(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments, code=2)
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(("arguments", "message"), ERRORS)
def test_errors_are_1_and_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments, code=1)
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_no_words_in_stdin() -> None:
    assert "no line with a word" in run("explain", "text", "-", stdin=" \n\n", code=1).stderr


def test_folders_that_hold_no_model_or_another_kind(
    tmp_path: Path, vit_folder: Path, bert_folder: Path, photo: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no model could be loaded" in run("explain", "text", "a", "--model", f"{empty}/", code=1).stderr
    assert "explain image" in run("explain", "text", "a", "--model", vit_folder, code=1).stderr
    assert "explain text" in run("explain", "image", photo, "--model", bert_folder, code=1).stderr


def test_a_model_without_a_head_predicts_nothing(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    small = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 20,
    }
    BertModel(BertConfig(**small)).save_pretrained(tmp_path)
    assert "has no head" in run("explain", "text", "a", "--model", tmp_path, code=1).stderr


def test_a_folder_without_its_tokenizer_or_weights(tmp_path: Path, vit_folder: Path, photo: Path) -> None:
    from tests.support import folders

    folders.vit().save_pretrained(tmp_path)
    assert "image processor" in run("explain", "image", photo, "--model", tmp_path, code=1).stderr
    (tmp_path / "model.safetensors").unlink()
    assert "weights" in run("explain", "image", photo, "--model", tmp_path, code=1).stderr


def test_files_that_are_no_text_or_no_image(tmp_path: Path, vit_folder: Path) -> None:
    binary = tmp_path / "x.bin"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    assert "no UTF-8 text" in run("explain", "text", "--file", binary, code=1).stderr
    assert "cannot be read as an image" in run("explain", "image", binary, "--model", vit_folder, code=1).stderr
