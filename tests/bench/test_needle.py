"""The needle bench: one sentence holds the answer, and ranks are counted as said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import whyformer as wf
from bench import smollm2
from bench.needle import FACTS, Case, case_of, caused, explained, judged
from bench.needle_report import merged, report
from whyformer.inputs.chat import sentences
from whyformer.results.types import Cost, Explanation, Target, Units


class Words:
    """Splits at spaces: as much of a tokenizer as writing a case takes."""

    def __call__(self, text: str) -> dict[str, list[str]]:
        return {"input_ids": text.split()}

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return f"<user>\n{messages[0]['content']}<end>\n<assistant>\n"


@pytest.mark.parametrize(("number", "chat"), [(0, True), (1, False)])
def test_one_sentence_holds_the_answer(number: int, chat: bool) -> None:
    case = case_of(Words(), 0, number, chat)
    passage = case.prompt[slice(*case.passage)]
    spans = sentences(case.prompt)
    needle = case.prompt[slice(*case.needle)]
    assert case.needle in spans and needle.endswith(f" is {case.number}.")
    facts = [sentence for sentence in passage.split(". ") if " is " in sentence]
    assert len(facts) == FACTS
    assert [case.number[0]] == [f.split()[-1][0] for f in facts if f.split()[-1][0] == case.number[0]]
    assert case.prompt.endswith(needle.removesuffix(f"{case.number}."))  # the begun answer is the needle's own words
    assert case.prompt.count(case.number) == 1
    assert case.other in passage and case.other[0] != case.number[0]
    assert case.with_number("0000").count("0000.") == 1 and case.number not in case.with_number("0000")


LETTERS = Case("A b. C d. E f. G", (0, 14), (5, 9), "d", "f")  # three sentences, and what the prompt ends with


def scored(scores: list[float], spans: tuple[tuple[int, int], ...]) -> Explanation:
    count = len(scores)
    units = Units(("x",) * count, (False,) * count, ("text",) * count, spans=spans)
    at = Target(0)
    return Explanation(np.array(scores, np.float32), units, at, "logit", 1.0, at, "attn_lrp", cost=Cost(1.0, 1.0))


def test_ranks() -> None:
    """Among the passage, among all, and both again without the first token, which the first sentence begins with."""
    spans = ((0, 1), (1, 4), (5, 6), (6, 9), (10, 11), (11, 14), (15, 16))
    row = judged(LETTERS, scored([9.0, 0.0, 2.0, 1.0, 3.0, -3.0, 5.0], spans))
    assert row["ranks"]["sum"] == [2, 3, 1, 2]
    assert row["ranks"]["max"] == [3, 4, 2, 3]
    assert row["ranks"]["positive"] == [3, 4, 2, 3]  # of two that are equal, the other stands above
    assert row["first_token"] == pytest.approx(9 / 23)


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    def row(number: int, rank: int, method: str) -> dict[str, Any]:
        said = {"ranks": {"sum": [rank] * 4, "max": [1] * 4}, "first_token": 0.25, "passes": [1.0, 1.0]}
        case = {"case": number, "tokens": 230, "right": True, "sentences": 4, "methods": {method: said}}
        return case | {"position": {"first": number == 0, "last": False}}

    rows = [row(0, 1, "a"), row(1, 2, "a"), row(1, 1, "b"), {"case": 2, "tokens": 230, "right": False}]
    assert [len(each.get("methods", ())) for each in merged(rows)] == [1, 2, 0]
    report(rows)
    printed = capsys.readouterr().out
    assert "3 tried, 2 answered" in printed
    assert "| b | 1 + 1 | 1 | 100.0% [20.7%, 100.0%] | 100.0% |" in printed
    assert "| a | 1 + 1 | 2 | 50.0% [9.5%, 90.5%] | 100.0% |" in printed
    assert "| the first sentence | 0 | 2 | 50.0%" in printed


def test_smollm2_is_explained_by_the_needle() -> None:
    if complaint := smollm2.missing():
        pytest.skip(complaint)
    model, tokenizer = smollm2.load()
    cases = [case_of(tokenizer, 0, number, True) for number in range(3)]
    answered = [case for case in cases if caused(model, tokenizer, case)]
    assert len(answered) >= 2
    explainer = wf.Explainer(model, tokenizer)
    for case in answered:
        assert explained(explainer, tokenizer, case, [["attn_lrp"]])["attn_lrp"]["ranks"]["sum"][0] == 1
