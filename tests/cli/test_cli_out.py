"""Files that commands write: every --out is read back by ``wf.load``; reports; folders of explained datasets."""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import whyformer as wf
from tests.cli.test_cli import run, told
from tests.concepts.textures import FOLDER
from whyformer import heads
from whyformer.cli import analysis_commands
from whyformer.cli._options import CommandArguments
from whyformer.cli._results import deliver_report
from whyformer.concepts.concept_vectors import tcav
from whyformer.demo import SENTENCE_LABELS, SENTENCES, load_sentiment, load_textures, model_folder, pictures

# The command line without --out, and the kind of result that each file holds.
WRITTEN = [
    ("explain text 'I like it' -m grad_sam", "Explanation"),
    ("explain text 'I like it' 'So boring' -m grad_sam -m random", "Explanation " * 4),
    ("explain text 'what is this' --model t5/", "Explanation " * 32),
    ("explain image cat.png --model detr/ --target 2:1", "Explanation"),
    ("explain table --row 0", "Explanation"),
    ("explain table --overall -m raw_attention", "GlobalExplanation"),
    ("explain pair cat.png 'a cat' 'a dog' --model clip/", "Explanation " * 2),
    ("explain similar 'a cat' 'two birds' --model encoder/", "Explanation"),
    ("explain sound clip.wav --model wav2vec2/", "Explanation"),
    ("explain prompt 'the cat sat' --model LM -m grad_sam -m random", "Explanation " * 2),
    ("explain prompt 'the cat sat' --model LM --generate 2", "Generation"),
    ("ask 'who ran ?' --model LM --answer 'the dog .'", "Generation"),
    ("ask 'who ran ?' --model LM --answer 'the dog .' --docs docs -m grad_sam", "Citations"),
    ("attention 'I like it' 'So boring' --layer 1 --head 2", "AttentionMaps " * 2),
    ("heads", "HeadImportance"),
    ("heads --what roles", "HeadRoles"),
    ("heads --what layers", "LayerProfile"),
    ("heads --what pruning --points 2", "PruningCurve"),
    ("heads --what gates --steps 2", "LearnedGates"),
    ("heads --what induction --model LM", "InductionScores"),
    ("heads --what circuits", "Circuits"),
    ("maximize --steps 2", "Maximized"),
    ("tcav --relative", "TCAVResult"),
    ("compare 'So boring' -m raw_attention --metric aopc", "Comparison"),
    ("recommend 'So boring' --scope instance --attention-only", "Recommendation"),
    ("check 'So boring' -c sinks", "CheckUp"),
]
TABLES = ("heads --what roles", "heads --what layers")  # --json prints their rows


@pytest.mark.parametrize(("command", "kinds"), WRITTEN, ids=lambda words: words.strip()[:60])
def test_every_file_is_read_back_and_is_what_json_prints(
    command: str,
    kinds: str,
    files: Path,
    folder: Path,
    lm_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = partial(analysis_commands.shipped_concepts, sets=4, size=5)
    monkeypatch.setattr(analysis_commands, "shipped_concepts", few)
    monkeypatch.chdir(folder)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("the dog ran home .", encoding="utf-8")
    (tmp_path / "out").mkdir()
    places = {"LM": lm_folder, "docs": tmp_path / "docs", "photo.jpg": files / "photo.jpg"}
    words = [places.get(word, word) for word in shlex.split(command)]
    printed = json.loads(run(*words, "--json", "--out", tmp_path / "out" / "x.json").stdout)
    paths = sorted((tmp_path / "out").iterdir())
    assert [type(wf.load(path)).__name__ for path in paths] == kinds.split()
    plain = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if command in TABLES:
        assert printed == json.loads(json.dumps(wf.load(paths[0]).rows()))
    elif isinstance(printed, list):
        assert sorted(map(json.dumps, printed)) == sorted(map(json.dumps, plain))
    else:
        assert [printed] == plain


# explain … --report


TEXTS = ("This is so boring", "I like it")


def test_named_methods_are_compared(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = run("explain", "text", *TEXTS, "-m", "grad_sam", "-m", "raw_attention", "-t", "negative", "--report", out)
    assert "grad_sam" in done.stdout and f"wrote {out}" in done.stderr
    report = wf.load(out)
    model, tokenizer = load_sentiment()
    again = wf.compare(model, list(TEXTS), processor=tokenizer, method=["grad_sam", "raw_attention"], target="negative")
    assert repr([row.scores for row in report.comparison.rows]) == repr([row.scores for row in again.rows])
    assert {e.target.label for each in report.explanations for e in each} == {"negative"}
    assert report.checkup is not None and report.checkup.inputs == 2


def test_a_single_method_with_options_stands_among_the_usual_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {}

    class Explainer:
        def source(self, raw: list[str]) -> object:
            return type("Source", (), {"modality": type("Text", (), {"kind": "text"})})

        def report(self, raw: list[str], **how: object) -> object:
            asked.update(how)
            return type("Report", (), {"save": lambda self, path: path})()

    how = {"target": None, "scalar": "logit", "batch_size": None, "seed": 3, "memory": "auto", "option": ["steps=4"]}
    how["report"] = tmp_path / "x.html"
    deliver_report(Explainer(), ["a"], CommandArguments(method=["integrated_gradients"], **how))
    assert asked["method"][0] == {"method": "integrated_gradients", "steps": 4} and asked["seed"] == 3
    assert "integrated_gradients" not in asked["method"][1:] and len(asked["method"]) == 6
    deliver_report(Explainer(), ["a"], CommandArguments(method=["integrated_gradients", "grad_sam"], **how))
    assert asked["method"] == [{"method": "integrated_gradients", "steps": 4}, "grad_sam"]


# batch


def test_a_file_becomes_a_folder(bert_folder: Path, files: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ("batch", files / "table.csv", "--model", bert_folder, "--out", out, "--column", "words", "--key", "id")
    shown = run(*asked, "-m", "grad_sam", "-o", "reduce=key", "--part-rows", 2)
    assert "Most important features of this dataset" in shown.stdout and "1 (1 BadInput)" in shown.stdout
    dataset = wf.load(out)
    assert [place["name"] for place, _ in dataset.entries()] == ["a", "c"]
    assert all(e.options["reduce"] == "key" for e in dataset) and (out / "summary.html").is_file()
    refused = run(*asked, "-m", "grad_sam", "--part-rows", 2, code=1)
    assert "job with other parameters: options was" in refused.stderr
    quiet = run(*asked, "-m", "grad_sam", "-o", "reduce=key", "--quiet")
    assert quiet.stdout == quiet.stderr == ""


def test_each_row_says_what_is_explained_and_lines_are_for_a_log(bert_folder: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "rows.csv", tmp_path / "out"
    path.write_text("words,gold\ngood movie,1\nso boring the film was,0\n", encoding="utf-8")
    shown = run("batch", path, "--model", bert_folder, "--out", out, "-c", "words", "--target-column", "gold", "--log")
    assert [e.target.index for e in wf.load(out)] == [1, 0]
    last = json.loads(shown.stderr.splitlines()[-1])
    assert (last["event"], last["rows"], last["errors"]) == ("done", 2, 0) and shown.stdout == ""


# whyformer attention, maximize, tcav, heads, compare, recommend and check, end to end.

SENTENCE = SENTENCES[0]


def test_attention_prints_the_weights_that_the_model_has() -> None:
    shown = told("attention", SENTENCE, "--layer", 2, "--head", 1)
    record = wf.Explainer(*load_sentiment()).record(SENTENCE)
    (site,) = shown[0]["sites"]
    np.testing.assert_allclose(site["attention"], record.sites[2].attention_BHQK[0, 1].numpy(), atol=1e-6)
    assert shown[0]["labels"] == ["[CLS]", "i", "like", "the", "movie", "[SEP]"] and site["site"] == 2
    everything = told("attention")
    assert len(everything[0]["sites"]) == 4 and everything[0]["head"] == "mean"
    values = run("attention", SENTENCE, "--layer", 2, "--values").stdout
    weight = record.sites[2].attention_BHQK[0].mean(0)[0, 2]
    assert f"{weight:.2f}" in values and "mean over 4 heads" in values and "movie" in values


def test_maximize_is_the_verb(tmp_path: Path) -> None:
    how = {"steps": 3, "l2": 0.01, "tv": 0.02, "seed": 4}
    options = [f"--{name}={value}" for name, value in how.items()]
    run("maximize", *options, "--out", tmp_path / "z.npz", "--option", "lr=0.1")
    model, processor = load_textures()
    same = wf.activation_maximization(model, "zebra-like", processor=processor, lr=0.1, **how)
    saved = wf.load(tmp_path / "z.npz")
    assert np.array_equal(saved.image, same.image) and saved.penalties == pytest.approx(same.penalties)
    refused = run("maximize", "positive", "--model", model_folder("sentiment"), "--steps", 2, code=1)
    assert "does not take images alone" in " ".join(refused.output.split())


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


def test_folders_of_images(tmp_path: Path) -> None:
    sets = {texture: partial(pictures.swatch, texture) for texture in ("striped", "dotted")}
    sets |= {f"random/{shape}": partial(pictures.picture, shape, "plain") for shape in pictures.SHAPES[:3]}
    for name, drawn in (sets | {"zebras": partial(pictures.picture, "horse", "striped")}).items():
        (tmp_path / name).mkdir(parents=True)
        for i in range(5):
            Image.fromarray(drawn(i)).save(tmp_path / name / f"{i}.png")
    how = ["--model", FOLDER, "--inputs", tmp_path / "zebras", "-t", "zebra-like", "-l", 2]
    how += [word for texture in ("striped", "dotted") for word in ("-c", f"{texture}={tmp_path / texture}")]
    shown = run("tcav", *how, "--random", tmp_path / "random", "--out", tmp_path / "bars.png").output
    assert "striped" in shown and "dotted" in shown and "test is weak" in shown
    assert (tmp_path / "bars.png").stat().st_size > 5000
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


def test_compare(tmp_path: Path) -> None:
    out = tmp_path / "c.html"
    common = ("-m", "raw_attention", "-m", "attn_lrp", "--metric", "aopc")
    shown = run("compare", "I like the movie", "So boring", *common, "--replace", "unk", "--out", out).stdout
    for words in ("raw_attention", "attn_lrp", "random (floor)", "greedy (ceiling)", "baseline      unk"):
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
