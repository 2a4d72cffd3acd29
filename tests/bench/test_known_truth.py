"""The bench of known truth: causes are marked, the gate counts flips, an oracle is told from a flat map."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from bench.frontier.__main__ import main as frontier
from bench.frontier.claims import from_saved
from bench.frontier.image import shipped
from bench.frontier.language import Tokens, WholeSentences
from bench.frontier.picture import draw
from bench.frontier.planted import Trained
from bench.frontier.text import Sentences, made_sentences, read_sentences
from bench.known_truth import columns
from bench.known_truth.__main__ import main
from bench.known_truth.facts import Facts
from bench.known_truth.job import NAMES, task_of
from bench.known_truth.scoring import auroc, measures, selected
from bench.known_truth.training import gate, kept
from whyformer.demo import load_sentiment

COUNT = 100


@pytest.mark.parametrize("name", NAMES)
def test_every_input_has_cause_and_distractors(name: str) -> None:
    """That the cause decides is what the gate measures on every model that is trained."""
    held_out = task_of(name, None).held_out(np.random.default_rng(5), COUNT)
    assert len(held_out.asked_I) == COUNT
    assert (held_out.cause_IU & held_out.counted_IU == held_out.cause_IU).all(), "the cause is counted"
    assert held_out.cause_IU.any(1).all() and (held_out.counted_IU & ~held_out.cause_IU).any(1).all()
    for change in held_out.changes.values():
        assert change.possible_I.mean() > 0.4


# The gate


class Known(nn.Module):
    """A model that follows the rule of the columns, or looks at other columns too."""

    def __init__(self, weights: dict[int, float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([weights.get(i, 0.0) for i in range(columns.COLUMNS)]))

    def forward(self, numbers: Tensor, categories: None) -> Tensor:
        total = numbers @ self.weight
        return torch.stack([-total, total], 1)


def test_the_gate_knows_a_model_that_follows_the_rule() -> None:
    """And only inputs whose truth is known are explained."""
    task = columns.Columns()
    held_out = task.held_out(np.random.default_rng(1), 500)
    follows, more = (Known(dict.fromkeys(used, 1.0)) for used in (columns.USED, (*columns.USED, 0)))
    passed = gate(task, follows, held_out, "cpu")
    assert passed.passed() and passed.right == 1 and set(passed.flipped.values()) == {1.0} and passed.disturbed == 0
    misses_one = gate(task, Known(dict.fromkeys(columns.USED[:2], 1.0)), held_out, "cpu")
    assert not misses_one.passed() and misses_one.flipped["column 6"] == 0
    sees_more = gate(task, more, held_out, "cpu")
    assert not sees_more.passed() and sees_more.disturbed > 0.01 and "NOT PASSED" in str(sees_more)
    assert len(selected(task, follows, held_out, "cpu")) == 500 > len(selected(task, more, held_out, "cpu")) > 0


# Scores with a known answer


def test_an_oracle_and_a_flat_map() -> None:
    cause = np.array([0, 1, 0, 0, 1, 0, 0, 0], dtype=bool)
    everything = np.ones(8, dtype=bool)
    oracle = measures(-3.0 * cause, cause, everything, signed=True)
    assert oracle == {"auroc": 1.0, "mass": 1.0, "pointing": 1.0, "auroc_signed": 0.0}
    for flat in (np.ones(8), np.zeros(8)):
        assert measures(flat, cause, everything, signed=False) == {"auroc": 0.5, "mass": 0.25, "pointing": 0.25}
    assert measures(1.0 * ~cause, cause, everything, signed=False) == {"auroc": 0.0, "mass": 0.0, "pointing": 0.0}
    scores, first = np.array([2.0, 9.0, 1.0, 1.0]), np.arange(4) == 0
    counted = np.arange(4) != 1  # neither cause nor distractor: left out
    assert measures(scores, first, counted, signed=False) == {"auroc": 1.0, "mass": 0.5, "pointing": 1.0}
    scores = np.random.default_rng(0).integers(0, 5, 8).astype(float)
    pairs = [(a > b) + (a == b) / 2 for a in scores[cause] for b in scores[~cause]]
    assert auroc(scores, cause) == pytest.approx(np.mean(pairs))


def test_a_model_that_was_trained_otherwise_is_trained_again(tmp_path: Path) -> None:
    task = columns.Columns()
    first, how = kept(task, 0, "cpu", tmp_path, "plain", steps=2)
    again, same = kept(task, 0, "cpu", tmp_path, "plain", steps=3)
    assert how == same and torch.equal(*(next(m.parameters()) for m in (first, again))), "from the cache"
    _, other = kept(replace(task, rate=1e-4), 0, "cpu", tmp_path, "plain", steps=3)
    assert other["steps"] == 3
    _, deeper = kept(replace(task, blocks=3), 0, "cpu", tmp_path, "plain", steps=4)
    assert deeper["steps"] == 4


# The command


def test_the_command_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--quick", "--tasks", "columns", "stamps", "--methods", "random", "saliency", "--cache", str(tmp_path)]
    assert main([*given, "--out", str(tmp_path / "x.json")]) == 0
    printed = capsys.readouterr().out
    assert "| stamps | 0 (5 steps)" in printed
    saved: dict[str, Any] = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert set(saved) == {"settings", "gates", "summary", "best", "values"}
    assert len(list(tmp_path.glob("*-quick-0.pt"))) == 2
    kept = saved["summary"]["columns"]["saliency"]["auroc"]
    main([*given, "--out", str(tmp_path / "y.json")])
    again = json.loads((tmp_path / "y.json").read_text(encoding="utf-8"))
    assert again["summary"]["columns"]["saliency"]["auroc"] == kept, "the model in the cache is the model"


# The frontier: falls as the definitions have them, claims are paired, pictures whose names do not cover each other.


def test_falls_are_those_of_masked_sentences() -> None:
    """Four tokens: 1, 5, 10 and 20 % are one of them, 50 % are two."""
    model, tokenizer = load_sentiment()
    judge = Sentences(wf.Explainer(model, tokenizer), ["a dull film ."])
    ids = torch.tensor([tokenizer("a dull film .")["input_ids"]])
    assert ids.shape == (1, 6)

    def probability(*masked: int) -> float:
        changed = ids.clone()
        changed[0, list(masked)] = tokenizer.mask_token_id
        with torch.no_grad():
            return float(model(input_ids=changed).logits.softmax(-1)[0].double()[judge.classes[0]])

    measured = judge.judged(0, np.array([1.0, 2.0, 3.0, 4.0]))
    whole = probability()
    without = whole - (4 * probability(4) + probability(4, 3)) / 5
    alone = whole - (4 * probability(1, 2, 3) + probability(1, 2)) / 5
    assert measured == pytest.approx([without, alone], abs=1e-5)
    assert len(judge.known) == 5, "the whole and four parts of it; what was asked is not asked again"


def untrained() -> Trained:
    """A planted subject whose model has learned nothing: what is absent, and where the cause is, does not need more."""
    made = Trained.__new__(Trained)
    torch.manual_seed(0)
    made.task = Facts(layers=1)
    made.model = made.task.model().eval()
    made.planted = made.task.held_out(np.random.default_rng(0), 8)
    made.rows = np.arange(1)
    made.gate = gate(made.task, made.model, made.planted, "cpu")
    return made


def test_absent_sentences_are_left_out_and_absent_tokens_unknown() -> None:
    trained = untrained()
    tokens, sentences = Tokens(trained), WholeSentences(trained)
    ids = trained.planted.inputs["input_ids"][:1]
    present = np.ones((1, 8), bool)
    present[0, 2] = False
    shorter = torch.cat([ids[:, :7], ids[:, 10:]], 1)
    unknown = ids.clone()
    unknown[:, 7:10] = 1
    with torch.no_grad():
        want = [
            float(trained.model(input_ids=x).logits[0, -1].log_softmax(-1)[tokens.asked(0)]) for x in (shorter, unknown)
        ]
    assert sentences.values(0, present)[0] == pytest.approx(want[0], abs=1e-5)
    several = np.concatenate([np.ones((1, 8), bool), present, ~present, present])  # of different lengths, one again
    alone = [sentences.values(0, one[None])[0] for one in several]
    np.testing.assert_allclose(WholeSentences(trained).values(0, several), alone, atol=1e-5)
    assert tokens.values(0, present.repeat(3, 1))[0] == pytest.approx(want[1], abs=1e-5)
    told = sentences.inputs([0])[0].split(" . ")
    about = [sentence.split()[0] == told[-1].split()[0] for sentence in told[:-1]]
    assert sentences.cause_P(0).tolist() == about and tokens.cause_P(0).sum() == 2 * sum(about)


def test_the_command_in_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "dev.tsv", tmp_path / "out"
    data.write_text("".join(f"{sentence}\t1\n" for sentence in made_sentences(5, seed=3)))
    assert len(set(read_sentences(data, 4, seed=0))) == 4
    methods = ["random", "two_ended", "occlusion", "two ends by gradient", "grad_cam"]
    how = ["--part", "text", "--data", str(data), "--inputs", "3", "--methods", *methods, "--out", str(out)]
    frontier(how)
    shown = capsys.readouterr().out
    assert "| two_ended | " in shown and "two_ended is above occlusion" in shown
    assert "not offered: grad_cam" in shown
    stored = json.loads((out / "text.json").read_text())
    assert {"random", "two_ended"} <= set(from_saved(stored["rows"]))
    frontier([*how, "--resume"])
    assert " s  | two_ended" not in capsys.readouterr().out, "what is there is not measured again"
    assert draw(stored, tmp_path / "frontier_text.png").stat().st_size > 10_000
    few = ["auto, 3 passes", "auto, 24 passes", "attn_lrp", "random", "two_ended"]
    frontier(["--budgets", "--part", "text", "--data", str(data), "--inputs", "3", "--methods", *few])
    three, more = (line.split(" | ") for line in capsys.readouterr().out.splitlines() if line[:4] in {"| 3 ", "| 24"})
    assert three[1] == "3" and three[-2:] == ["", "none |"], "two_ended takes more; the default is attn_lrp"
    assert more[4].count(" to ") == 2, "the difference from three passes, with intervals"


def test_photos_are_masked_with_their_mean_colour(tmp_path: Path) -> None:
    from PIL import Image

    for number, colour in enumerate(("red", "navy")):
        Image.new("RGB", (128, 128), colour).save(tmp_path / f"{number}.jpg", quality=95)
    judge = shipped("pets", 2, tmp_path)
    assert judge.scores_P(0, judge.explained("random", {})[0]).shape == (256,)
    nothing = np.zeros((1, 256), bool)
    assert judge.values(0, nothing) == pytest.approx(judge.values(0, ~nothing), abs=1e-4), "of one colour"
    split = judge.pixels[0].clone()
    split[..., :64] += 1
    judge.pixels[0] = split
    left = np.tile(np.arange(16) < 8, 16)[None]
    shown = split.clone()
    shown[..., 64:] = split.mean((2, 3), keepdim=True)
    want = judge.logits(shown).softmax(-1)[0, judge.classes[0]]
    assert judge.values(0, left)[0] == pytest.approx(float(want), abs=1e-6)
