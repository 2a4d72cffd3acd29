"""whyformer compare, recommend and metrics, end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import whyformer as wf
from tests.cli.test_cli import SNAPSHOTS, run
from tests.models import CASES
from tests.support import processors
from tests.support.snapshots import compare


@pytest.mark.parametrize("command", ["compare", "metrics", "recommend"])
def test_help_as_stored(command: str) -> None:
    shown = run(command, "--help").stdout
    compare(shown, SNAPSHOTS / f"help-{command}.txt")
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert f"whyformer {command}" in shown.split("Examples:")[1]


def test_metrics_are_listed() -> None:
    shown = run("metrics").stdout
    assert all(name in shown for name in wf.list_metrics())
    one = run("metrics", "sufficiency").stdout
    assert "low is good" in one and "DeYoung" in one and "bins=" in one
    plain = json.loads(run("metrics", "--json").stdout)
    assert {m["name"] for m in plain} == set(wf.list_metrics())
    assert "sufficiency" in run("metrics", "suficiency", code=1).stderr


def test_compare(tmp_path: Path) -> None:
    out = tmp_path / "c.html"
    common = ("-m", "raw_attention", "-m", "attn_lrp", "--metric", "aopc")
    shown = run("compare", "I like the movie", "So boring", *common, "--replace", "unk", "--out", out).stdout
    for words in ("raw_attention", "attn_lrp", "random (floor)", "greedy (ceiling)", "absent parts  unk"):
        assert words in shown
    assert "attn_lrp" in out.read_text(encoding="utf-8")
    cache = tmp_path / "cache"
    first, second = (
        json.loads(run("compare", "So boring", *common, "--cache", cache, "--json").stdout) for _ in range(2)
    )
    assert first["variants"] > 0 and second["variants"] == 0
    assert first["values"] == second["values"]


def test_hold() -> None:
    """By its text or its number, for judge and method alike; what is not there is refused."""
    common = ("-m", "two_ended", "--metric", "aopc", "--json")
    texts = ("I like the movie", "She hates the movie")
    text, number = (
        json.loads(run("compare", *texts, *common, *hold).stdout)
        for hold in (("--hold", "the movie"), ("--hold", "-2", "--hold", "-3"))
    )
    assert text["held"] == number["held"] == ["'the movie'"] * 2 and text["values"] == number["values"]
    assert text["rows"][0]["options"]["hold"] == ["the movie"] and number["rows"][0]["options"]["hold"] == [-2, -3]
    assert "'the book' is not in input 0" in run("compare", *texts, *common, "--hold", "the book", code=1).stderr
    chosen = json.loads(run("recommend", *texts * 2, *common[:2], "--hold", "the movie", "--json").stdout)
    assert chosen["held"] == ["'the movie'"] * 4
    first = run("compare", "I like it . She hates it .", *common, "--units", "sentence", "--hold", "1").stdout
    assert json.loads(first)["held"] == ["'I like it .'"]


def test_compare_of_images(vit_folder: Path, photo: Path) -> None:
    shown = run("compare", photo, "--model", vit_folder, "-m", "grad_cam", "--metric", "insertion").stdout
    assert "grad_cam" in shown and "absent parts  mean" in shown


def test_recommend(tmp_path: Path) -> None:
    out, texts = tmp_path / "r.json", tmp_path / "texts.txt"
    texts.write_text("I like the movie\nSo boring\nA dull book\nWhat a lovely day\n", encoding="utf-8")
    shown = run("recommend", "--file", texts, "--attention-only", "--out", out).stdout
    assert "any cost" in shown and "last-layer attention" in shown and "candidates    252" in shown
    assert wf.Recommendation.load(out).candidates == 252
    one = run("recommend", "So boring", "--scope", "instance", "-m", "alti", "--json").stdout
    assert json.loads(one)["candidates"] == 253
    assert "at least 4" in run("recommend", "So boring", code=1).stderr
    assert "dataset" in run("recommend", "--scope", "all", code=1).stderr
    few = run("recommend", "--file", texts, "-m", "attn_lrp", "-m", "two_ended", "--budget", "3").stdout
    assert "Within 3 forwards" in few and "Over the budget" in few and "two_ended" in few
    assert "500ms" in run("recommend", "So boring", "--budget", "soon", code=1).stderr


def test_mistakes_are_usage_errors(tmp_path: Path) -> None:
    assert "attn_lrp" in run("compare", "-m", "attn_lrpp", code=1).stderr
    assert "infidelity" in run("compare", "--metric", "infidel", code=1).stderr
    run("compare", "--out", tmp_path / "x.txt", code=2)
    run("compare", "--out", tmp_path / "no" / "x.html", code=2)


def test_compare_of_detections(tmp_path: Path, photo: Path) -> None:
    folder = tmp_path / "detr"
    CASES["detr"].build(None).save_pretrained(folder)
    processors.detr(16).save_pretrained(folder)
    common = ("--model", folder, "-m", "generic_attention", "-m", "occlusion", "--metric", "aopc")
    shown = run("compare", photo, *common, "--target", "LABEL_1").stdout
    assert "generic_attention" in shown and "greedy (ceiling)" in shown
    assert json.loads(run("compare", photo, *common, "--json").stdout)["inputs"] >= 1
