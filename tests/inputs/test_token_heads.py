"""Heads of language models on raw texts: what is explained unasked, held to plain forwards of the same model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import seeded
from tests.models.hf import ENCODER
from tests.support.processors import PLACES, in_bytes, pair_tokenizer
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.inputs.answers import LONGEST
from whyformer.views.header import answer_words, is_predicted, predicted

ENTITIES = ("O", "B-PER", "I-PER", "B-LOC")
QUESTION = ("where is anna", "anna lives in paris and bob works in rome .")
SHORT = ("who works", "bob works in rome .")
TEXT, SHORT_TEXT = "anna lives in paris and bob works in rome .", "bob works ."
DECODER = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2}


@cache
def model_for(head: str, **config: Any) -> nn.Module:
    import transformers

    family = config.pop("family", "Bert")
    names = config.pop("names", None)
    named: dict[str, Any] = {}
    if names is not None:
        numbers = {name: i for i, name in enumerate(names)}
        named = {"num_labels": len(names), "id2label": dict(enumerate(names)), "label2id": numbers}
    sizes = (ENCODER if family == "Bert" else DECODER) | {"vocab_size": len(PLACES)} | config | named
    cls = getattr(transformers, f"{family}For{head}")
    config_class = getattr(transformers, "BertConfig" if family == "Bert" else "GPT2Config")
    return seeded(lambda: cls._from_config(config_class(**sizes), attn_implementation="eager"))


def encoded(*texts: Any) -> dict[str, Tensor]:
    return dict(pair_tokenizer()(*texts, return_tensors="pt"))


@dataclass(frozen=True)
class Head:
    """A head with two inputs of different length. place: a number of a plain forward, where it is read, its label."""

    name: str
    model: Callable[[], nn.Module]
    inputs: tuple[Any, Any]
    tensors: Callable[[Any], dict[str, Tensor]]
    place: Callable[[Any, dict[str, Tensor]], tuple[Callable[[Any], Tensor], list[int], str]]
    scalar: str = "logit"


def best_span(output: Any, tensors: dict[str, Tensor]) -> tuple[int, int]:
    """By looking at all."""
    context = (tensors["token_type_ids"][0] == 1).nonzero()[:-1, 0].tolist()
    spans = [(i, j) for i in context for j in context if i <= j < i + LONGEST]
    return max(spans, key=lambda span: float(output.start_logits[0, span[0]] + output.end_logits[0, span[1]]))


def words(tensors: dict[str, Tensor], start: int, end: int) -> str:
    return " ".join(PLACES[i] for i in tensors["input_ids"][0, start : end + 1].tolist())


def at_answer(output: Any, tensors: dict[str, Tensor]) -> Any:
    start, end = best_span(output, tensors)
    label = words(tensors, start, end)
    return lambda o: o.start_logits[0, start] + o.end_logits[0, end], [start, end], label


def surely(output: Any, tensors: dict[str, Tensor]) -> Any:
    _, (start, end), label = at_answer(output, tensors)
    return lambda o: o.start_logits[0].softmax(0)[start] * o.end_logits[0].softmax(0)[end], [start, end], label


def at_entity(output: Any, tensors: dict[str, Tensor]) -> Any:
    probability = output.logits[0].softmax(-1)
    inside = range(1, probability.shape[0] - 1)
    places = [i for i in inside if int(probability[i].argmax())] or list(inside)
    index, place = max(((c, i) for i in places for c in range(1, 4)), key=lambda p: float(probability[p[1], p[0]]))
    return lambda o: o.logits[0, place, index], [place], ENTITIES[index]


def at_mask(output: Any, tensors: dict[str, Tensor]) -> Any:
    place = tensors["input_ids"][0].tolist().index(4)
    index = int(output.logits[0, place].argmax())
    return lambda o: o.logits[0, place, index], [place], PLACES[index]


def at_row(row: int, names: Any = None) -> Any:
    def place(output: Any, tensors: dict[str, Tensor]) -> Any:
        best = int(output.logits[0].argmax())
        read = row % tensors["input_ids"].shape[1]
        return lambda o: o.logits[0, best], [read], names[best] if names else f"LABEL_{best}"

    return place


CHOICES = (("anna lives in", ["paris and works .", "rome .", "bob"]), ("bob", ["works", "works in rome and paris ."]))


def chosen(raw: Any) -> dict[str, Tensor]:
    """The best choice by the plain forward of all of them, as one row."""
    prompt, choices = raw
    many = pair_tokenizer()([prompt] * len(choices), choices, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model_for("MultipleChoice")(**{k: v[None] for k, v in many.items()}).logits[0]
    return encoded(prompt, choices[int(logits.argmax())])


def best_choice(output: Any, tensors: dict[str, Tensor]) -> Any:
    second = (tensors["token_type_ids"][0] == 1).nonzero()[:-1, 0].tolist()
    return lambda o: o.logits[0, 0], [0], words(tensors, second[0], second[-1])


MASKED = ("anna lives in [MASK] and bob works in rome .", "[MASK] works .")
qa = lambda: model_for("QuestionAnswering", num_labels=2)  # noqa: E731
HEADS = [
    Head("answer", qa, (QUESTION, SHORT), lambda raw: encoded(*raw), at_answer),
    Head("answer_probability", qa, (QUESTION, SHORT), lambda raw: encoded(*raw), surely, "probability"),
    Head("entity", lambda: model_for("TokenClassification", names=ENTITIES), (TEXT, SHORT_TEXT), encoded, at_entity),
    Head("mask", lambda: model_for("MaskedLM"), MASKED, encoded, at_mask),
    Head("choice", lambda: model_for("MultipleChoice"), CHOICES, chosen, best_choice),
    Head("regression", lambda: model_for("SequenceClassification", num_labels=1, problem_type="regression"),
         (TEXT, SHORT_TEXT), encoded, at_row(0, names=["score"])),
    Head("decoder", lambda: model_for("SequenceClassification", family="GPT2", num_labels=3, pad_token_id=0),
         (TEXT, SHORT_TEXT), encoded, at_row(-1)),
    Head("decoder_answer", lambda: model_for("QuestionAnswering", family="GPT2"), (QUESTION, SHORT),
         lambda raw: encoded(*raw), at_answer),
]  # fmt: skip


def plain(head: Head, tensors: dict[str, Tensor], **instead: Tensor) -> Any:
    """The model as it is."""
    given = tensors | instead
    if head.name == "choice":
        given = {k: v[:, None] for k, v in given.items()}
    return head.model()(**given, output_attentions=True)


def by_formula(head: Head, tensors: dict[str, Tensor], score: Any, rows: list[int], method: str) -> Tensor:
    ids = tensors["input_ids"]
    if method == "occlusion":
        with torch.no_grad():
            value = score(plain(head, tensors))
            changed = [torch.where(torch.arange(ids.shape[1]) == i, 4, ids) for i in range(ids.shape[1])]
            return torch.stack([value - score(plain(head, tensors, input_ids=other)) for other in changed])
    output = plain(head, tensors)
    slopes = torch.autograd.grad(score(output), output.attentions)
    relevance = torch.eye(ids.shape[1])
    for attention, slope in zip(output.attentions, slopes, strict=True):
        relevance = relevance + (attention * slope)[0].clamp(min=0).mean(0) @ relevance
    return relevance[rows].mean(0).detach()


def explained(head: Head, inputs: Any, method: str = "generic_attention") -> Any:
    return wf.explain(head.model(), inputs, processor=pair_tokenizer(), method=method, scalar=head.scalar)


@pytest.mark.parametrize("method", ["generic_attention", "occlusion"])
@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.name)
def test_value_and_scores_are_those_of_a_plain_forward(head: Head, method: str) -> None:
    """In a batch with padding, too: each input is what its own formula says."""
    batch = explained(head, list(head.inputs), method)
    for raw, result in zip(head.inputs, batch, strict=True):
        tensors = head.tensors(raw)
        with torch.no_grad():
            output = plain(head, tensors)
        score, rows, label = head.place(output, tensors)
        assert result.value == pytest.approx(float(score(output)), abs=1e-5)
        assert str(result.target) == label
        if head.name != "entity":  # the model may give every token an O
            assert str(result.prediction) == label
        wanted = by_formula(head, tensors, score, rows, method).numpy()
        assert np.abs(result.scores - wanted).max() <= 1e-4 * np.abs(wanted).max() + 1e-6
        assert np.abs(explained(head, raw, method).scores - result.scores).max() <= 1e-5  # alone


@pytest.mark.parametrize("head", [h for h in HEADS if h.name in {"answer", "entity", "mask"}], ids=lambda h: h.name)
def test_tensors_are_explained_as_their_texts(head: Head) -> None:
    """With any padding, and of pairs without token types the part after the last separator is the context."""
    tensors = head.tensors(head.inputs[1])
    tensors.pop("token_type_ids")
    ids = torch.nn.functional.pad(tensors["input_ids"], (0, 3))
    mask = torch.nn.functional.pad(tensors["attention_mask"], (0, 3))
    short, longer = (
        wf.explain(head.model(), given, processor=pair_tokenizer())[0]
        for given in (tensors, {"input_ids": ids, "attention_mask": mask})
    )
    assert longer.value == pytest.approx(short.value, abs=1e-5)
    assert (longer.target, len(longer.scores)) == (short.target, tensors["input_ids"].shape[1])
    assert np.abs(longer.scores - short.scores).max() < 1e-5
    text = explained(head, head.inputs[1])
    assert short.units.labels == text.units.labels
    if head.name != "answer":  # whose value depends on the token types
        assert (short.value, short.target) == (pytest.approx(text.value, abs=1e-5), text.target)


# Question answering


def answer(target: Any = None, inputs: Any = QUESTION, **how: Any) -> Any:
    return wf.explain(qa(), inputs, processor=pair_tokenizer(), target=target, method="occlusion", **how)


def test_an_answer_may_be_named(tmp_path: Path) -> None:
    tensors = encoded(*QUESTION)
    with torch.no_grad():
        output = qa()(**tensors)
    starts, ends = output.start_logits[0], output.end_logits[0]
    spans = {"bob works": (10, 11), "Paris": (8, 8)}
    for text, (start, end) in spans.items():
        named = answer(text)
        assert named.target == wf.Target(0, words(tensors, start, end), position=start, end=end)
        assert named.value == pytest.approx(float(starts[start] + ends[end]), abs=1e-5)
        assert named.prediction == answer().target
        assert answer(named.target).value == named.value  # what was explained once can be asked for again
        assert wf.load(named.save(tmp_path / "why.json")).target == named.target
    assert answer(wf.Target(0, position=7)).value == pytest.approx(float(starts[7]), abs=1e-5)
    assert answer(wf.Target(1, position=7)).value == pytest.approx(float(ends[7]), abs=1e-5)
    last = answer("end")
    assert last.value == pytest.approx(float(ends[answer().target.end]), abs=1e-5)
    assert str(last.target).startswith("end of ")
    # Of several places the best is the answer.
    places = [i for i, token in enumerate(tensors["input_ids"][0].tolist()) if PLACES[token] == "in"]
    assert answer("in").value == pytest.approx(float((starts + ends)[places].max()), abs=1e-5)
    # Of tensors, an answer is found by its tokens.
    named = wf.explain(qa(), tensors, processor=pair_tokenizer(), target="bob works")[0]
    assert is_predicted(named) == (named.prediction.label == "bob works")
    assert (named.target.position, named.target.end) == (10, 11)
    bare = wf.explain(qa(), tensors, target=wf.Target(0, position=-4, end=-2))[0]
    assert (str(bare.target), bare.target.position, bare.target.end) == ("tokens 12 to 14", 12, 14)


@pytest.mark.parametrize(
    ("target", "inputs", "says"),
    [
        ("london", QUESTION, "is not in the context"),
        (("paris", "rome"), QUESTION, "are the answer's text"),
        (3, QUESTION, "are the answer's text"),
        (wf.Target(0, position=9, end=8), QUESTION, "before it starts"),
        (wf.Target(0, position=99), QUESTION, "the text has 16 tokens"),
        (None, "anna lives in paris", r"\('question', 'context'\)"),
    ],
)
def test_no_answer_is_said_so(target: Any, inputs: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        answer(target, inputs)


def test_a_token_that_is_deleted_takes_the_answer_along() -> None:
    """Each variant is one token shorter, and the answer stands where it moved to."""
    result, tensors = answer("bob works", replace="delete"), encoded(*QUESTION)
    for gone, (start, end) in {2: (9, 10), 11: (10, 10), 13: (10, 11)}.items():
        rest = [i for i in range(tensors["input_ids"].shape[1]) if i != gone]
        with torch.no_grad():
            shorter = qa()(**{k: v[:, rest] for k, v in tensors.items()})
        without = float(shorter.start_logits[0, start] + shorter.end_logits[0, end])
        assert result.scores[gone] == pytest.approx(result.value - without, abs=1e-5)


def test_an_answer_inside_words() -> None:
    """By its characters: what stands in the context is the label, not the pieces joined."""
    model, context = model_for("QuestionAnswering", num_labels=2, vocab_size=256), "Anna Müller lives in New-York."
    for target, label in {"müller lives": "Müller lives", "York": "York"}.items():
        result = wf.explain(model, ("lives", context), processor=in_bytes(), target=target)
        assert result.target.label == label


def test_answers_found_by_beams_are_refused() -> None:
    import transformers

    config = transformers.XLMConfig(emb_dim=32, n_layers=1, n_heads=2, vocab_size=len(PLACES), pad_index=0)
    model = seeded(lambda: transformers.XLMForQuestionAnswering(config))
    with pytest.raises(NotOffered, match="ForQuestionAnsweringSimple"):
        wf.explain(model, QUESTION, processor=pair_tokenizer(), method="occlusion")


# Labels of tokens


def entity(target: Any = None, **how: Any) -> Any:
    model = model_for("TokenClassification", names=ENTITIES)
    return wf.explain(model, TEXT, processor=pair_tokenizer(), target=target, **how)


def test_a_label_is_explained_where_it_is_strongest() -> None:
    probability = model_for("TokenClassification", names=ENTITIES)(**encoded(TEXT)).logits[0].detach().softmax(-1)[1:-1]
    for target, classes in {"B-LOC": [3], "per": [1, 2], 2: [2], ("PER", "O"): [1, 2]}.items():
        place, index = divmod(int(probability[:, classes].argmax()), len(classes))
        result = entity(target)
        assert (result.target.position, result.target.index) == (place + 1, classes[index])
    assert entity(("PER", "O")).target.versus == 0
    assert entity(wf.Target(3, position=4)).target == wf.Target(3, "B-LOC", position=4)
    with pytest.raises(UnknownName, match="B-LOC"):
        entity("ORG")
    # The choice of a token is said; where everything is outside the nearest is explained.
    unasked = entity()
    assert any(f"token {unasked.target.position}, " in w and "other than O" in w for w in unasked.warnings)
    assert not any("for another" in w for w in entity(wf.Target(3, position=4)).warnings)
    model = model_for("TokenClassification", names=("O", "B-PER"), num_labels=2)
    with torch.no_grad():
        model.classifier.bias[0] = 50.0  # type: ignore[union-attr, operator]
    result = wf.explain(model, TEXT, processor=pair_tokenizer())
    assert str(result.target) == "B-PER" and any("the model gives none" in w for w in result.warnings)


# Masks and choices


def test_several_masks_are_several_explanations() -> None:
    model, text = model_for("MaskedLM"), "[MASK] lives in [MASK] ."
    logits = model(**encoded(text)).logits[0].detach()
    results = wf.explain(model, text, processor=pair_tokenizer())
    assert [e.target.position for e in results] == [1, 4]
    assert [e.value for e in results] == pytest.approx(logits[[1, 4]].max(-1).values.tolist(), abs=1e-5)
    both = wf.explain(model, [text, MASKED[1]], processor=pair_tokenizer(), target="rome")
    assert [[str(e.target) for e in each] for each in both] == [["rome", "rome"], ["rome"]]
    assert both[0][1].value == pytest.approx(float(logits[4, PLACES.index("rome")]), abs=1e-5)


def test_a_text_without_a_mask_is_shown_one() -> None:
    model = model_for("MaskedLM")
    words = r"replace the word to predict by \[MASK\].*'anna lives in \[MASK\]'.*Target\(token, position"
    with pytest.raises(BadInput, match=words) as refused:
        wf.explain(model, "anna lives in paris", processor=pair_tokenizer())
    advised = str(refused.value).split("'")[1]
    assert wf.explain(model, advised, processor=pair_tokenizer()).target.position == 4
    with pytest.raises(BadInput, match="processor=<its tokenizer>"):
        wf.explain(model, encoded("anna lives in paris"))


def test_a_choice_may_be_named() -> None:
    model, raw = model_for("MultipleChoice"), CHOICES[0]
    many = pair_tokenizer()([raw[0]] * 3, raw[1], padding=True, return_tensors="pt")
    logits = model(**{k: v[None] for k, v in many.items()}).logits[0].tolist()
    for target in (1, "rome .", wf.Target(0, "rome .")):
        result = wf.explain(model, raw, processor=pair_tokenizer(), target=target)
        assert (str(result.target), result.value) == ("rome .", pytest.approx(logits[1], abs=1e-5))
    tensors = wf.explain(model, {k: v[None] for k, v in many.items()}, processor=pair_tokenizer(), target=1)[0]
    assert (str(tensors.target), tensors.value) == ("choice 1", pytest.approx(result.value, abs=1e-5))
    assert tensors.units.labels == result.units.labels
    with pytest.raises(UnknownName, match="rome"):
        wf.explain(model, raw, processor=pair_tokenizer(), target="london")
    with pytest.raises(BadInput, match=r"\(prompt, \[choice, choice, …\]\)"):
        wf.explain(model, "anna lives in", processor=pair_tokenizer())
    with pytest.raises(NotOffered, match="depends on the tokens of all others"):
        wf.explain(model, raw, processor=pair_tokenizer(), scalar="probability")


def test_choices_that_look_at_each_other_are_refused() -> None:
    import transformers

    class Compared(transformers.BertForMultipleChoice):  # type: ignore[misc]
        """Each logit is what it is above the mean of all."""

        def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
            logits: Tensor = super().forward(input_ids, attention_mask, token_type_ids).logits
            return logits - logits.mean(1, keepdim=True)

    model = seeded(lambda: Compared(transformers.BertConfig(**ENCODER)))
    with pytest.raises(NotOffered, match="attend to each other"):
        wf.explain(model, CHOICES[0], processor=pair_tokenizer())


def test_an_answer_says_how_likely_it_is_and_what_comes_next() -> None:
    tensors = encoded(*QUESTION)
    with torch.no_grad():
        output = qa()(**tensors)
    likely_NN = output.start_logits[0].softmax(0)[:, None] * output.end_logits[0].softmax(0)
    start, end = best_span(output, tensors)
    said = answer().prediction
    assert said.label == words(tensors, start, end) and said.probability == pytest.approx(float(likely_NN[start, end]))
    (other,) = said.next
    assert other.label != said.label and 0 < other.probability < said.probability
    assert predicted(said).startswith(f"{said.label} (") and f", next {other.label} (" in predicted(said)


def test_a_choice_says_how_likely_it_is_and_what_comes_next() -> None:
    (prompt, choices), model = CHOICES[0], model_for("MultipleChoice")
    many = pair_tokenizer()([prompt] * len(choices), list(choices), return_tensors="pt", padding=True)
    with torch.no_grad():
        likely = model(**{name: tensor[None] for name, tensor in many.items()}).logits[0].softmax(0)
    said = wf.explain(model, CHOICES[0], processor=pair_tokenizer()).prediction
    ranked = sorted(zip(likely.tolist(), choices, strict=True), reverse=True)
    known = [(said.probability, said.label), *((c.probability, c.label) for c in said.next)]
    assert [name for _, name in known] == [name for _, name in ranked]
    np.testing.assert_allclose([p for p, _ in known], [p for p, _ in ranked], atol=1e-5)


def test_a_number_is_what_is_said_first_and_has_no_probability() -> None:
    model = model_for("SequenceClassification", num_labels=1, problem_type="regression")
    explanation = wf.explain(model, TEXT, processor=pair_tokenizer())
    with torch.no_grad():
        value = float(model(**encoded(TEXT)).logits)
    assert explanation.prediction.probability is None
    name, _, told = answer_words(explanation).partition(" = ")
    assert name == "score" and float(told) == pytest.approx(value, rel=1e-3)
    for scalar in ("probability", "log_odds"):
        with pytest.raises(NotOffered, match="regression model"):
            wf.explain(model, TEXT, processor=pair_tokenizer(), scalar=scalar)


# Other verbs


@pytest.mark.parametrize("head", [h for h in HEADS if h.name in {"answer", "mask"}], ids=lambda h: h.name)
def test_comparisons_and_heads_are_of_the_same_number(head: Head) -> None:
    """The head scores of two inputs are the mean of each."""
    how: dict[str, Any] = {"processor": pair_tokenizer(), "progress": False}
    inputs = list(head.inputs)
    both, *each = (wf.head_importance(head.model(), x, **how).scores for x in (inputs, inputs[:1], inputs[1:]))
    assert np.isfinite(both).all() and both.any()
    assert np.allclose(both, (each[0] + each[1]) / 2, atol=1e-5)
    table = wf.compare(head.model(), inputs, method=["occlusion", "random"], **how)
    assert {"occlusion", "random"} <= {row.method for row in table.rows}
