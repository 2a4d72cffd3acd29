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
from bench.attention_debate_training import (
    Said,
    adversary_loss,
    jsd,
    kl,
    tvd,
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


def test_the_adversarys_loss() -> None:
    base = Said(torch.tensor([0.5, 0.9]), torch.tensor([[0.5, 0.5], [0.8, 0.2]]))
    logits = torch.tensor([[0.0, math.log(3)]])  # p = 0.75
    attention = torch.tensor([[0.2, 0.8]])
    want = 0.15 - 0.1 * (0.2 * math.log(0.2 / 0.8) + 0.8 * math.log(0.8 / 0.2))
    assert float(adversary_loss(base, 0.1)(logits, attention, torch.tensor([1]))) == pytest.approx(want, abs=1e-5)


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
