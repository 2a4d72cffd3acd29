"""What commands print: on shipped models, and on models of images, texts, sound and detection saved to folders."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import transformers as hf

import whyformer as wf
from tests.cli.test_cli import run, told
from tests.concepts.textures import FOLDER
from tests.models import CASES
from tests.support import processors
from whyformer.demo import SENTENCES

USABLE = "positions hear of each other by attention alone|Attention methods can be used."
CAPTURE = "capture --text 'what is this' --model"
# The command line, and what it prints, between strokes; files that it names are pictures or pages that it writes.
SHOWN = [
    ("explain text 'what is this' --model t5/", "written token"),
    ("explain image PHOTO --model VIT --out why.png", "[CLS], added by the model, holds"),
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
    ("explain sound clip.wav --model whisper/", "written token"),
    ("methods raw_attention", "layers='last'|Misleads"),
    ("metrics sufficiency", "low is good|DeYoung|bins="),
    ("metrics", "|".join(wf.list_metrics())),
    (
        "doctor",
        "whyformer 0.|torch |transformers |Pillow |cpu |sentiment, pets, textures, adult|passed|"
        "two methods agree with numpy",
    ),
    ("attention", f"Attention, every head: {SENTENCES[0]}|3.3|0 … 1 attention"),
    ("attention --scale free --out free.html", "each with its own scale"),
    ("attention 'I like the movie' --head max --scale 0,0.5", "0 … 0.5 attention|max over 4 heads"),
    ("attention --what colours --out c.png", "Where the heads look: a drawn cat|head 5|position 0, [CLS]"),
    ("attention PHOTO --model TEXTURES --what colours -l 1 --query 3", "cat.png|vit.layers.1|position 3, patch 0,2"),
    (
        "attention 'what is this' --model t5/ --what streams --head 0",
        "source self-attention|target self-attention|target looks at source|rows: target; columns: source|"
        "site -1 of each kind, head 0",
    ),
    (
        "capture",
        "BertForSequenceClassification: 4 attention sites|bert.encoder.layer.3.attention.self|read from first position|"
        f"everything that looks like attention, to what it weighs|{USABLE}",
    ),
    ("capture --model VIT --image PHOTO", "grid 4 × 4 patches"),
    (f"{CAPTURE} lxmert/", f"text ← image|image ← text|{USABLE}"),
    (f"{CAPTURE} detr/", f"queries ← image|{USABLE}"),
    (f"{CAPTURE} whisper/", f"target ← source|{USABLE}"),
    ("compare PHOTO --model VIT -m grad_cam --metric insertion", "grad_cam|absent parts mean"),
    ("heads --what pruning --order random --points 2 'So boring' 'I like it'", "agreement against heads kept (random"),
    ("maximize --layer 2 --neuron 5 --position 1 --steps 2 --out n.png", "token 1 5 of vit.layers.2"),
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


def test_a_classifier_does_not_say_how_alike_texts_are(tmp_path: Path) -> None:
    """It would be asked about both texts together, and a class of the pair explained."""
    CASES["bert"].build("sdpa").save_pretrained(tmp_path)
    processors.tokenizer().save_pretrained(tmp_path)
    told = run("explain", "similar", "a cat", "two birds", "--model", tmp_path, code=1).stderr
    assert "BertForSequenceClassification: it has a head" in told and "AutoModel.from_pretrained" in told
    hf.AutoModel.from_pretrained(tmp_path).save_pretrained(tmp_path)  # as it advises
    assert "cosine of 'similarity'" in run("explain", "similar", "a cat", "two birds", "--model", tmp_path).stdout


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


@pytest.mark.parametrize(
    ("command", "model", "words"),
    [
        (("pair", "cat.png", "a"), "lxmert", "which a detector makes"),
        (("pair", "cat.png", "a"), "t5", "no model of images with texts"),
        (("sound", "clip.wav"), "t5", "no model of sound"),
    ],
)
def test_the_wrong_kind_of_model_is_refused(
    command: tuple[str, ...], model: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert words in run("explain", *command, "--model", f"{model}/", code=1).stderr
