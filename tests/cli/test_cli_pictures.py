"""whyformer attention, maximize, tcav, heads, compare, recommend and check, end to end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import whyformer as wf
from tests.cli.test_cli import run, told
from tests.concepts.textures import FOLDER
from whyformer import heads
from whyformer.concepts.concept_vectors import tcav
from whyformer.demo import SENTENCE_LABELS, SENTENCES, load_sentiment, load_textures, model_folder, pictures

SENTENCE = SENTENCES[0]


# attention


def test_attention_prints_the_weights_that_the_model_has() -> None:
    shown = told("attention", SENTENCE, "--layer", 2, "--head", 1)
    record = wf.Explainer(*load_sentiment()).record(SENTENCE)
    (site,) = shown[0]["sites"]
    np.testing.assert_allclose(site["attention"], record.sites[2].attention_BHQK[0, 1].numpy(), atol=1e-6)
    assert shown[0]["labels"] == ["[CLS]", "i", "like", "the", "movie", "[SEP]"] and site["site"] == 2
    everything = told("attention")
    assert len(everything[0]["sites"]) == 4 and everything[0]["head"] == "mean"


def test_attention_with_its_numbers() -> None:
    shown = run("attention", SENTENCE, "--layer", 2, "--values").stdout
    weight = wf.Explainer(*load_sentiment()).record(SENTENCE).sites[2].attention_BHQK[0].mean(0)[0, 2]
    assert f"{weight:.2f}" in shown and "mean over 4 heads" in shown and "movie" in shown


# maximize


def test_maximize_is_the_verb(tmp_path: Path) -> None:
    how = {"steps": 3, "l2": 0.01, "tv": 0.02, "seed": 4}
    options = [f"--{name}={value}" for name, value in how.items()]
    run("maximize", *options, "--out", tmp_path / "z.npz", "--option", "lr=0.1")
    model, processor = load_textures()
    same = wf.activation_maximization(model, "zebra-like", processor=processor, lr=0.1, **how)
    saved = wf.load(tmp_path / "z.npz")
    assert np.array_equal(saved.image, same.image) and saved.penalties == pytest.approx(same.penalties)
    text = told("maximize", "positive", "--model", model_folder("sentiment"), "--steps", 2, "--length", 3)
    assert len(text["tokens"]) == 3


# heads


def test_pruning_tests_an_order_on_other_inputs(tmp_path: Path) -> None:
    curve = told("heads", "--what", "pruning", "--points", 3, "--out", tmp_path / "p.png")
    model, tokenizer = load_sentiment()
    order = wf.head_importance(model, list(SENTENCES[::2]), processor=tokenizer)
    same = heads.pruning_curve(
        model, list(SENTENCES[1::2]), list(SENTENCE_LABELS[1::2]), processor=tokenizer, order=order, points=3
    )
    assert curve["metric"] == "accuracy" and curve["values"] == pytest.approx(same.values.tolist())
    assert [tuple(at) for at in curve["order"]] == list(same.order)
    assert (tmp_path / "p.png").stat().st_size > 5000


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


# tcav


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    for i in range(5):
        for texture in ("striped", "dotted"):
            _put(tmp_path / texture / f"{i}.png", pictures.swatch(texture, i))
        for number in range(3):
            _put(tmp_path / "random" / str(number) / f"{i}.png", pictures.picture("ball", "plain", 100 * number + i))
        _put(tmp_path / "zebras" / f"{i}.png", pictures.picture("horse", "striped", i))
    return tmp_path


def _put(path: Path, pixels: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_folders_of_images(sets: Path) -> None:
    striped, dotted = (f"{texture}={sets / texture}" for texture in ("striped", "dotted"))
    how = ("--model", FOLDER, "-c", striped, "-c", dotted, "--inputs", sets / "zebras", "-t", "zebra-like", "-l", 2)
    shown = run("tcav", *how, "--random", sets / "random", "--out", sets / "bars.png").output
    assert "striped" in shown and "dotted" in shown and "weak test" in shown
    assert (sets / "bars.png").stat().st_size > 5000
    rows = told("tcav", *how, "--relative")["rows"]  # which needs no random sets
    assert [(row["concept"], row["versus"]) for row in rows] == [("striped", "dotted"), ("dotted", "striped")]


def test_files_of_texts(tmp_path: Path) -> None:
    for name, line in (("good", "great film {}"), ("inputs", "I liked film {}"), ("random/a", "film {}"),
                       ("random/b", "{} people"), ("random/c", "at {} on monday")):  # fmt: skip
        path = tmp_path / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(line.format(i) for i in range(5)), encoding="utf-8")
    how = ("--random", tmp_path / "random", "--inputs", tmp_path / "inputs.txt", "-t", "positive", "-l", 1)
    found = told("tcav", "--model", model_folder("sentiment"), "-c", f"good={tmp_path / 'good.txt'}", *how)
    assert found["rows"][0]["concept"] == "good" and len(found["rows"][0]["scores"]) == 3
    model, tokenizer = load_sentiment()
    texts = {p.stem: p.read_text(encoding="utf-8").splitlines() for p in tmp_path.rglob("*.txt")}
    sets = [texts[name] for name in "abc"]
    same = tcav(
        model, layer=1, concepts={"good": texts["good"]}, random_sets=sets, class_inputs=texts["inputs"],
        target="positive", processor=tokenizer,
    )  # fmt: skip
    assert found["rows"][0]["magnitude"] == pytest.approx(same.rows[0].magnitude, rel=1e-4)  # one default for both


# compare, recommend and check


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
    common = ("-m", "two_ended", "--metric", "aopc")
    texts = ("I like the movie", "She hates the movie")
    holds = (("--hold", "the movie"), ("--hold", "-2", "--hold", "-3"))
    text, number = (told("compare", *texts, *common, *hold) for hold in holds)
    assert text["held"] == number["held"] == ["'the movie'"] * 2 and text["values"] == number["values"]
    assert text["rows"][0]["options"]["hold"] == ["the movie"] and number["rows"][0]["options"]["hold"] == [-2, -3]
    chosen = told("recommend", *texts * 2, *common[:2], "--hold", "the movie")
    assert chosen["held"] == ["'the movie'"] * 4
    first = told("compare", "I like it . She hates it .", *common, "--units", "sentence", "--hold", "1")
    assert first["held"] == ["'I like it .'"]


def test_recommend(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("I like the movie\nSo boring\nA dull book\nWhat a lovely day\n", encoding="utf-8")
    shown = run("recommend", "--file", texts, "--attention-only").stdout
    assert "any cost" in shown and "last-layer attention" in shown and "candidates    252" in shown
    assert told("recommend", "So boring", "--scope", "instance", "-m", "alti")["candidates"] == 253
    few = run("recommend", "--file", texts, "-m", "attn_lrp", "-m", "two_ended", "--budget", "3").stdout
    assert "Within 3 forwards" in few and "Over the budget" in few and "two_ended" in few


def test_check_on_the_shipped_model(tmp_path: Path) -> None:
    asked = ("check", "I like the movie", "-c", "sinks", "-c", "class_dependence", "-m", "grad_sam")
    shown = run(*asked, "--out", tmp_path / "check.html").stdout
    assert "Check-up of grad_sam on BertForSequenceClassification, 1 input" in " ".join(shown.split())
    assert "Sink tokens" in (tmp_path / "check.html").read_text()
    kept = tmp_path / "kept"
    both = [told("check", "So boring", "-c", "stability", "--cache", kept) for _ in range(2)]
    assert both[0]["findings"] == both[1]["findings"]
    assert len(list(kept.glob("*.check.json"))) == 1 + 1 + 5  # explanations, the check, its five draws
