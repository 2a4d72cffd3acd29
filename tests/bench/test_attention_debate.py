"""bench.attention_debate: its parts by known answers, and the whole in small."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bench import attention_debate
from bench.attention_debate_models import BiLSTM, TokenMLP, Transformer
from bench.attention_debate_training import (
    Said,
    adversary_loss,
    jsd,
    kl,
    per_instance,
    read,
    said,
    scored,
    train,
    tvd,
    uniform,
)
from tests.references.checks import attention_debate as twin

GOOD, BAD = ("good", "great", "fine", "fun"), ("bad", "awful", "dull", "slow")
OTHER = ("the", "a", "film", "plot", "and", "but")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences with one word that decides."""
    path, random = tmp_path_factory.mktemp("sst"), np.random.default_rng(0)
    for name, count in (("train", 160), ("dev", 24), ("test", 24)):
        lines = []
        for i in range(count):
            words = [*random.choice(OTHER, random.integers(3, 8)), random.choice(GOOD if i % 2 else BAD)]
            lines.append(" ".join(random.permutation(words)) + f"\t{i % 2}")
        (path / f"{name}.tsv").write_text("\n".join(lines), encoding="utf-8")
    return path


def test_distances_equal_the_twin() -> None:
    a, b = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0.1, 0.2, 0.7]])
    assert float(jsd(a, b)) == pytest.approx(twin.divergence(a[0].tolist(), b[0].tolist()), abs=1e-6)
    assert float(kl(a, b)) == pytest.approx(0.7 * math.log(7) + 0.1 * math.log(1 / 7), abs=1e-6)
    assert float(tvd(torch.tensor([0.9]), torch.tensor([0.6]))) == pytest.approx(0.3)


def test_padding_changes_nothing_and_weights_can_be_imposed(folder: Path) -> None:
    data, vocabulary = read(folder, None, "cpu")
    test = data["test"]
    for make in (BiLSTM, Transformer, TokenMLP):
        torch.manual_seed(0)
        model = make(vocabulary).eval()
        together = said(model, test)
        one = torch.tensor([int(test.lengths_N.argmin())])
        with torch.no_grad():
            logits, attention = model(test.words(one))  # as wide as itself
        assert float(logits.softmax(1)[0, 1]) == pytest.approx(float(together.probability_N[one]), abs=1e-5)
        assert together.attention_NT[one, : attention.shape[1]].tolist()[0] == pytest.approx(
            attention[0].tolist(), abs=1e-5
        )
        assert together.attention_NT.sum(1).tolist() == pytest.approx([1.0] * len(test.labels_N), abs=1e-5)
        even = said(model, test, uniform(test))
        assert torch.equal(even.attention_NT, uniform(test))
        assert not torch.allclose(even.probability_N, together.probability_N)


def test_the_adversarys_loss() -> None:
    base = Said(torch.tensor([0.5, 0.9]), torch.tensor([[0.5, 0.5], [0.8, 0.2]]))
    logits = torch.tensor([[0.0, math.log(3)]])  # p = 0.75
    attention = torch.tensor([[0.2, 0.8]])
    want = 0.15 - 0.1 * (0.2 * math.log(0.2 / 0.8) + 0.8 * math.log(0.8 / 0.2))
    assert float(adversary_loss(base, 0.1)(logits, attention, torch.tensor([1]))) == pytest.approx(want, abs=1e-5)


def test_guides_that_point_elsewhere_spoil_a_model_that_sees_single_words(folder: Path) -> None:
    """The diagnostic tells good weights from bad ones: on the deciding word, and on any but it."""
    data, vocabulary = read(folder, None, "cpu")
    deciding = {name: _deciding(split.ids_NT, data) for name, split in data.items()}
    rest = {n: uniform(data[n]) * (1 - d) for n, d in deciding.items()}
    elsewhere = {n: r / r.sum(1, keepdim=True) for n, r in rest.items()}
    found = []
    for guide in (deciding, elsewhere):
        model = train(lambda: TokenMLP(vocabulary), data, 0, 30, imposed=guide, lr=1e-2)
        found.append(scored(said(model, data["test"], guide["test"]), data["test"])["accuracy"])
    assert found[0] > 0.95
    assert found[1] < 0.8


def _deciding(ids: torch.Tensor, data: dict[str, object]) -> torch.Tensor:
    """1 on the word that decides: the ids that occur with one label only."""
    train_split = data["train"]
    by_label = [set(train_split.ids_NT[train_split.labels_N == label].unique().tolist()) for label in (0, 1)]
    decides = torch.tensor(sorted(by_label[0] ^ by_label[1]))
    return torch.isin(ids, decides).float()


def test_the_per_sentence_adversary_keeps_the_output(folder: Path) -> None:
    data, vocabulary = read(folder, None, "cpu")
    torch.manual_seed(0)
    change, far = per_instance(BiLSTM(vocabulary).eval(), data["test"], seed=0, steps=20, candidates=1)
    assert 0 <= change <= 0.05
    assert 0 < far <= math.log(2)


def test_the_study_in_small(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "debate.json"
    monkeypatch.setattr(attention_debate, "LAMBDAS", (0.0, 0.1))
    arguments = ["--data", folder, "--seeds", 2, "--steps", 2, "--models", "transformer", "--out", out]
    monkeypatch.setattr(sys, "argv", ["attention_debate", *map(str, arguments)])
    attention_debate.main()
    shown = capsys.readouterr().out
    for row in attention_debate.GUIDES:
        assert f"| {row} |" in shown
    stored = json.loads(out.read_text())
    assert [run["seed"] for run in stored["runs"]["transformer"]] == [0, 1]
    summary = stored["summary"]["transformer"]
    assert summary["guides"]["adversary"]["f1"]["low"] <= summary["guides"]["adversary"]["f1"]["high"]
    assert [p["lambda"] for p in summary["curve"]] == [0.0, 0.1]
    assert 0 <= summary["points"]["other seeds"]["jsd"]["mean"] <= math.log(2)
