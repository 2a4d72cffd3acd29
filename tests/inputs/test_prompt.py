"""Models that are called from outside: any function of prompts and answers, explained by the words of the prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from whyformer.errors import BadInput, ModelFailed, NonFinite, NothingCaptured, NotOffered
from whyformer.inputs.prompt import changed
from whyformer.inputs.units import members, sentences, token_sentences, words
from whyformer.run import session

WEIGHTS = {"France": 1.5, "capital": 0.5, "Berlin": -0.75, "…": 0.125}
PAIR = ("The capital of France. Berlin is elsewhere! Rivers flow.", " Paris")


class Recorded:
    """Each word of the table that is in the prompt adds its weight, once."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.most = 0

    def __call__(self, prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
        self.prompts += prompts
        self.most = max(self.most, len(prompts))
        pairs = zip(prompts, answers, strict=True)
        return [-4.0 - len(a) / 8 + sum(w for word, w in WEIGHTS.items() if word in p) for p, a in pairs]


VALUE = -4.0 - 6 / 8 + 1.5 + 0.5 - 0.75


@pytest.fixture
def model() -> Recorded:
    return Recorded()


def test_words_score_what_the_answer_loses_without_them(model: Recorded) -> None:
    explanation = wf.explain(model, PAIR)
    assert explanation.method == "occlusion", "the default, since perturbation alone is possible"
    expected = {label: WEIGHTS.get(label, 0.0) for label in explanation.units.labels}
    assert dict(explanation.ranked()) == pytest.approx(expected, abs=1e-5)
    assert explanation.value == pytest.approx(VALUE, abs=1e-5)
    assert (explanation.scalar, str(explanation.target)) == ("log_probability", " Paris")
    assert explanation.units.text == PAIR[0] and list(explanation.units.spans or ()) == words(PAIR[0])
    assert explanation.options["replace"] == "delete"
    assert explanation.cost.forwards == len(model.prompts) == len(explanation.units) + 1
    for how in ({"units": "word"}, {"span": True}):  # what is explained anyway
        same = wf.explain(model, PAIR, **how)
        assert same.units == explanation.units and np.array_equal(same.scores, explanation.scores)


def test_a_part_of_the_answer_is_explained_after_the_part_before_it(model: Recorded) -> None:
    part = wf.explain(model, (PAIR[0], " Paris. Not Berlin."), span=(8, 19))
    assert part.target.label == "Not Berlin." and {text[-8:] for text in model.prompts} == {" Paris. "}
    assert part.value == pytest.approx(VALUE - 5 / 8, abs=1e-5)
    by_text = wf.explain(model, (PAIR[0], " Paris. Not Berlin."), span="Not Berlin.")
    assert np.array_equal(by_text.scores, part.scores)
    assert dict(part.ranked())["France"] == pytest.approx(1.5, abs=1e-5)


@pytest.mark.parametrize(
    ("units", "labels", "scores"),
    [
        ("sentence", ["The capital of France.", "Berlin is elsewhere!", "Rivers flow."], [2.0, -0.75, 0.0]),
        ([(4, 11), (15, 21)], ["capital", "France"], [0.5, 1.5]),
    ],
)
def test_sentences_and_stretches_of_ones_own(
    model: Recorded, units: Any, labels: list[str], scores: list[float]
) -> None:
    explanation = wf.explain(model, PAIR, units=units, method="occlusion")
    assert list(explanation.units.labels) == labels
    np.testing.assert_allclose(explanation.scores, scores, atol=1e-5)
    assert len(model.prompts) == len(labels) + 1


def test_something_else_may_stand_in_place_of_a_word(model: Recorded) -> None:
    explanation = wf.explain(model, PAIR, method="occlusion", replace="…")
    assert dict(explanation.ranked())["France"] == pytest.approx(1.5 - 0.125, abs=1e-5)
    assert dict(explanation.ranked())["of"] == pytest.approx(-0.125, abs=1e-5)
    assert "The capital … France. Berlin is elsewhere! Rivers flow." in model.prompts
    assert explanation.options["replace"] == "…"


def test_inputs_together_are_as_alone_also_of_an_object_that_holds_a_model(model: Recorded) -> None:
    model.model = torch.nn.Linear(1, 1)  # type: ignore[attr-defined]
    pairs = [PAIR, ("France", " x"), ("Neither here nor there.", " longer answer")]
    for pair, explanation in zip(pairs, wf.explain(model, pairs, method="occlusion"), strict=True):
        alone = wf.explain(model, pair, method="occlusion")
        np.testing.assert_array_equal(explanation.scores, alone.scores)
        assert (explanation.value, explanation.target) == (alone.value, alone.target)


def test_other_scalars_are_made_of_the_log_probability(model: Recorded) -> None:
    scalars = {"probability": math.exp(VALUE), "log_odds": VALUE - math.log1p(-math.exp(VALUE))}
    for scalar, expected in scalars.items():
        assert wf.explain(model, PAIR, scalar=scalar).value == pytest.approx(expected, rel=1e-5)


def test_a_certain_answer_stays_finite() -> None:
    explanation = wf.explain(lambda prompts, answers: [0.0 if "a" in p else -2.0 for p in prompts], ("a b", " c"))
    np.testing.assert_allclose(explanation.scores, [2.0, 0.0], atol=1e-5)
    assert explanation.value == pytest.approx(0.0, abs=1e-6)


def test_methods_are_compared_and_every_text_is_asked_once(model: Recorded, tmp_path: Path) -> None:
    pairs = [PAIR, ("A river. France, not Berlin. The capital!", " Paris")]
    how: dict[str, Any] = {"method": ["occlusion", "raw_attention"], "units": "sentence", "metric": ["aopc"]}
    comparison = wf.compare(model, pairs, cache=tmp_path, **how)
    assert len(model.prompts) == len(set(model.prompts)) <= 2 * 2**3
    assert comparison.replacement == "delete" and "called remotely" in comparison.failures["raw_attention"]
    # Sentences go by their scores: 2.0, then 0.0, then -0.75; at 0, 5, …, 100 %, rounded up.
    falls = [0.0] + [2.0] * 6 + [2.0] * 7 + [1.25] * 7
    assert comparison.values["aopc"]["occlusion"][0] == pytest.approx(np.mean(falls), abs=1e-4)
    assert comparison["occlusion"].scores["aopc"].mean > comparison["random"].scores["aopc"].mean
    assert comparison.value == "log-probability of the answer"
    other = wf.compare(lambda p, a: [-1.0 - 0.01 * len(x) for x in p], pairs, cache=tmp_path, **how)
    assert other.values["aopc"] != comparison.values["aopc"], "a cache knows one function from another"


def test_pictures_show_the_words_in_the_prompt(
    model: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explanation = wf.explain(model, PAIR)
    explanation.show()
    shown = capsys.readouterr().out
    assert PAIR[0] in shown and "log-probability of this answer" in " ".join(shown.split())
    assert "prediction" not in shown, "what the model would say itself was not asked"
    assert "elsewhere" in explanation.to_html()
    explanation.save(tmp_path / "why.json")
    assert wf.load(tmp_path / "why.json").units == explanation.units


def test_progress_is_shown_for_one_prompt(model: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[tuple[str, int]] = []

    def bar(steps: Sequence[Any], label: str, after: float) -> Sequence[Any]:
        bars.append((label, len(steps)))
        return steps

    monkeypatch.setattr(session, "_bar", bar)
    explanation = wf.explain(model, PAIR, progress=True, batch_size=2)
    assert bars == [("masking", math.ceil(len(explanation.units) / 2))]
    assert model.most == 2
    bars.clear()
    wf.explain(model, [PAIR, PAIR], progress=True)
    assert bars == [("occlusion", 2)], "of several prompts each is a step"


def test_the_check_up_says_what_cannot_be_known_of_it(model: Recorded) -> None:
    checked = wf.check(model, [PAIR, ("France is far.", " x")], checks=["randomisation", "sinks", "invariance"])
    notes = {finding.check: finding.text for finding in checked.findings if finding.level == "note"}
    assert "no weights" in notes["randomisation"]
    assert {"sinks", "invariance"} <= {finding.check for finding in checked.findings if finding.level == "ok"}


# What is refused


@pytest.mark.parametrize("method", ["generic_attention", "saliency", "decompx"])
def test_what_needs_to_look_inside_says_what_does_not(model: Recorded, method: str) -> None:
    with pytest.raises(
        (NotOffered, NothingCaptured), match=r"(called remotely|asked from outside).*perturbation method: occlusion"
    ):
        wf.explain(model, PAIR, method=method)


@pytest.mark.parametrize(
    ("inputs", "how", "error", "words"),
    [
        ("a prompt alone", {}, BadInput, r"\(prompt, answer\).*generate="),
        (("a", "b", "c"), {}, BadInput, r"\(prompt, answer\)"),
        (("prompt", ""), {}, BadInput, "answer is empty"),
        (("  ", " x"), {}, BadInput, "has no words"),
        ([PAIR, (" ", "x")], {}, BadInput, r"inputs\[1\].*has no words"),
        (PAIR, {"units": "paragraph"}, BadInput, "units='paragraph'.*'sentence'"),
        (PAIR, {"units": []}, BadInput, "units="),
        (PAIR, {"units": [(0, 500)]}, BadInput, r"units\[0\] = \(0, 500\): the text has"),
        (PAIR, {"units": [(3, 3)]}, BadInput, "the text has"),
        (PAIR, {"units": [(0, 5), (3, 8)]}, BadInput, "overlap"),
        (PAIR, {"target": " Rome"}, BadInput, "target=' Rome'.*Omit target="),
        (PAIR, {"method": "occlusion", "replace": "mask"}, BadInput, "replace='mask'.*'delete'"),
        (PAIR, {"method": "occlusion", "replace": 103}, BadInput, "replace=103"),
        (PAIR, {"processor": str}, BadInput, "processor="),
        (PAIR, {"choices": [" Paris", " Rome"]}, NotOffered, "choices"),
        (PAIR, {"span": (0, 9)}, BadInput, r"\(0, 9\).*the text has"),
        (PAIR, {"span": "Rome"}, BadInput, "does not contain it"),
        ("a prompt", {"generate": {"max_new_tokens": 3}}, NotOffered, "a number of tokens"),
        ("a prompt", {"generate": 3}, NotOffered, r"no generate\(prompt, tokens\)"),
    ],
    ids=str,
)
def test_what_cannot_be_asked(model: Recorded, inputs: Any, how: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        wf.explain(model, inputs, **how)
    assert len(model.prompts) <= ("replace" in how)


@pytest.mark.parametrize(
    ("says", "error", "words"),
    [
        (lambda prompts, answers: [-1.0], BadInput, "returned 1 numbers for 2 prompts"),
        (lambda prompts, answers: [0.4] * len(prompts), BadInput, "returned 0.4.*never above 0.*logarithm"),
        (lambda prompts, answers: [math.nan] * len(prompts), NonFinite, "returned nan for ' b' after"),
        (lambda prompts, answers: [-math.inf] * len(prompts), NonFinite, "very low number"),
        (lambda prompts, answers: 1 / 0, ModelFailed, "ZeroDivisionError.*log-probability of ' b' after"),
        (lambda text: 0.0, BadInput, r"function of \(prompts, answers\).*CompletionServer"),
    ],
)
def test_functions_that_do_not_speak_the_protocol(says: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        wf.explain(says, [("a c", " b"), ("d", " b")])


# Texts with parts away

TEXT = 'He said "stop" (twice, loudly).\n\nThen: 3 cats. The end '


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        (["He"], 'said "stop" (twice, loudly).\n\nThen: 3 cats. The end '),
        (["said", "stop"], 'He "" (twice, loudly).\n\nThen: 3 cats. The end '),
        (["(", "twice", ","], 'He said "stop" loudly).\n\nThen: 3 cats. The end '),
        (["loudly"], 'He said "stop" (twice,).\n\nThen: 3 cats. The end '),
        (["Then", ":"], 'He said "stop" (twice, loudly).\n\n3 cats. The end '),
        (["cats"], 'He said "stop" (twice, loudly).\n\nThen: 3. The end '),
        (["end"], 'He said "stop" (twice, loudly).\n\nThen: 3 cats. The '),
    ],
    ids=str,
)
def test_no_gap_tells_of_words_that_are_left_out(gone: list[str], left: str) -> None:
    spans = words(TEXT)
    assert changed(TEXT, spans, ["" if TEXT[a:b] in gone else None for a, b in spans]) == left


def test_sentences_leave_their_paragraphs_behind() -> None:
    text = "One. Two.\n\nThree. Four."
    spans = sentences(text)
    left = [changed(text, spans, ["" if i == gone else None for i in range(4)]) for gone in range(4)]
    assert left == ["Two.\n\nThree. Four.", "One.\n\nThree. Four.", "One. Two.\n\nFour.", "One. Two.\n\nThree."]
    assert changed(text, spans, [""] * 4) == ""
    assert changed(text, spans, ["", "…", None, ""]) == "…\n\nThree."
    assert changed(text, spans, [None] * 4) == text


# Words, sentences and chosen ranges of a text


def texts(text: str, spans: list[tuple[int, int]]) -> list[str]:
    return [text[start:end] for start, end in spans]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Dr. Smith went home. He slept.", ["Dr. Smith went home.", "He slept."]),
        ('"Really?" she said. "Yes."', ['"Really?" she said.', '"Yes."']),
        ("J. K. Rowling wrote 3.5 pages (p. 3). End", ["J. K. Rowling wrote 3.5 pages (p. 3).", "End"]),
        ("a line\nanother one\n\nlast", ["a line", "another one", "last"]),
        ("你好。再见！", ["你好。", "再见！"]),
        ("rome is in Italy. where is paris?", ["rome is in Italy.", "where is paris?"]),
        ("dr. smith said no. see fig. 3! then he slept", ["dr. smith said no.", "see fig. 3!", "then he slept"]),
        ("  ", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert texts(text, sentences(text)) == expected


def test_words_leave_spaces_out_and_tokens_go_where_most_of_them_is() -> None:
    text = "It's state-of-the-art, no."
    assert texts(text, words(text)) == ["It's", "state-of-the-art", ",", "no", "."]
    assert members([(0, 3), (3, 6), (6, 7), (7, 7)], [(0, 4), (4, 7)]) == [[0], [1, 2]]
    assert members([(0, 3)], []) == []


def test_sentences_of_an_answer_are_ranges_of_its_tokens() -> None:
    text, tokens = "He ran. She sat !<end>", ["He", " ran", ".", " She", " sat", " !", "<end>"]
    ends = [sum(map(len, tokens[: i + 1])) for i in range(len(tokens))]
    assert token_sentences(text, ends[:-1]) == ((0, 3), (3, 7))
    assert token_sentences("yes", []) == ((0, 1),)
    assert token_sentences("  ", [1]) == ((0, 2),), "all tokens belong somewhere"
