"""whyformer attention, maximize, and what heads says of pruning and gates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import whyformer as wf
from tests.cli.test_cli import run
from tests.concepts.textures import FOLDER
from whyformer import heads
from whyformer.demo import SENTENCE_LABELS, SENTENCES, load_sentiment, load_textures, model_folder
from whyformer.demo.pictures import picture

SENTENCE = SENTENCES[0]


# attention


def test_attention_prints_the_weights_that_the_model_has() -> None:
    shown = json.loads(run("attention", SENTENCE, "--layer", 2, "--head", 1, "--json").stdout)
    record = wf.Explainer(*load_sentiment()).record(SENTENCE)
    (site,) = shown[0]["sites"]
    np.testing.assert_allclose(site["attention"], record.sites[2].attention_BHQK[0, 1].numpy(), atol=1e-6)
    assert shown[0]["labels"] == ["[CLS]", "i", "like", "the", "movie", "[SEP]"] and site["site"] == 2
    everything = json.loads(run("attention", "--json").stdout)
    assert len(everything[0]["sites"]) == 4 and everything[0]["head"] == "mean"


def test_attention_is_drawn_as_asked(tmp_path: Path) -> None:
    grid = run("attention").stdout
    assert f"Attention, every head: {SENTENCE}" in grid and "3.3" in grid and "0 … 1  attention" in grid
    with_numbers = run("attention", SENTENCE, "--layer", 2, "--values").stdout
    weight = wf.Explainer(*load_sentiment()).record(SENTENCE).sites[2].attention_BHQK[0].mean(0)[0, 2]
    assert f"{weight:.2f}" in with_numbers and "mean over 4 heads" in with_numbers and "movie" in with_numbers
    free = run("attention", "--scale", "free", "--out", tmp_path / "free.html").stdout
    assert "each with its own scale" in free and (tmp_path / "free.html").stat().st_size > 5000
    own = run("attention", SENTENCE, "--head", "max", "--scale", "0,0.5").stdout
    assert "0 … 0.5  attention" in own and "max over 4 heads" in own
    run("attention", "--out", tmp_path / "maps.json")
    assert len(json.loads((tmp_path / "maps.json").read_text(encoding="utf-8"))[0]["sites"]) == 4


def test_heads_in_colours(tmp_path: Path) -> None:
    shown = run("attention", "--what", "colours", "--out", tmp_path / "c.png").stdout
    assert "Where the heads look: a drawn cat" in shown and "head 5" in shown and "position 0, [CLS]" in shown
    assert (tmp_path / "c.png").stat().st_size > 50_000
    Image.fromarray(picture("horse", "striped", 1)).save(tmp_path / "horse.png")
    shown = run(
        "attention", tmp_path / "horse.png", "--model", FOLDER, "--what", "colours", "-l", 1, "--query", 3
    ).stdout
    assert "horse.png" in shown and "vit.layers.1" in shown and "position 3, patch 0,2" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--what", "maps"), 1, "map"),
        (("--scale", "wide"), 1, "'shared', 'free' or 'full'"),
        (("--scale", "1,0"), 1, "the second is larger"),
        (("--scale", "1,x"), 2, "two numbers"),
        (("--layer", 9), 1, "4 sites"),
        (("--head", 9), 1, "0 to 3"),
        (("--model", model_folder("sentiment"), "--what", "colours"), 1, "model of images"),
        (("--out", "maps.npz"), 2, "the ending says"),
    ],
)
def test_attention_refuses(arguments: tuple[object, ...], code: int, message: str) -> None:
    assert message in run("attention", *arguments, code=code).output.replace("\n", " ")


# maximize


def test_maximize_is_the_verb(tmp_path: Path) -> None:
    how = {"steps": 3, "l2": 0.01, "tv": 0.02, "seed": 4}
    options = [f"--{name}={value}" for name, value in how.items()]
    run("maximize", *options, "--out", tmp_path / "z.npz", "--option", "lr=0.1")
    model, processor = load_textures()
    same = wf.activation_maximization(model, "zebra-like", processor=processor, lr=0.1, **how)
    saved = wf.load(tmp_path / "z.npz")
    assert np.array_equal(saved.image, same.image) and saved.penalties == pytest.approx(same.penalties)
    shown = run(
        "maximize", "--layer", 2, "--neuron", 5, "--position", 1, "--steps", 2, "--out", tmp_path / "n.png"
    ).stdout
    assert "token 1 5 of vit.layers.2" in shown and (tmp_path / "n.png").stat().st_size > 5000
    text = run(
        "maximize", "positive", "--model", model_folder("sentiment"), "--steps", 2, "--length", 3, "--json"
    ).stdout
    assert len(json.loads(text)["tokens"]) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--neuron", 3), 2, "give --layer"),
        (("--layer", 1, "--position", 3), 2, "give --neuron"),
        (("zebra-like", "--layer", 1), 2, "not both"),
        (("--model", FOLDER), 2, "needs a class"),
        (("--option", "jitter=1e999"), 1, "jitter=inf"),
        (("--l2", "nan"), 1, "l2=nan"),
        (("zebra",), 1, "zebra-like"),
        (("--out", "z.gif"), 2, "the ending says"),
    ],
)
def test_maximize_refuses(arguments: tuple[object, ...], code: int, message: str) -> None:
    assert message in run("maximize", "--steps", 1, *arguments, code=code).output.replace("\n", " ")


# heads


def test_pruning_tests_an_order_on_other_inputs(tmp_path: Path) -> None:
    shown = run("heads", "--what", "pruning", "--points", 3, "--json", "--out", tmp_path / "p.png").stdout
    curve = json.loads(shown[shown.index("{") :])
    model, tokenizer = load_sentiment()
    order = wf.head_importance(model, list(SENTENCES[::2]), processor=tokenizer)
    same = heads.pruning_curve(
        model, list(SENTENCES[1::2]), list(SENTENCE_LABELS[1::2]), processor=tokenizer, order=order, points=3
    )
    assert curve["metric"] == "accuracy" and curve["values"] == pytest.approx(same.values.tolist())
    assert [tuple(at) for at in curve["order"]] == list(same.order)
    assert (tmp_path / "p.png").stat().st_size > 5000
    alone = run("heads", "--what", "pruning", "--order", "random", "--points", 2, *SENTENCES[:2]).stdout
    assert "agreement against heads kept (random" in alone


def test_gates_are_learned(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(SENTENCES[:4]), encoding="utf-8")
    (tmp_path / "labels.txt").write_text("\n".join(SENTENCE_LABELS[:4]), encoding="utf-8")
    how = ("--file", tmp_path / "texts.txt", "--labels", tmp_path / "labels.txt", "--steps", 4, "--penalty", 0.5)
    run("heads", "--what", "gates", *how, "--out", tmp_path / "g.npz")
    model, tokenizer = load_sentiment()
    same = heads.learn_gates(
        model, list(SENTENCES[:4]), list(SENTENCE_LABELS[:4]), processor=tokenizer, steps=4, penalty=0.5
    )
    np.testing.assert_allclose(wf.load(tmp_path / "g.npz").scores, same.scores, rtol=1e-5)
    pruned = run("heads", "--what", "pruning", "--order", "gates", "--points", 2, *how).stdout
    assert "learned gates" in pruned and "random, seed 0" in pruned


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--what", "gates", "a", "b"), "give --labels"),
        (("--what", "pruning", "a"), "two inputs at least"),
        (("--what", "pruning", "--order", "best"), "importance"),
    ],
)
def test_heads_refuse(arguments: tuple[object, ...], message: str) -> None:
    assert message in run("heads", *arguments, code=1).output


def test_labels_are_counted(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("positive", encoding="utf-8")
    said = run("heads", "--what", "pruning", "a", "b", "--labels", tmp_path / "labels.txt", code=1).output
    assert "1 labels" in said and "2 inputs" in said


# explain image, with the shipped model


def test_the_shipped_model_of_images_is_the_default() -> None:
    shown = json.loads(run("explain", "image", "--json").stdout)
    assert [one["prediction"]["label"] for one in shown] == ["cat", "dog"]
    assert shown[0]["units"]["grid"] == [16, 16]
    assert "give image files" in run("explain", "image", "--model", FOLDER, code=2).output
