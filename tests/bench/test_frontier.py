"""The frontier: its two measures by hand on one sentence, paired differences, and the whole command in small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import whyformer as wf
from bench.frontier import SHARES, Judge, Row, claims, difference, made_sentences, main, read_sentences
from whyformer.demo import load_sentiment


def test_both_measures_by_hand() -> None:
    model, tokenizer = load_sentiment()
    text = "This is so boring"
    judge = Judge(wf.Explainer(model, tokenizer), [text])
    ids = tokenizer(text, return_tensors="pt")["input_ids"]  # [CLS] this is so boring [SEP]

    def probability(*absent: int) -> float:
        masked = ids.clone()
        masked[0, list(absent)] = tokenizer.mask_token_id
        with torch.no_grad():
            return float(model(input_ids=masked).logits.softmax(-1)[0, 0])

    assert SHARES == (0.01, 0.05, 0.1, 0.2, 0.5)  # of four tokens: one, four times, and two
    found = judge.judged(0, np.array([9.0, 0.2, 0.1, 0.3, 0.4, 9.0]))
    whole = probability()
    without = whole - (4 * probability(4) + probability(4, 3)) / 5
    alone = whole - (4 * probability(1, 2, 3) + probability(1, 2)) / 5
    assert found == pytest.approx((without, alone), abs=1e-5)


def test_differences_are_paired_and_point_the_same_way() -> None:
    generator = np.random.default_rng(0)
    hard = generator.random((50, 2))
    better = Row("two_ended", 2, 0, hard + np.array([0.1, -0.1]))
    other = Row("occlusion", 1, 0, hard)
    mean, low, high = difference(better, other)
    np.testing.assert_allclose([mean, low, high], 0.1, atol=1e-9)  # what sentences share is gone
    assert [holds for _, holds in claims({"two_ended": better, "occlusion": other})] == [True]
    swapped = {"two_ended": Row("two_ended", 2, 0, hard), "occlusion": Row("occlusion", 1, 0, better.values_I2)}
    assert [holds for _, holds in claims(swapped)] == [False]


def test_the_command_in_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "dev.tsv"
    data.write_text("".join(f"{text}\t1\n" for text in made_sentences(5, seed=3)))
    assert len(set(read_sentences(data, 4, seed=0))) == 4
    methods = ["random", "two_ended", "occlusion", "two ends by gradient"]
    main(["--data", str(data), "--inputs", "3", "--methods", *methods, "--out", str(tmp_path / "out.json")])
    shown = capsys.readouterr().out
    assert "| two_ended | " in shown and "two_ended is above occlusion" in shown
