"""The bench of public measures: metrics by hand-computed values, sets in small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from bench.measures import posts, sets, xai_units
from bench.measures.eraser import auprc, iou_f1, iou_parts, named, token_f1
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


def test_files_of_the_sets(tmp_path: Path) -> None:
    rows = [
        {"text": "you are a pest", "label": "offensive", "rationale": [0, 0, 0, 1]},
        {"text": "a b", "label": "normal"},
    ]
    path = tmp_path / sets.POSTS / "data" / "HateXplain-test.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"instances": rows}), encoding="utf-8")
    first, second = sets.posts(tmp_path, "test")
    assert first == sets.Post("you are a pest", 2, (False, False, False, True)) and second == sets.Post("a b", 1)


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


def test_tables() -> None:
    unit = {"part": "xai_units", "unit": "Conflicting", "by": "captum", "method": "DeepLift"}
    assert "|captum: DeepLift|2.000±1.414|" in report([{**unit, "values": [1.0, 3.0]}])
    shown = report([{**unit, "values": [1.0, 3.0]}, {**unit, "values": [0.0, 0.0], "model": "trained"}])
    assert (
        "|method|conflicting|" in shown and "|trained|conflicting|\n|---|---|\n|captum: DeepLift|0.000±0.000|" in shown
    )
    metrics = ("iou_precision", "iou_recall", "token_f1", "auprc", "comprehensiveness", "sufficiency")
    row = {"part": "hatexplain", "method": "attn_lrp", "values": {name: [0.5, 0.5] for name in metrics}}
    shown = report([row])
    assert f"|attn_lrp|{'|'.join(['0.500±0.000'] * 5)}|" in shown and all(name in shown for name in PUBLISHED)
    better = {**row, "method": "raw_attention", "values": {name: [0.75, 0.75] for name in metrics}}
    assert "raw_attention minus attn_lrp, auprc: 0.250±0.000" in report([row, better])
    samples = np.array([0.0, 1.0] * 50)
    low, high = interval(samples)
    assert bounded(samples) == f"0.500±{float(high - low) / 2:.3f}" and 0.08 < float(high - low) / 2 < 0.12
