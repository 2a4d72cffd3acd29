"""Hops: an answer's relevance on thoughts and tool messages goes on to what produced them (whyformer/hops.py)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.references import hops as twin
from tests.support.language import model, shared, tokenizer
from whyformer import hops as hops_module
from whyformer.errors import BadInput, NotOffered
from whyformer.inputs.decoding import Continuation, found_in
from whyformer.inputs.output import _log_probabilities
from whyformer.inputs.units import prompt_of

PROMPT, THOUGHTS = "the cat sat on the mat . where is it ?", ("the cat is on the mat .", "it is in paris .")
WRITTEN = f"{THOUGHTS[0]} and {THOUGHTS[1]} home and the mat"
ANSWER = "home and the mat"
TWINS = {"input_x_gradient": twin.input_x_gradient, "generic_attention": twin.generic_attention}
MARKED = "<think> it was big </think> the dog ran"
CALL = [{"type": "function", "function": {"name": "big", "arguments": {"red": "cat"}}}]
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "where is the cat ?"},
    {"role": "assistant", "content": None, "tool_calls": CALL},
    {"role": "tool", "content": "on the mat"},
    {"role": "assistant", "reasoning_content": "it was big", "content": "the mat ."},
]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }} {% if m.reasoning_content %}big {{ m.reasoning_content }} red "
    "{% endif %}{{ m['content'] or '' }}{% for c in m.tool_calls %} call {{ c.function.name }} cat{% endfor %} "
    "<|im_end|> {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


def ids(text: str) -> list[int]:
    return list(tokenizer()(text)["input_ids"])


def explained(lm: Any = None, inputs: Any = (PROMPT, WRITTEN), **how: Any) -> Any:
    how = {"span": ANSWER, "through": list(THOUGHTS), "method": "input_x_gradient"} | how
    return wf.explain(shared("llama") if lm is None else lm, inputs, processor=how.pop("processor", tokenizer()), **how)


@pytest.mark.parametrize("method", TWINS)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_two_spans_and_two_hops_as_in_plain_torch(family: str, method: str) -> None:
    lm: Any = model(family).double()
    lm.set_attn_implementation("eager")
    found = explained(lm, method=method, hops=2)
    text = ids(PROMPT) + ids(WRITTEN)
    sizes = np.cumsum([len(ids(part)) for part in (PROMPT, THOUGHTS[0], "and", THOUGHTS[1], ANSWER)])
    spans = [(int(sizes[0]), int(sizes[1])), (int(sizes[2]), int(sizes[3]))]
    scores, maps = twin.handed_on(lm, text, (int(sizes[3]), int(sizes[4])), spans, 2, TWINS[method])
    np.testing.assert_allclose(found.scores, scores, atol=1e-5 * np.abs(scores).max())
    assert [(hop.number, hop.text) for hop in found.hops[1:]] == [(n, t) for n in (1, 2) for t in THOUGHTS[::-1]]
    for hop, received in zip(found.hops[1:], maps, strict=True):
        np.testing.assert_allclose(hop.scores, received, atol=1e-5 * np.abs(received).max())
        assert hop.handed == pytest.approx(sum(received), rel=1e-4)
    one = explained(lm, method=method, hops=1)
    assert len(one.hops) == 3
    for hop, same in zip(one.hops, found.hops, strict=False):
        np.testing.assert_array_equal(hop.scores, same.scores)
    assert np.abs(found.hops[3].scores - one.hops[1].scores).max() > 1e-3 * np.abs(one.hops[1].scores).max()


@pytest.mark.parametrize("method", ["attn_lrp", "generic_attention", "input_x_gradient", "occlusion", "raw_attention"])
def test_the_sum_stays_and_no_hop_is_the_span_itself(method: str) -> None:
    plain = wf.explain(shared("llama"), (PROMPT, WRITTEN), tokenizer(), span=ANSWER, method=method)
    none, one, two = (explained(method=method, hops=hops) for hops in (0, 1, 2))
    np.testing.assert_array_equal(none.scores, plain.scores)
    assert none.value == plain.value and none.target == plain.target and len(none.hops) == 1
    for found in (one, two):
        assert found.scores.sum() == pytest.approx(plain.scores.sum(), abs=1e-5 * float(np.abs(plain.scores).sum()))
        np.testing.assert_array_equal(found.hops[0].scores, plain.scores)
        assert np.abs(found.scores - plain.scores).max() > 1e-3 * np.abs(plain.scores).max()
        last = [hop for hop in found.hops if hop.number == found.hops[-1].number]
        inside = np.any([[a < h.span[1] and b > h.span[0] for a, b in found.units.spans] for h in last], axis=0)
        expected = np.where(inside, 0, plain.scores + sum(hop.scores for hop in last))
        np.testing.assert_allclose(found.scores, expected, atol=1e-6 * np.abs(plain.scores).sum())
    assert sum(hop.number == 1 for hop in one.hops) == 2
    if method in {"attn_lrp", "generic_attention"}:  # one forward, and one more backward per span and hop
        assert [found.cost.forwards for found in (none, one, two)] == [1, 1, 1]
        assert [found.cost.backwards for found in (none, one, two)] == [1, 3, 5]
    elif method != "occlusion":  # one more pass per span and hop
        assert [found.cost.forwards for found in (none, one, two)] == [1, 3, 5]


@pytest.mark.parametrize("method", ["attn_lrp", "cp_lrp", "generic_attention", "grad_sam"])
@pytest.mark.parametrize("memory", ["full", "fold"])
def test_one_forward_gives_the_scores_of_one_per_stretch(
    method: str, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if memory == "fold" and method.endswith("lrp"):
        memory = "auto"
    lm: Any = model("llama").double()
    calls = 0

    def counted(*_: Any) -> None:
        nonlocal calls
        calls += 1

    lm.register_forward_pre_hook(counted)
    explained(lm, method=method, memory=memory, hops=2)  # with checks that are made once
    calls = 0
    once = explained(lm, method=method, memory=memory, hops=2)
    assert calls == once.cost.forwards == 1
    monkeypatch.setattr(hops_module, "KeptPass", lambda *_, **__: None)
    each = explained(lm, method=method, memory=memory, hops=2)
    assert each.cost.forwards == 5 and each.cost.backwards == once.cost.backwards == 5
    np.testing.assert_allclose(once.scores, each.scores, atol=1e-6 * np.abs(each.scores).max())
    assert once.value == pytest.approx(each.value, rel=1e-6)


def test_certain_words_are_not_lost_among_others() -> None:
    """Log-odds of a token that rounds to p = 1 still have a gradient, and a token's hesitation is not its weight."""
    logits = torch.tensor([[[40.0, 0.0, 0.0], [1.0, 0.0, 0.0]]], requires_grad=True)
    answer = Continuation((0, 0), 0, "", (1.0, 1.0))
    _log_probabilities(logits, [answer], torch.tensor([0, 1])).sum().backward()
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad[0], [[1, -0.5, -0.5]] * 2, atol=1e-6)


def test_a_part_of_an_answer_by_a_text_masks_what_is_before_it() -> None:
    place = WRITTEN.index(ANSWER)
    how: dict[str, Any] = {"method": "occlusion", "through": None}
    same, named = explained(span=(place, len(WRITTEN)), **how), explained(**how)
    np.testing.assert_array_equal(same.scores, named.scores)
    prompt, said = len(ids(PROMPT)), len(ids(ANSWER))
    assert named.scores[prompt : -said + 1].all() and not named.scores[-said + 1 :].any()


@pytest.mark.parametrize("method", ["input_x_gradient", "occlusion"])
def test_units(method: str) -> None:
    """Of methods that mask, units are masked as a whole; of others, tokens are added up."""
    tokens, whole = (
        explained(method=method),
        {units: explained(method=method, units=units) for units in ("word", "sentence")},
    )
    for units, found in whole.items():
        assert found.scores.sum() == pytest.approx(found.hops[0].handed, rel=1e-4), units
        assert all(len(hop.scores) == len(found.units) for hop in found.hops)
    np.testing.assert_allclose(whole["word"].scores, tokens.scores, atol=1e-6)
    start = PROMPT.index("where")
    ranges = explained(method=method, units=[(0, start - 1), (start, len(PROMPT))])
    assert len(ranges.scores) == 2 and ranges.hops[-1].scores.any()
    total = ranges.scores.sum() + ranges.checks["outside_units"]
    direct = ranges.hops[0].handed if method == "input_x_gradient" else total
    assert total == pytest.approx(direct, rel=1e-4)


def test_what_follows_the_thoughts_is_the_answer() -> None:
    tok = tokenizer(("think",))
    lm: Any = model("llama")
    lm.resize_token_embeddings(len(tok))
    bare = MARKED.removeprefix("<think> ")
    for prompt, written in ((PROMPT, MARKED), (PROMPT + " <think> ", bare), (PROMPT, bare)):
        found = explained(lm, (prompt, written), processor=tok, span=False, through="thoughts")
        assert found.target.label == "the dog ran" and found.hops[1].text.endswith("it was big </think>")
        assert "thought" in found.units.role
    with pytest.raises(BadInput, match="no answer after"):
        explained(lm, (PROMPT, "<think> it </think> "), processor=tok, span=False, through="thoughts")


def test_messages() -> None:
    tok = copy.deepcopy(tokenizer(("call",)))
    tok.chat_template = TEMPLATE
    lm: Any = model("llama")
    lm.resize_token_embeddings(len(tok))
    prompt, answer = prompt_of(CHAT, tok)
    assert [(prompt[a:b], role) for a, b, role in prompt.parts] == [  # type: ignore[attr-defined]
        ("where is the cat ?", "user"), ("call big cat", "tool call"), ("on the mat", "tool"),
    ]  # fmt: skip
    assert answer == "big it was big red the mat ."
    found = explained(lm, CHAT, processor=tok, span="the mat .", through=["thoughts", "it was big"], hops=1)
    assert [hop.text for hop in found.hops] == ["the mat .", "it was big", "on the mat", "call big cat"]
    by_role = explained(lm, CHAT, processor=tok, span="the mat .", through="tool", hops=1)
    assert [hop.text for hop in by_role.hops] == ["the mat .", "on the mat"]
    tok.chat_template = TEMPLATE.replace("m.reasoning_content", "m.unknown")
    assert prompt_of(CHAT, tok)[1] == "<think>\nit was big\n</think>\n\nthe mat ."
    tok.chat_template = tok.chat_template.replace("m.tool_calls", "[]")
    with pytest.raises(NotOffered, match="does not write the tool calls"):
        prompt_of(CHAT[:2], tok)


def test_marks_in_instructions_are_no_thoughts() -> None:
    text = "use <think> a </think> . <think> b </think> c"
    tokens = [(0, 23), (24, len(text))]
    assert found_in(text, 24, ["system", "answer"], tokens, "thoughts") == [(25, 43)]
    assert found_in(text, 24, ["system", "answer"], tokens, ["a", (25, 32)]) == [(12, 13), (25, 32)]


def test_several_inputs_methods_and_what_is_generated() -> None:
    lm, pairs = shared("llama"), [(PROMPT, WRITTEN), (WRITTEN, PROMPT)]
    both = wf.explain(lm, pairs, processor=tokenizer(), through=["the mat ."], method=["random", "raw_attention"])
    assert [len(each) for each in both.values()] == [2, 2] and both["random"][1].method == "random"
    assert both["raw_attention"][0].target.label == "and it is in paris . home and the mat"
    drawn = {"max_new_tokens": 5, "do_sample": True}
    one, same = (
        wf.explain(lm, PROMPT, tokenizer(), generate=drawn, through=["the cat sat"], seed=seed, method="raw_attention")
        for seed in (3, 3)
    )
    assert one.target.label == same.target.label and len(one.hops) == 2
    plain = wf.explain(lm, PROMPT, tokenizer(), generate=drawn, span=True, seed=3, method="raw_attention")
    np.testing.assert_allclose(one.hops[0].scores, plain.scores, atol=1e-6)


def test_pictures_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(hops=2)
    found.show()
    shown = " ".join(capsys.readouterr().out.split())
    total = f"{found.hops[0].handed:.4g}"
    assert (
        "handed on to what produced" in shown
        and "in 2 hops" in shown
        and f"the sum of all scores stays {total}" in shown
    )
    assert f"{found.hops[1].handed:.4g} from 'it is in paris .'" in shown
    for name in ("why.json", "why.npz"):
        back = wf.load(found.save(tmp_path / name))
        np.testing.assert_array_equal(back.hops[2].scores, found.hops[2].scores)
        assert back.hops[2].span == found.hops[2].span


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"through": "thoughts"}, "none was found"),
        ({"through": [(500, 600)]}, "characters, and a part"),
        ({"through": ["the dog ran"]}, "not a role here \\(prompt, answer\\)"),
        ({"through": ["and the mat"]}, "is not before the explained answer"),
        ({"through": ["the cat is", "cat is on"]}, "overlap"),
        ({"through": None, "hops": 2}, "hops=2 is for through="),
        ({"target": "paris"}, "omit target="),
        ({"choices": ["yes", "no"]}, "omit choices="),
        ({"hops": -1}, "hops"),
        ({"span": "rome"}, "does not contain it"),
        ({"inputs": PROMPT}, "give \\(prompt, answer\\)"),
    ],
)
def test_errors(how: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        explained(**how)


def test_other_models_are_refused() -> None:
    sentiment, words = wf.demo.load_sentiment()
    with pytest.raises(NotOffered, match="through= and hops= are for models that predict the next token"):
        wf.explain(sentiment, "I like the movie", words, through="thoughts")
    with pytest.raises(NotOffered, match="models that run here"):
        wf.explain(lambda prompts, answers: [-1.0] * len(prompts), ("a b", "c"), through="thoughts")
    with pytest.raises(NotOffered, match="not tensors"):
        explained(inputs={"input_ids": torch.tensor([ids(PROMPT)])}, generate=3, span=False)
