"""Prompts with answers, as people give them (spaces, ends, positions, byte tokens), and citations."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import whyformer as wf
from tests.support import folders
from tests.support.language import model, tokenizer
from tests.support.processors import in_bytes
from whyformer.errors import BadInput, NotOffered, WhyformerError
from whyformer.inputs.units import PromptText, prompt_of
from whyformer.language.citations import documents_by_name
from whyformer.views.header import answer_words, explained, percent

PROMPT, ANSWER = "the capital of france is", "paris and the dog ran"


def ids(text: str) -> list[int]:
    return list(tokenizer()(text)["input_ids"])


def log_probability(lm: nn.Module, prompt: list[int], answer: list[int]) -> float:
    with torch.no_grad():
        logits = lm.eval()(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    return float(logits.log_softmax(1).gather(1, torch.tensor(answer)[:, None]).sum())


def ended() -> Any:
    """A tokenizer that puts an end behind every text."""
    from tokenizers.processors import TemplateProcessing

    tok = copy.deepcopy(tokenizer())
    tok.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    return tok


def test_a_part_of_an_answer_that_begins_with_spaces() -> None:
    lm = model("llama")
    part = wf.explain(lm, (PROMPT, "  " + ANSWER), processor=tokenizer(), span=(2, 7))
    assert part.target.label == "paris"
    assert part.value == pytest.approx(log_probability(lm, ids(PROMPT), ids("paris")), rel=1e-5)
    said = wf.explain(lm, (PROMPT, "  Yes . No ."), processor=tokenizer(), method="raw_attention")
    assert said.text == "  Yes . No ." and said.sentences == ((0, 2), (2, 4))


def test_an_end_stays_where_the_text_has_it() -> None:
    lm = model("llama")
    for tok, prompt, length in (
        (tokenizer(), PROMPT + " <eos>", 6), (ended(), PROMPT, 6), (ended(), PROMPT + " <eos>", 7),
    ):  # fmt: skip
        whole = wf.explain(lm, (prompt, ANSWER), processor=tok, span=True, method="raw_attention")
        read = tok(prompt)["input_ids"][:length]
        assert whole.value == pytest.approx(log_probability(lm, read, ids(ANSWER)), rel=1e-5)
        assert whole.prediction.label == ANSWER
        assert len(wf.explain(lm, prompt, processor=tok, generate=1, method="raw_attention")[0].scores) == length
    tok = copy.deepcopy(tokenizer())
    tok.chat_template = "{% for m in messages %}{{ m['content'] }} <eos>{% endfor %}"  # every turn is closed by one
    chat = [{"role": "user", "content": PROMPT}]
    assert len(wf.explain(lm, chat, processor=tok, generate=1, method="raw_attention")[0].scores) == 6


def test_positions_of_tensors_go_on_in_the_answer() -> None:
    lm, text = model("llama"), torch.tensor([[0, 0, *ids(PROMPT)]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1]])
    tensors = {"input_ids": text, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    said = wf.explain(lm, tensors, generate=3, method="input_x_gradient")[0]
    plain = wf.explain(lm, PROMPT, processor=tokenizer(), generate=3, method="input_x_gradient")
    np.testing.assert_allclose(np.nan_to_num(said.matrix), np.nan_to_num(plain.matrix), atol=1e-5)
    with pytest.raises(NotOffered, match="omit position_ids"):
        wf.explain(lm, tensors | {"position_ids": torch.arange(7)[None] + 7}, generate=3)


def test_what_is_written_after_tensors_is_read_like_any_text() -> None:
    tensors, how = {"input_ids": torch.tensor([ids(PROMPT)])}, {"generate": {"max_new_tokens": 3, "min_new_tokens": 3}}
    plain, said = (wf.explain(model("llama"), i, processor=tokenizer(), **how) for i in (PROMPT, tensors))
    assert said[0].text == plain.text and " " in plain.text
    whole = wf.explain(model("llama"), tensors, processor=tokenizer(), span=True, **how)[0]
    assert whole.target.label == plain.text


def test_what_is_drawn_depends_on_the_seed_and_nothing_else() -> None:
    lm, how = model("llama"), {"generate": {"do_sample": True, "max_new_tokens": 6}, "method": "raw_attention"}
    torch.manual_seed(3)
    before = torch.get_rng_state()
    texts = [wf.explain(lm, PROMPT, processor=tokenizer(), seed=seed, **how).text for seed in (1, 2, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    texts.append(wf.explain(lm, PROMPT, processor=tokenizer(), seed=1, **how).text)
    assert texts[0] == texts[2] == texts[3] != texts[1]


def test_a_position_says_which_of_several_tokens() -> None:
    lm, pair = model("llama"), (PROMPT, "the dog the cat")
    each = wf.explain(lm, pair, processor=tokenizer())
    again = wf.explain(lm, pair, processor=tokenizer(), target=each[2].target)
    assert again.value == pytest.approx(each[2].value) and len(again.scores) == len(each[2].scores)
    the, cat = ids("the cat")
    rather = wf.explain(lm, pair, processor=tokenizer(), target=wf.Target(the, versus=cat))
    logits = lm(input_ids=torch.tensor([ids(PROMPT)])).logits[0, -1]
    assert rather.value == pytest.approx((logits[the] - logits[cat]).item(), abs=1e-5)
    both = wf.explain(lm, [pair, pair], processor=tokenizer(), target=[None, None], method="raw_attention")
    assert [len(said) for said in both] == [4, 4]
    with pytest.raises(BadInput, match="every answer, or of none"):
        wf.explain(lm, [pair, pair], processor=tokenizer(), target=["dog", None])
    with pytest.raises(BadInput, match="no such token"):
        wf.explain(lm, pair, processor=tokenizer(), target=wf.Target(the, position=5))


@pytest.mark.parametrize(
    "inputs, how, message",
    [
        (PROMPT, {"generate": {"max_new_tokens": 0}}, "whole number from 1"),
        (PROMPT, {"generate": {"max_length": 999}}, "takes 256"),
        (PROMPT, {"generate": {"no_such_wish": 1}}, "no_such_wish"),
        (PROMPT, {"generate": {"return_dict_in_generate": True}}, "omit return_dict_in_generate"),
        (PROMPT, {"generate": {"num_return_sequences": 2, "do_sample": True}}, "num_return_sequences"),
        ((PROMPT, ANSWER), {"span": True, "choices": ["yes", "no"]}, "choices"),
        (PROMPT, {"choices": ["zebra", "no"]}, "no token for 'zebra'"),
        ((PROMPT, ANSWER), {"scalar": "cosine", "span": True}, "compare two inputs"),
        (PROMPT, {"target": ("paris and", "rome"), "span": (0, 3)}, "omit span="),
        (("the", ANSWER), {"span": True, "method": "occlusion", "replace": "delete"}, "follows nothing"),
    ],
)
def test_what_cannot_be_asked(inputs: Any, how: dict[str, Any], message: str) -> None:
    with pytest.raises(WhyformerError, match=message):
        wf.explain(model("llama"), inputs, processor=tokenizer(), **how)


def test_one_gradient_is_that_of_the_whole_answer_in_any_batch() -> None:
    how: dict[str, Any] = {"processor": tokenizer(), "method": "generic_attention", "one_pass": True}
    together, cut = (wf.explain(model("llama"), (PROMPT, ANSWER), batch_size=size, **how) for size in (None, 2))
    np.testing.assert_allclose(np.nan_to_num(cut.matrix), np.nan_to_num(together.matrix), atol=1e-6)
    assert all("one_pass" in " ".join(e.warnings) for e in cut)


def test_words_are_those_of_the_whole_answer() -> None:
    """While "he - she" is said it is two words, afterwards one: columns of the matrix stay with their words."""
    said = wf.explain(model("llama"), (PROMPT, " he-she ran home"), processor=tokenizer(), units="word")
    tokens = wf.explain(model("llama"), (PROMPT, " he-she ran home"), processor=tokenizer())
    assert said.units.labels[5:] == ("he-she", "ran")
    np.testing.assert_allclose(said.matrix[2, 5], tokens[2].scores[5:7].sum(), rtol=1e-4)
    assert np.isnan(said.matrix[2, 6])


@pytest.mark.parametrize("content", ["user", "assistant", " he said "])
def test_a_message_is_found_behind_its_heading(content: str) -> None:
    tok = copy.deepcopy(tokenizer())
    tok.chat_template = (
        "<|im_start|>system you are a helpful assistant <|im_end|>"
        "{% for m in messages %}<|im_start|>{{ m['role'] }} {{ m['content'] | trim }} <|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
    )
    messages = [{"role": "user", "content": content}, {"role": "tool", "content": content}]
    prompt = prompt_of(messages, tok)
    assert isinstance(prompt, PromptText)
    first = prompt.index("<|im_start|>user ") + len("<|im_start|>user ")
    second = prompt.index("<|im_start|>tool ") + len("<|im_start|>tool ")
    length = len(content.strip())
    assert prompt.parts == ((first, first + length, "user"), (second, second + length, "tool"))


def test_a_template_that_reads_what_is_said() -> None:
    tok = copy.deepcopy(tokenizer())
    tok.chat_template = (
        "{% for m in messages %}{% if 'he' not in m['content'] %}{{ raise_exception('no') }}{% endif %}"
        "<|im_start|>{{ m['content'] }}{% endfor %}"
    )
    prompt = prompt_of([{"role": "user", "content": "he said"}], tok)
    assert isinstance(prompt, PromptText) and prompt.parts == ((12, 19, "user"),)


def test_a_character_of_several_tokens_has_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written by the model or given: the same characters, the same value, the same words."""
    import transformers as t

    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    lm, tok, answer = t.LlamaForCausalLM(t.LlamaConfig(**size, vocab_size=256)).eval(), in_bytes(), "a 猫 😀"
    tokens = torch.tensor([tok(answer)["input_ids"]])
    monkeypatch.setattr(lm, "generate", lambda input_ids, **wishes: torch.cat([input_ids, tokens], 1))
    x = wf.Explainer(lm, tok)
    for span in ((2, 3), (4, 5)):
        written, same = x.explain("it is ", generate=99, span=span), x.explain(("it is ", answer), span=span)
        assert written.target.label == same.target.label and written.value == pytest.approx(same.value, rel=1e-5)
    written, same = x.explain("it is ", generate=99, units="word"), x.explain(("it is ", answer), units="word")
    assert written.units.labels == same.units.labels == ("it", "is", "a", "猫", "😀")
    np.testing.assert_allclose(np.nan_to_num(written.matrix), np.nan_to_num(same.matrix), atol=1e-5)


class PlainForCausalLM(nn.Module):
    """A language model of one's own, without a mask or with torch's."""

    def __init__(self, lm: nn.Module) -> None:
        super().__init__()
        self.lm = lm

    def forward(self, input_ids: torch.Tensor) -> Any:
        return self.lm(input_ids=input_ids).logits


class MaskedForCausalLM(PlainForCausalLM):
    def forward(self, input_ids: torch.Tensor, key_padding_mask: torch.Tensor | None = None) -> Any:
        mask = None if key_padding_mask is None else (~key_padding_mask).long()
        return self.lm(input_ids=input_ids, attention_mask=mask).logits


class LastForCausalLM(PlainForCausalLM):
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        return self.lm(input_ids=input_ids, attention_mask=attention_mask).logits[:, -1]


@pytest.mark.parametrize("kind", [PlainForCausalLM, MaskedForCausalLM])
def test_answers_of_several_lengths_by_a_model_of_ones_own(kind: type[PlainForCausalLM]) -> None:
    lm, pairs = model("llama"), [(PROMPT, ANSWER), ("the cat", "yes")]
    for one, (prompt, answer) in zip(wf.explain(kind(lm), pairs, processor=tokenizer(), span=True), pairs, strict=True):
        assert one.value == pytest.approx(log_probability(lm, ids(prompt), ids(answer)), rel=1e-5)


def test_a_model_that_goes_on_otherwise_is_read_as_a_whole() -> None:
    """Also where it is the tiny probability of an answer by which that is seen."""
    from transformers import LlamaForCausalLM

    class Forgetful(LlamaForCausalLM):  # type: ignore[misc]
        def forward(self, input_ids: Any, attention_mask: Any = None, past_key_values: Any = None,
                    use_cache: Any = None, **more: Any) -> Any:  # fmt: skip
            goes_on = past_key_values is not None and past_key_values.get_seq_length() > 0
            how = {"attention_mask": attention_mask, "past_key_values": past_key_values, "use_cache": use_cache}
            output = super().forward(input_ids=input_ids, **how, **more)
            output.logits = output.logits * (0.5 if goes_on else 1)
            return output

    plain, prompt = model("llama"), "the cat sat on the mat . he said yes . " + PROMPT
    lm = Forgetful(plain.config).eval()
    lm.load_state_dict(plain.state_dict())
    how: dict[str, Any] = {"method": "occlusion", "replace": 9, "span": True, "scalar": "probability", "batch_size": 4}
    one, other = (wf.explain(m, (prompt, ANSWER), processor=tokenizer(), **how) for m in (lm, plain))
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-2, atol=1e-3 * np.abs(other.scores).max())


def test_an_answer_needs_logits_at_each_of_its_tokens() -> None:
    with pytest.raises(NotOffered, match="Omit span="):
        wf.explain(LastForCausalLM(model("llama")), (PROMPT, ANSWER), processor=tokenizer(), span=True)


# Citations: scores are the explained sentence's, drops are what leaving a source out does.

DOCUMENTS = {"cats": "The cat sat on the mat . He said yes .", "dogs": "The big red dog ran home ."}
QUESTION, REPLY = "who ran home ?", "The dog ran home . It was red ."


def plain_tokenizer() -> Any:
    bare = copy.deepcopy(tokenizer())
    bare.chat_template = None
    return bare


def likely(lm: nn.Module, prompt: str, answer: str, start: int, end: int) -> float:
    """The log-probability of ``answer[start:end]`` after the prompt and the answer before it."""
    return log_probability(lm, ids(prompt) + ids(answer[:start]), ids(answer[start:end]))


@pytest.fixture(scope="module")
def cited() -> wf.Citations:
    result = wf.cite(model("llama"), QUESTION, DOCUMENTS, processor=plain_tokenizer(), answer=REPLY, top=2)
    assert isinstance(result, wf.Citations)
    return result


def prompt_without(piece: str = "") -> str:
    documents = (
        "Document 1 (cats): The cat sat on the mat . He said yes .\n\nDocument 2 (dogs): The big red dog ran home ."
    )
    lead = "Answer the question with the help of these documents."
    return f"{lead}\n\n{documents}\n\nQuestion: {QUESTION}\nAnswer:".replace(piece, "")


def test_drops_are_what_leaving_a_source_out_does(cited: wf.Citations) -> None:
    lm = model("llama")
    for row, (start, end) in enumerate(cited.spans):
        whole = likely(lm, prompt_without(), REPLY, start, end)
        assert cited.log_probabilities[row] == pytest.approx(whole, rel=1e-4)
        tested = np.flatnonzero(~np.isnan(cited.drops[row]))
        assert len(tested) == 2 and set(tested) == set(np.argsort(-cited.scores[row])[:2])
        for index in tested:
            without = likely(lm, prompt_without(cited.sources[index].text), REPLY, start, end)
            assert cited.drops[row, index] == pytest.approx(whole - without, abs=2e-4)
        dogs = likely(lm, prompt_without("Document 2 (dogs): The big red dog ran home ."), REPLY, start, end)
        assert cited.document_drops[row, 1] == pytest.approx(whole - dogs, abs=2e-4)


def test_sentences_documents_and_table(cited: wf.Citations) -> None:
    assert [s.text for s in cited.sentences] == ["The dog ran home .", "It was red ."]
    assert [s.text for s in cited.sources] == ["The cat sat on the mat .", "He said yes .", DOCUMENTS["dogs"]]
    assert [d.name for d in cited.documents] == ["cats", "dogs"]
    np.testing.assert_allclose(cited.document_scores[:, 0], cited.scores[:, :2].sum(1))
    for sentence in cited.sentences:
        assert [c.drop for c in sentence.citations] == sorted((c.drop for c in sentence.citations), reverse=True)
        assert sentence.influenced or any(repr(sentence.text) in warning for warning in cited.warnings)
    assert len(cited.table) == 6
    assert set(cited.to_frame().columns) >= {"answer", "document", "sentence", "score", "drop"}


def test_documents_of_langchain_and_llama_index() -> None:
    """Objects and dicts as these libraries have them; two parts of one source are two documents."""
    from types import SimpleNamespace as Object

    part = {"page_content": "a cat sat.", "metadata": {"source": "cats.pdf"}, "id": None, "type": "Document"}
    node = Object(get_content=lambda: "a dog ran.", node_id="n1", metadata={}, text="never read")
    nodes = [Object(node=node, score=0.5), {"node": {"id_": "n2", "text": "it rained.", "metadata": {}}, "score": 0.1}]
    read = documents_by_name([part, Object(**part), *nodes, "plain"])
    assert read == {
        "cats.pdf": "a cat sat.", "cats.pdf (2)": "a cat sat.", "n1": "a dog ran.", "n2": "it rained.",
        "document 5": "plain",
    }  # fmt: skip
    assert documents_by_name({"mine": Object(**part)}) == {"mine": "a cat sat."}


def test_small_shares_of_the_largest_drop_are_not_cited(cited: wf.Citations) -> None:
    """The least drop is SUPPORT, and half of the largest drop of the same sentence; NaN was not measured."""
    drops = np.array([[30.0, 15.0, 14.9], [0.5, 0.39, np.nan], [0.4, -2.0, 0.1], [np.nan, np.nan, np.nan]])
    expected = [[True, True, False], [True, False, False], [False, False, False], [False, False, False]]
    assert cited.supports(drops).tolist() == expected
    shown = replace(cited, drops=np.array([[2.0, 9.0, np.nan], [5.0, np.nan, 4.0]]))
    assert [[c.cited for c in sentence.citations] for sentence in shown.sentences] == [[True, False], [True, True]]
    assert [c.drop for c in shown.sentences[0].citations] == [9.0, 2.0]  # measured, and listed


def test_pictures_and_files(cited: wf.Citations, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cited.show()
    assert "The dog ran home ." in capsys.readouterr().out
    assert "Document" not in cited.to_html() and "dogs" in cited.to_html()
    assert cited.save(tmp_path / "c.png").stat().st_size > 1000
    again = wf.load(cited.save(tmp_path / "c.json"))
    np.testing.assert_array_equal(again.drops, cited.drops)
    assert again.sentences == cited.sentences or np.isnan(cited.drops).any()


def test_the_answer_is_written_where_none_is_given_through_the_chat_template() -> None:
    how: dict[str, Any] = {"processor": tokenizer(), "method": "generic_attention", "top": 1}
    cited = wf.cite(model("qwen3"), QUESTION, list(DOCUMENTS.values()), generate=6, **how)
    assert cited.answer and cited.names == ("document 1", "document 2") and cited.method == "generic_attention"
    assert (cited.scores > 0).all()


@pytest.mark.parametrize(
    "documents, how, message",
    [
        ([], {}, "documents is empty"),
        (["", "x"], {}, "document 1 is not a text"),
        ({"a": 3}, {}, "is not a text|documents"),
        (["The cat ."], {"answer": "  "}, "answer is empty"),
        (["The cat ."], {"method": "generic"}, "generic_attention"),
        (["The cat ."], {"method": ""}, "unknown method"),
    ],
)
def test_what_cannot_be_cited(documents: Any, how: dict[str, Any], message: str) -> None:
    with pytest.raises(wf.errors.WhyformerError, match=message):
        wf.cite(model("llama"), QUESTION, documents, processor=tokenizer(), **{"answer": REPLY, **how})


def test_a_model_that_does_not_write(tmp_path: Path) -> None:
    with pytest.raises(NotOffered, match="next token"):
        wf.cite(folders.bert(), "who", ["the movie ."], processor=folders.tokenizer(tmp_path))


def test_spaces_around_question_and_answer() -> None:
    """A template may strip the one, and sentences are counted from the beginning of the other."""
    tok = copy.deepcopy(tokenizer())
    tok.chat_template = "{% for m in messages %}{{ m['content'] | trim }}\nAnswer:{% endfor %}"
    lm, answer = model("llama"), "\n " + REPLY
    spaced = wf.cite(lm, QUESTION + " \n", DOCUMENTS, processor=tok, answer=answer, method="raw_attention", top=1)
    assert [answer[a:b] for a, b in spaced.spans] == ["The dog ran home .", "It was red ."]
    for (start, end), value in zip(spaced.spans, spaced.log_probabilities, strict=True):
        assert value == pytest.approx(likely(lm, prompt_without(), answer, start, end), rel=1e-4)


def test_two_answers_have_their_own_probabilities() -> None:
    """What is explained is the difference of their log-probabilities, which is that of neither."""
    lm, answers = model("gpt2"), ("paris and", "the dog ran")
    found = wf.explain(lm, PROMPT, processor=tokenizer(), target=answers, method="occlusion")
    likely = {each: math.exp(log_probability(lm, ids(PROMPT), ids(each))) for each in answers}
    first, second = sorted(answers, key=lambda each: -likely[each])
    shares = [percent(likely[each]) for each in (first, second)]
    assert answer_words(found) == f"{first} (probability {shares[0]} as a whole), next {second} ({shares[1]})"
    assert explained(found).startswith("log-probability of 'paris and' rather than 'the dog ran' = ")
    assert found.units.text == PROMPT


def test_the_end_of_a_long_prompt_stays() -> None:
    """It is what the model continues; a classifier of texts loses the end, as its tokenizer says."""
    lm, tok = model("gpt2"), copy.deepcopy(tokenizer())
    tok.model_max_length = 12
    found = wf.explain(lm, f"{'the cat sat . ' * 8}{PROMPT}", processor=tok, method="occlusion")
    with torch.no_grad():
        logits = lm.eval()(input_ids=torch.tensor([ids(f"{'the cat sat . ' * 8}{PROMPT}")[-12:]])).logits[0, -1]
    assert found.target.index == int(logits.argmax()) and found.value == pytest.approx(float(logits.max()), rel=1e-4)
    assert [*found.units.labels][-5:] == PROMPT.split() and "the beginning was cut off" in found.warnings[0]
    assert tok.truncation_side == "right"
