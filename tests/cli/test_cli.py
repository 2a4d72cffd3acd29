"""The commands end to end: on the shipped model, and on models saved to folders."""

from __future__ import annotations

import json
import re
import shlex
import sys
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import whyformer as wf
from tests.concepts.textures import FOLDER
from tests.models import CASES
from tests.support import processors
from tests.support.released import VIT_LAYERS, images_in_prompts
from tests.support.snapshots import compare
from whyformer import cli
from whyformer.cli.first_steps import METHODS
from whyformer.cli.main import COMMANDS, app
from whyformer.demo import SENTENCES

SNAPSHOTS = Path(__file__).parent / "snapshots"
OLD_LAYOUT = tuple(map(int, version("typer").split(".")[:2])) < (0, 29)  # older than that of the stored help
HELP = [path.stem.removeprefix("help-").split("-") for path in sorted(SNAPSHOTS.glob("help-*.txt"))]


def run(*arguments: object, stdin: str | bytes | None = None, code: int = 0, columns: int = 80) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in arguments], input=stdin, env={"COLUMNS": str(columns)})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def told(*arguments: object, stdin: str | None = None) -> Any:
    """What a command prints with --json."""
    return json.loads(run(*arguments, "--json", stdin=stdin).stdout)


def words_of(shown: str) -> list[str]:
    """The words of a help, without what differs between versions of typer: marks of types and optional arguments."""
    return re.sub(r"<[^>]*>|[\[\]{}.]", "", shown).split()


@pytest.mark.parametrize("command", HELP, ids="-".join)
def test_help_as_stored(command: list[str]) -> None:
    shown, stored = run(*command, "-h").stdout, SNAPSHOTS / f"help-{'-'.join(command)}.txt"
    if OLD_LAYOUT:
        assert words_of(shown) == words_of(stored.read_text(encoding="utf-8"))
    else:
        compare(shown, stored)
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert f"whyformer {' '.join(command)}" in shown.split("Examples:")[1]


def test_every_file_is_a_command_with_a_line_that_fits() -> None:
    assert run("--version").stdout == f"whyformer {wf.__version__}\n"
    shown = run("--help").stdout
    listed = dict(re.findall(r"^  (\w+)  +(.+)$", shown.split("Commands:")[1], flags=re.MULTILINE))
    assert {p.stem for p in Path(cli.__file__).parent.glob("[!_]*.py")} - {"main"} == set(COMMANDS)
    assert set(listed) == {name for names in COMMANDS.values() for name in names}
    assert set(listed) == {command[0] for command in HELP} and list(listed)[:2] == ["demo", "explain"]
    assert not any(line.endswith("...") for line in listed.values())


# demo


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, out = SENTENCES[:2], tmp_path / "demo.html"
    monkeypatch.setattr("whyformer.cli.first_steps.SENTENCES", few)
    shown = run("demo", "--out", out).stdout
    *screens, closing = re.split(
        r"^(?:\d\. .*, and a (?:sentiment model|model of .*)|The page    .*)$", shown, flags=re.MULTILINE
    )[1:]
    said = [
        re.findall(r"^prediction +(\S+) \((?:probability )?[\d.]+ %\), next \S+ \([\d.<> ]+ %\)$", s, re.MULTILINE)
        for s in screens
    ]
    assert said == [["positive"], ["cat"], ["<=50K"]]
    assert all(len(s.strip().splitlines()) <= 28 and "method: two_ended" in s for s in screens), "the default"
    assert str(tmp_path / "demo-report.html") in closing.replace("\n", "") and len(closing.splitlines()) <= 24
    assert closing.rstrip().splitlines()[-3].startswith("  whyformer explain ")
    page = out.read_text(encoding="utf-8")
    for words in (*few, *METHODS, "a drawn cat", "in a census", "What to try next"):
        assert words in page
    assert "http" not in page.split("</style>")[1]
    assert page.count('<section class="wf-view"') == 3 + len(few), "text, image and table, then sentences"
    assert "a drawing made by the demo" in page
    assert "2 texts: too few to rank methods" in (tmp_path / "demo-report.html").read_text(encoding="utf-8")


def test_units_of_explain_text() -> None:
    shown = told("explain", "text", "I like unforgettable movies", "--units", "word", "-m", "occlusion")
    assert len(shown[0]["scores"]) == len(wf.Explainer(*wf.demo.load_sentiment()).explain(
        "I like unforgettable movies", units="word", method="occlusion").scores)  # fmt: skip


def test_two_texts_for_a_classifier_of_pairs(bert_folder: Path) -> None:
    pair = ("i like the movie", "so boring")
    shown = told("explain", pair[0], "--pair", pair[1], "--model", bert_folder, "-m", "occlusion")
    whole = wf.explain(str(bert_folder), pair, method="occlusion")
    assert shown[0]["units"]["labels"] == list(whole.units.labels)
    np.testing.assert_allclose(shown[0]["scores"], whole.scores, atol=1e-6)


def test_a_terminal_has_a_line_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which a command that is called so replaces
    monkeypatch.setattr("whyformer.cli.first_steps.screens", sys.exit)
    shown = (["explain", "I like it", "-m", "no method"], ["demo", "--out", "a.html"], ["explain", "text", "--help"])
    for command in shown:
        with suppress(SystemExit):
            app(command, prog_name="whyformer")
        written = capsys.readouterr().err
        assert written.startswith("Loading the model …\n") == ("--help" not in command)


def test_the_checks_in_the_help_are_all_checks() -> None:
    from whyformer.checks import check
    from whyformer.cli import _options

    assert list(_options.CHECKS) == list(check.CHECKS)


def test_text_files_are_read_line_by_line(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    named, by_option = (told("check", *words, "-c", "sinks") for words in (["lines.txt"], ["--file", "lines.txt"]))
    assert named["inputs"] == by_option["inputs"] == 2


def test_what_the_demo_tells_people_to_type_exists(
    monkeypatch: pytest.MonkeyPatch, photo: Path, tmp_path: Path
) -> None:
    from whyformer.cli import analysis_commands
    from whyformer.cli.first_steps import _next

    few = partial(analysis_commands.shipped_concepts, sets=4)  # the demo has all of them
    monkeypatch.setattr(analysis_commands, "shipped_concepts", few)
    monkeypatch.chdir(tmp_path)
    Image.open(photo).convert("RGB").save("photo.jpg")
    terms = _next(Path("x.html"))[1]
    for command in (f.name for f in terms.facts):
        words = [w.strip('"') for w in re.findall(r'"[^"]*"|\S+', command)]
        assert words[0] == "whyformer"
        run(*words[1:])


# explain text


def test_json_is_what_python_gives() -> None:
    shown = told("explain", "text", "So boring", "Not bad", "-m", "grad_sam", "-m", "occlusion", "-t", "0")
    from whyformer.demo import load_sentiment

    model, tokenizer = load_sentiment()
    expected = wf.explain(
        model, ["So boring", "Not bad"], processor=tokenizer, method=["grad_sam", "occlusion"], target=0
    )
    assert [e["method"] for e in shown] == ["grad_sam", "occlusion"] * 2
    for i, e in enumerate(shown):
        np.testing.assert_allclose(e["scores"], expected[e["method"]][i // 2].scores, atol=1e-5)
        assert e["target"]["label"] == "negative"


def test_texts_from_stdin_and_file(files: Path) -> None:
    shown = told("explain", "text", "a", "-", "--file", files / "lines.txt", stdin="b\n \nc\n")
    assert [e["units"]["text"] for e in shown] == ["a", "b", "c", "I like it", "So boring"]


def test_options_target_versus_scalar_and_batch_size() -> None:
    asked = "-m raw_attention -o heads=max --target negative --versus positive --scalar log_odds --batch-size 1"
    (shown,) = told("explain", "text", "so bad", *asked.split(), "-o", "layers=[0, 1]")
    assert (shown["options"]["heads"], shown["options"]["layers"]) == ("max", [0, 1])
    assert shown["changed"] == ["layers", "heads"]
    assert (shown["target"]["index"], shown["target"]["versus"], shown["scalar"]) == (0, 1, "log_odds")


def test_out_numbers_files_for_several(tmp_path: Path, bert_folder: Path) -> None:
    texts = ("explain", "text", "i like it", "so bad", "--model", bert_folder, "-m", "random", "-m", "grad_sam")
    result = run(*texts, "--out", tmp_path / "x.json")
    assert f"wrote {tmp_path / 'x-1-random.json'}" in result.stderr and "wrote" not in result.stdout
    run(*texts, "--out", tmp_path / "x.png")
    run(*texts, "--out", tmp_path / "x.html")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "x-1-grad_sam.json", "x-1-random.json", "x-1.png", "x-2-grad_sam.json", "x-2-random.json", "x-2.png", "x.html",
    ]  # fmt: skip
    assert (tmp_path / "x.html").read_text(encoding="utf-8").count('<section class="wf-view">') == 2


# explain image


def test_the_picture_is_what_the_model_saw(vit_folder: Path, photo: Path) -> None:
    from whyformer.cli._options import load
    from whyformer.cli._results import seen_by

    explainer = wf.Explainer(*load("image", str(vit_folder)))
    with Image.open(photo) as image:
        (seen,) = seen_by(explainer, [image.convert("RGB")])
        expected = np.asarray(image.convert("RGB").resize((32, 32), Image.Resampling.BILINEAR), int)
    assert np.abs(seen - expected).max() <= 2


# methods and capture


def test_methods_lists_every_method_with_its_taxonomy() -> None:
    shown = run("methods").stdout
    assert max(len(line) for line in shown.splitlines()) <= 80 and "Post-hoc" in shown
    rows = {line.split()[0]: line for line in shown.split("\n\n")[1].splitlines() if line.strip()}
    for name, method in wf.list_methods().items():
        assert method.specificity in rows[name] and "local" in rows[name]
        assert f"{name}: {method.paper.split(',')[0][:20]}" in shown
    assert {m["name"] for m in told("metrics")} == set(wf.list_metrics())
    listed = {m["name"]: m for m in told("methods")}
    assert set(listed) == set(wf.list_methods()) and listed["grad_sam"]["family"] == "post-hoc"


def test_capture_says_whether_attention_methods_can_be_used(tmp_path: Path, vit_folder: Path, photo: Path) -> None:
    from tests.models import WITHOUT_ATTENTION
    from tests.support import folders

    found = told("capture", "--model", vit_folder)
    assert [s["heads"] for s in found["sites"]] == found["grid"] == [4, 4] and found["trouble"] is None
    WITHOUT_ATTENTION["resnet"].build(None).save_pretrained(tmp_path)
    folders.image_processor().save_pretrained(tmp_path)
    shown = run("capture", "--model", tmp_path, "--image", photo, code=1).stdout
    assert "no attention was captured" in shown and "Attention methods cannot be used" in shown


def test_a_page_has_the_answers_to_why_not_the_next_class(tmp_path: Path) -> None:
    page = tmp_path / "why.html"
    run("explain", "text", "I like the movie", "-m", "generic_attention", "-m", "occlusion", "--out", page)
    told = re.search(r'"others":\[(.*)\]', page.read_text(encoding="utf-8"))
    assert told is not None and '"words":"Why positive rather than negative?"' in told.group(1)
    assert told.group(1).count('"method":') == 1  # what takes a pass per word is not asked unasked
    run("explain", "text", "I like the movie", "--target", "negative", "--out", page)
    assert '"others":[]' in page.read_text(encoding="utf-8")


# What commands print: on shipped models, and on models of images, texts, sound and detection saved to folders.

USABLE = "positions exchange information through attention only|Attention methods can be used."
CAPTURE = "capture --text 'what is this' --model"
# The command line, and what it prints, between strokes; files that it names are pictures or pages that it writes.
SHOWN = [
    ("explain text 'what is this' --model t5/", "generated token"),
    ("explain image PHOTO --model VIT --out why.png", "Special token [CLS]"),
    ("explain image PHOTO --model VIT -m generic_attention -m occlusion -t dog", "cat.png ──|logit of 'dog'"),
    ("explain image cat.png --model detr/ --out objects.png", "cat.png: |, query "),
    (
        "explain pair cat.png 'a cat' 'a dog' --model clip/ --scalar cosine --out why.html",
        "cosine of 'similarity'|cat.png: a dog",
    ),
    (
        "explain similar 'a cat on the mat' 'two birds' --model encoder/ --out similar.png",
        "pairs of tokens|cosine of 'similarity'",
    ),
    ("explain sound clip.wav --model whisper/", "generated token"),
    ("methods raw_attention", "layers='last'|Misleads"),
    ("metrics sufficiency", "lower is better|DeYoung|bins="),
    ("metrics", "|".join(wf.list_metrics())),
    (
        "doctor",
        "whyformer 0.|torch |transformers |Pillow |cpu |sentiment, pets, textures, adult|passed|"
        "two methods agree with numpy",
    ),
    ("attention", f"Attention, every head: {SENTENCES[0]}|3.3|0 … 1 attention"),
    ("attention --scale free --out free.html", "each with its own scale"),
    ("attention 'I like the movie' --head max --scale 0,0.5", "0 … 0.5 attention|max over 4 heads"),
    ("attention --what colours --out c.png", "Attention heads over the image: a drawn cat|head 5|position 0, [CLS]"),
    ("attention PHOTO --model TEXTURES --what colours -l 1 --query 3", f"cat.png|{VIT_LAYERS}.1|position 3, patch 1,3"),
    (
        "attention 'what is this' --model t5/ --what streams --head 0",
        "source self-attention|target self-attention|target attends to source|rows: target; columns: source|"
        "site -1 of each kind, head 0",
    ),
    (
        "capture",
        "BertForSequenceClassification: 4 attention layers|bert.encoder.layer.3.attention.self|output first position|"
        f"complete: every softmax that looks like attention was captured|{USABLE}",
    ),
    ("capture --model VIT --image PHOTO", "grid 4 × 4 patches"),
    (f"{CAPTURE} lxmert/", f"text ← image|image ← text|{USABLE}"),
    (f"{CAPTURE} whisper/", f"target ← source|{USABLE}"),
    ("compare PHOTO --model VIT -m grad_cam --metric insertion", "grad_cam|baseline mean"),
    ("heads --what pruning --order random --points 2 'So boring' 'I like it'", "agreement against heads kept (random"),
    ("heads --what pruning --order gates --points 2 --steps 4 --penalty 0.5", "learned gates|random, seed 0"),
    ("maximize --layer 2 --neuron 5 --position 1 --steps 2 --out n.png", f"token 1 5 of {VIT_LAYERS}.2"),
]


@pytest.mark.parametrize(("command", "words"), SHOWN, ids=lambda words: words[:60])
def test_shown(
    command: str,
    words: str,
    folder: Path,
    vit_folder: Path,
    photo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    places = {"VIT": vit_folder, "PHOTO": photo, "TEXTURES": FOLDER}
    asked = [places.get(word, word) for word in shlex.split(command)]
    out = tmp_path / str(asked[-1])
    asked[-1] = out if "--out" in asked else asked[-1]
    shown = run(*asked).stdout
    missing = [each for each in words.split("|") if each.strip() not in " ".join(shown.split())]
    assert not missing and "\x1b" not in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
    if "--out" in asked:
        assert out.stat().st_size > (50_000 if out.name == "c.png" else 5000)
    if out.suffix == ".html":  # a section for each picture that was printed
        titles = re.findall(r"^.+ ──+$", shown, re.MULTILINE)
        assert out.read_text(encoding="utf-8").count('<section class="wf-view">') == len(titles)


def test_a_question_and_its_answer(folder: Path) -> None:
    found = told(
        "explain", "pair", folder / "cat.png", "what is this", "--answer", "a cat", "--model", folder / "blip_vqa"
    )
    assert [e["target"]["label"] for e in found] == ["a", "cat", "[EOS]"]
    (one,) = told("explain", "pair", folder / "cat.png", "what is this", "--model", folder / "llava")
    assert set(one["units"]["stream"]) == {"image", "text"}


@images_in_prompts
def test_an_image_in_a_prompt(folder: Path) -> None:
    (one,) = told("explain", "pair", folder / "cat.png", "what is this", "--model", folder / "llava")
    asked = ("explain", "prompt", "what is this", "--image", folder / "cat.png", "--model", folder / "llava")
    same = told(*asked)
    assert same["units"] == one["units"] and same["scores"] == one["scores"]


def test_one_object_of_a_detector(folder: Path) -> None:
    asked = ("explain", "image", folder / "cat.png", "--model", folder / "detr")
    (one,) = told(*asked, "--target", "2:1")
    assert one["target"]["position"] == 2 and one["target"]["index"] == 1
    model = CASES["detr"].build(None)
    for probability in (0.5, 0.4):
        objects = wf.explain(model, processors.picture(), processor=processors.detr(), target=probability)
        shown = told(*asked, "--target", str(probability))
        assert [o["target"]["position"] for o in shown] == [o.target.position for o in objects]
    assert "QUERY:CLASS" in run(*asked, "--target", "cat", code=2).stderr
