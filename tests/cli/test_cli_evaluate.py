"""whyformer compare, recommend, check and metrics, end to end."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.test_cli import run, told
from tests.models import CASES
from tests.support import processors


def test_compare(tmp_path: Path) -> None:
    out = tmp_path / "c.html"
    common = ("-m", "raw_attention", "-m", "attn_lrp", "--metric", "aopc")
    shown = run("compare", "I like the movie", "So boring", *common, "--replace", "unk", "--out", out).stdout
    for words in ("raw_attention", "attn_lrp", "random (floor)", "greedy (ceiling)", "absent parts  unk"):
        assert words in shown
    assert "attn_lrp" in out.read_text(encoding="utf-8")
    cache = tmp_path / "cache"
    first, second = (told("compare", "So boring", *common, "--cache", cache) for _ in range(2))
    assert first["variants"] > 0 and second["variants"] == 0
    assert first["values"] == second["values"]


def test_hold() -> None:
    """By its text or its number, for judge and method alike."""
    common = ("-m", "two_ended", "--metric", "aopc", "--json")
    texts = ("I like the movie", "She hates the movie")
    text, number = (
        json.loads(run("compare", *texts, *common, *hold).stdout)
        for hold in (("--hold", "the movie"), ("--hold", "-2", "--hold", "-3"))
    )
    assert text["held"] == number["held"] == ["'the movie'"] * 2 and text["values"] == number["values"]
    assert text["rows"][0]["options"]["hold"] == ["the movie"] and number["rows"][0]["options"]["hold"] == [-2, -3]
    chosen = told("recommend", *texts * 2, *common[:2], "--hold", "the movie")
    assert chosen["held"] == ["'the movie'"] * 4
    first = run("compare", "I like it . She hates it .", *common, "--units", "sentence", "--hold", "1").stdout
    assert json.loads(first)["held"] == ["'I like it .'"]


def test_recommend(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("I like the movie\nSo boring\nA dull book\nWhat a lovely day\n", encoding="utf-8")
    shown = run("recommend", "--file", texts, "--attention-only").stdout
    assert "any cost" in shown and "last-layer attention" in shown and "candidates    252" in shown
    assert told("recommend", "So boring", "--scope", "instance", "-m", "alti")["candidates"] == 253
    few = run("recommend", "--file", texts, "-m", "attn_lrp", "-m", "two_ended", "--budget", "3").stdout
    assert "Within 3 forwards" in few and "Over the budget" in few and "two_ended" in few


def test_compare_of_detections(tmp_path: Path, photo: Path) -> None:
    folder = tmp_path / "detr"
    CASES["detr"].build(None).save_pretrained(folder)
    processors.detr(16).save_pretrained(folder)
    common = ("--model", folder, "-m", "generic_attention", "-m", "occlusion", "--metric", "aopc")
    shown = run("compare", photo, *common, "--target", "LABEL_1").stdout
    assert "generic_attention" in shown and "greedy (ceiling)" in shown
    assert told("compare", photo, *common)["inputs"] >= 1


def test_check_on_the_shipped_model(tmp_path: Path) -> None:
    asked = ("check", "I like the movie", "-c", "sinks", "-c", "class_dependence", "-m", "grad_sam")
    shown = run(*asked, "--out", tmp_path / "check.html").stdout
    assert "Check-up of grad_sam on BertForSequenceClassification, 1 input" in " ".join(shown.split())
    assert "Sink tokens" in (tmp_path / "check.html").read_text()
    kept = tmp_path / "kept"
    both = [told("check", "So boring", "-c", "stability", "--cache", kept) for _ in range(2)]
    assert both[0]["findings"] == both[1]["findings"]
    assert len(list(kept.glob("*.check.json"))) == 1 + 1 + 5  # explanations, the check, its five draws


def test_check_on_an_image(vit_folder: Path, photo: Path, tmp_path: Path) -> None:
    out = tmp_path / "check.png"
    run("check", photo, "--model", vit_folder, "-c", "jain_wallace", "-c", "invariance", "--out", out)
    assert out.stat().st_size > 20_000
