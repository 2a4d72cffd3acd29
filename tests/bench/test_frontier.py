"""The frontier: falls as the definitions have them, claims are paired, pictures whose names do not cover each other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import whyformer as wf
from bench.frontier.__main__ import main
from bench.frontier.claims import ahead_of_default, claims, difference, from_saved
from bench.frontier.language import Tokens, WholeSentences, contenders_of_sentences, contenders_of_tokens
from bench.frontier.picture import draw
from bench.frontier.planted import Trained
from bench.frontier.subject import Row
from bench.frontier.text import Sentences, made_sentences, read_sentences
from bench.known_truth.facts import Facts
from bench.known_truth.training import gate
from whyformer.demo import load_sentiment


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


def test_methods_and_judge_play_the_same_game_in_which_the_question_stays() -> None:
    """Two ends by the judge's own hand are two_ended as it takes part, of what is judged."""
    trained = untrained()
    of_tokens = Tokens(trained), contenders_of_tokens()
    for subject, contenders in (of_tokens, (WholeSentences(trained), contenders_of_sentences())):
        method, options = contenders["two_ended"]
        (found,) = subject.explained(method, options | {"scalar": "log_probability"})
        alone = np.eye(len(subject.cause_P(0)), dtype=bool)
        ends = [np.ones_like(alone[:1]), ~alone, np.zeros_like(alone[:1]), alone]
        values = subject.values(0, np.concatenate(ends))
        whole, without, none, single = np.split(values, np.cumsum([len(end) for end in ends])[:-1])
        np.testing.assert_allclose(subject.scores_P(0, found), (whole - without + single - none) / 2, atol=1e-4)


def test_differences_are_paired_and_point_the_same_way() -> None:
    generator = np.random.default_rng(0)
    hard = generator.random((50, 2))
    better = Row("two_ended", 2, 0, hard + np.array([0.1, -0.1]))
    other = Row("occlusion", 1, 0, hard)
    mean, low, high = difference(better, other)
    np.testing.assert_allclose([mean, low, high], 0.1, atol=1e-9)  # what inputs share is gone
    assert [holds for _, holds in claims({"two_ended": better, "occlusion": other})] == [True]
    swapped = {"two_ended": Row("two_ended", 2, 0, hard), "occlusion": Row("occlusion", 1, 0, better.values_IM)}
    assert [holds for _, holds in claims(swapped)] == [False]


def test_candidates_for_the_default_are_those_of_one_pass() -> None:
    hard = np.random.default_rng(0).random((50, 2))
    shifts = {"generic_attention": (0, 0), "better": (0.1, -0.1), "worse": (-0.1, 0.1), "torn": (0.1, 0.1)}
    known = {name: Row(name, 1, 1, hard + np.array(shift)) for name, shift in shifts.items()}
    known["hair"] = Row("hair", 1, 1, hard + np.array([1e-6, -1e-6]))  # surely better, by nothing
    known["dear"] = Row("dear", 50, 0, hard + 1)
    lines = ahead_of_default(known)
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["better", "hair", "torn", "worse"]
    torn = "ahead in comprehensiveness, behind in sufficiency"
    assert [line.split("|")[-2].strip() for line in lines[2:]] == ["ahead in both", "level", torn, "behind in both"]


def test_the_command_in_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "dev.tsv", tmp_path / "out"
    data.write_text("".join(f"{sentence}\t1\n" for sentence in made_sentences(5, seed=3)))
    assert len(set(read_sentences(data, 4, seed=0))) == 4
    methods = ["random", "two_ended", "occlusion", "two ends by gradient", "grad_cam"]
    how = ["--part", "text", "--data", str(data), "--inputs", "3", "--methods", *methods, "--out", str(out)]
    main(how)
    shown = capsys.readouterr().out
    assert "| two_ended | " in shown and "two_ended is above occlusion" in shown
    assert "not offered: grad_cam" in shown
    stored = json.loads((out / "text.json").read_text())
    assert {"random", "two_ended"} <= set(from_saved(stored["rows"]))
    main([*how, "--resume"])
    assert " s  | two_ended" not in capsys.readouterr().out, "what is there is not measured again"
    assert draw(stored, tmp_path / "frontier_text.png").stat().st_size > 10_000
