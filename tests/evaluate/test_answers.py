"""compare, recommend and check on language models: the answer's log-probability is what parts are judged by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.support.language import shared, tokenizer
from whyformer.evaluate.games import games_of

PAIRS = [
    ("The cat sat on the mat . He said yes . The capital of france is", "paris ."),
    ("The dog ran home . It was big . She said no . The cat is", "red and blue ."),
    ("A dog . A cat . What is it ?", "it was a cat"),
    ("He ran . She sat . Who ran ?", "he ran home ."),
]


def log_probability(prompt: str, answer: str) -> float:
    lm, tok = shared("llama"), tokenizer()
    before, said = tok(prompt)["input_ids"], tok(answer)["input_ids"]
    with torch.no_grad():
        rows = lm(input_ids=torch.tensor([before + said])).logits[0].log_softmax(1)
    return sum(float(rows[len(before) + t - 1, token]) for t, token in enumerate(said))


def test_variants_are_judged_by_the_answers_log_probability() -> None:
    with games_of(wf.Explainer(shared("llama"), tokenizer()), PAIRS, units="sentence", replace="delete") as games:
        assert [len(parts) for parts in games.parts] == [3, 4, 3, 3]
        game = games.game(0)
        assert game.parts == 3 and game.whole("logit") == pytest.approx(log_probability(*PAIRS[0]), rel=1e-4)
        present = np.array([[True, False, True]])
        without = PAIRS[0][0].replace("He said yes . ", "")
        assert game.values(present, "logit")[0] == pytest.approx(log_probability(without, PAIRS[0][1]), rel=1e-4)


@pytest.mark.parametrize("units", ["token", "sentence"])
def test_compare(units: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {"processor": tokenizer(), "units": units, "replace": "unk", "progress": False}
    methods = ["generic_attention", "attn_lrp", "occlusion"]
    metrics: dict[str, Any] = {"comprehensiveness": {}, "linear_surrogate": {}, "ranked_truthfulness": {}}
    metrics["max_sensitivity"] = {"samples": 2}  # each explains everything once more
    compared = wf.compare(shared("llama"), PAIRS, methods=methods, metrics=metrics, cache=tmp_path, **how)
    assert not compared.failures and compared.inputs == 4 and compared.value == "log-probability of the answer"
    # What leave-one-out measures is what occlusion says.
    best = max(compared.values["ranked_truthfulness"], key=lambda m: np.mean(compared.values["ranked_truthfulness"][m]))
    assert best in {"occlusion", "greedy"}
    if units == "sentence":
        return
    again = wf.compare(shared("llama"), PAIRS, methods=methods, metrics=metrics, cache=tmp_path, **how)
    assert again.variants == 0
    assert again.values["comprehensiveness"]["attn_lrp"] == compared.values["comprehensiveness"]["attn_lrp"]
    others = [(PAIRS[0][0], "rome ."), *PAIRS[1:]]
    other = wf.compare(
        shared("llama"), others, methods=methods[:1], metrics=["comprehensiveness"], cache=tmp_path, **how
    )
    assert other.variants > 0, "another answer is another question"


def test_an_answer_is_no_decision_that_could_flip() -> None:
    with pytest.raises(wf.errors.NotOffered, match="no decision"):
        wf.compare(
            shared("llama"), PAIRS[:2], methods=["raw_attention"], metrics=["positive_perturbation"],
            processor=tokenizer(), progress=False,
        )  # fmt: skip


def test_recommend_and_check() -> None:
    how: dict[str, Any] = {"processor": tokenizer(), "progress": False}
    both = wf.recommend(shared("llama"), PAIRS, methods=["attn_lrp"], spaces=[], **how)
    assert {name for name, _ in both.leaders} == {"attn_lrp", "attn_lrp(first_token=False)"}
    without = wf.explain(shared("llama"), PAIRS[0], processor=tokenizer(), span=True, first_token=False)
    whole = wf.explain(shared("llama"), PAIRS[0], processor=tokenizer(), span=True)
    assert without.scores[0] == 0 and np.array_equal(without.scores[1:], whole.scores[1:])
    assert without.checks["first_token_share"] == whole.checks["first_token_share"] > 0
    chosen = wf.recommend(shared("llama"), PAIRS, methods=["attn_lrp"], spaces=["attention"], units="word", **how)
    wf.explain(shared("llama"), PAIRS[0], processor=tokenizer(), span=True, units="word", **chosen.best)
    checked = wf.check(shared("llama"), PAIRS[:1], checks=["sinks", "class_dependence"], **how)
    assert {finding.check for finding in checked.findings} == {"sinks", "class_dependence"}
