"""Image with text, two texts, sound, detection and translation from the command line, on models saved to folders."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers as hf

import whyformer as wf
from tests.cli.test_cli import SNAPSHOTS, run
from tests.models import CASES, UNUSUAL
from tests.support import processors
from tests.support.snapshots import compare

FOLDERS: dict[str, tuple[Any, ...]] = {
    "clip": (processors.clip,),
    "blip_vqa": (processors.blip,),
    "llava": (processors.llava,),
    "lxmert": (processors.tokenizer,),
    "detr": (processors.detr,),
    "t5": (processors.tokenizer,),
    "wav2vec2": (processors.wav2vec2,),
    "whisper": (lambda: processors.whisper().feature_extractor, processors.tokenizer),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder per model, with a picture and a clip beside them."""
    root = tmp_path_factory.mktemp("streams")
    for name, makers in FOLDERS.items():
        case = (CASES | UNUSUAL)[name]
        case.build(case.implementations[0]).save_pretrained(root / name)
        for make in makers:
            make().save_pretrained(root / name)
    CASES["bert"].build("sdpa").bert.save_pretrained(root / "encoder")
    processors.tokenizer().save_pretrained(root / "encoder")
    processors.picture().save(root / "cat.png")
    with wave.open(str(root / "clip.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes((np.random.default_rng(0).normal(size=1600) * 3000).astype(np.int16).tobytes())
    return root


@pytest.mark.parametrize("command", ["pair", "similar", "sound"])
def test_help_as_stored(command: str) -> None:
    shown = run("explain", command, "--help").stdout
    compare(shown, SNAPSHOTS / f"help-explain-{command}.txt")
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert f"whyformer explain {command}" in shown.split("Examples:")[1]


def test_a_caption(folder: Path, tmp_path: Path) -> None:
    shown = run(
        "explain", "pair", folder / "cat.png", "a cat", "a dog", "--model", folder / "clip", "--scalar", "cosine",
        "--out", tmp_path / "why.html",
    )  # fmt: skip
    assert "cosine of 'similarity'" in shown.stdout and "cat.png: a dog" in shown.stdout
    assert (tmp_path / "why.html").read_text(encoding="utf-8").count('<section class="wf-view">') == 2


def test_attention_of_what_is_read_and_written(folder: Path) -> None:
    shown = run("attention", "what is this", "--model", folder / "t5", "--what", "streams", "--head", 0).stdout
    for kind in ("source self-attention", "target self-attention", "target looks at source"):
        assert kind in shown
    assert "rows: target; columns: source" in shown and "site -1 of each kind, head 0" in shown


def test_a_question_and_its_answer(folder: Path) -> None:
    found = json.loads(
        run(
            "explain", "pair", folder / "cat.png", "what is this", "--answer", "a cat", "--model", folder / "blip_vqa",
            "--json",
        ).stdout
    )  # fmt: skip
    assert [e["target"]["label"] for e in found] == ["a", "cat", "[EOS]"]
    (one,) = json.loads(
        run("explain", "pair", folder / "cat.png", "what is this", "--model", folder / "llava", "--json").stdout
    )
    assert set(one["units"]["stream"]) == {"image", "text"}


def test_a_classifier_does_not_compare_texts(folder: Path, tmp_path: Path) -> None:
    """It would explain a class of the pair; what the error says to save is compared."""
    from transformers import AutoModel

    CASES["bert"].build("sdpa").save_pretrained(tmp_path / "classifier")
    processors.tokenizer().save_pretrained(tmp_path / "classifier")
    refused = run("explain", "similar", "a cat", "two birds", "--model", tmp_path / "classifier", code=1)
    assert "BertForSequenceClassification" in refused.stderr and "AutoModel" in refused.stderr
    AutoModel.from_pretrained(tmp_path / "classifier").save_pretrained(tmp_path / "saved")
    processors.tokenizer().save_pretrained(tmp_path / "saved")
    shown = run("explain", "similar", "a cat", "two birds", "--model", tmp_path / "saved").stdout
    assert "cosine of 'similarity'" in shown


def test_two_texts(folder: Path, tmp_path: Path) -> None:
    shown = run(
        "explain", "similar", "a cat on the mat", "two birds", "--model", folder / "encoder", "--out",
        tmp_path / "similar.png",
    ).stdout  # fmt: skip
    assert "pairs of tokens" in shown and "cosine of 'similarity'" in shown
    assert (tmp_path / "similar.png").is_file()


def test_a_classifier_does_not_say_how_alike_texts_are(tmp_path: Path) -> None:
    """It would be asked about both texts together, and a class of the pair explained."""
    CASES["bert"].build("sdpa").save_pretrained(tmp_path)
    processors.tokenizer().save_pretrained(tmp_path)
    told = run("explain", "similar", "a cat", "two birds", "--model", tmp_path, code=1).stderr
    assert "it has a head" in told and "AutoModel.from_pretrained" in told
    hf.AutoModel.from_pretrained(tmp_path).save_pretrained(tmp_path)  # as it advises
    assert "cosine of 'similarity'" in run("explain", "similar", "a cat", "two birds", "--model", tmp_path).stdout


def test_translation_and_sound_show_what_was_read_for_each_token(folder: Path) -> None:
    assert "written token" in run("explain", "text", "what is this", "--model", folder / "t5").stdout
    heard = run("explain", "sound", folder / "clip.wav", "--model", folder / "whisper").stdout
    assert "written token" in heard
    assert "0.00s" in run("explain", "sound", folder / "clip.wav", "--model", folder / "wav2vec2").stdout


def test_detections(folder: Path, tmp_path: Path) -> None:
    result = run("explain", "image", folder / "cat.png", "--model", folder / "detr", "--out", tmp_path / "x.png")
    assert "cat.png: " in result.stdout and ", query " in result.stdout
    assert (tmp_path / "x.png").is_file()


def test_one_object_of_a_detector(folder: Path) -> None:
    asked = ("explain", "image", folder / "cat.png", "--model", folder / "detr")
    (one,) = json.loads(run(*asked, "--target", "2:1", "--json").stdout)
    assert one["target"]["position"] == 2 and one["target"]["index"] == 1
    model = CASES["detr"].build(None)
    for probability in (0.5, 0.4):
        objects = wf.explain(model, processors.picture(), processor=processors.detr(), target=probability)
        shown = json.loads(run(*asked, "--target", str(probability), "--json").stdout)
        assert [o["target"]["position"] for o in shown] == [o.target.position for o in objects]
    assert "QUERY:CLASS" in run(*asked, "--target", "cat", code=2).stderr


def test_the_wrong_kind_of_model_is_refused(folder: Path) -> None:
    assert (
        "which a detector makes"
        in run("explain", "pair", folder / "cat.png", "a", "--model", folder / "lxmert", code=1).stderr
    )
    assert (
        "no model of images with texts"
        in run("explain", "pair", folder / "cat.png", "a", "--model", folder / "t5", code=1).stderr
    )
    assert "no model of sound" in run("explain", "sound", folder / "clip.wav", "--model", folder / "t5", code=1).stderr


STREAMS = {
    "clip": ["image ← image", "text ← text"],
    "blip_vqa": ["text ← image", "target ← text"],
    "llava": ["image ← image", "text ← text", "become no token"],
    "lxmert": ["text ← image", "image ← text"],
    "detr": ["queries ← image"],
    "t5": ["target ← source"],
    "whisper": ["target ← source"],
}


@pytest.mark.parametrize("name", STREAMS)
def test_capture_shows_streams_and_directions(folder: Path, name: str) -> None:
    shown = run("capture", "--model", folder / name, "--text", "what is this").stdout
    for direction in STREAMS[name]:
        assert direction in shown
    assert "by attention alone" in " ".join(shown.split()) and "Attention methods can be used." in shown
