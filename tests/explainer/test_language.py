"""Language models: what is explained (next token, answer, generation, span, choice), by what, and at what cost."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import whyformer as wf
from tests.support.language import FAMILIES, model, shared, tokenizer
from tests.support.threads import beside_another_thread
from whyformer.errors import NotOffered

PROMPT, ANSWER = "the capital of france is", "paris and the dog ran"
SHORT = "paris and the"
GRADIENTS = ("generic_attention", "attn_lrp", "input_x_gradient", "grad_sam", "integrated_gradients")
ONE_MAP = ("attention_rollout", "raw_attention", "value_norms", "alti", "value_zeroing")
# Each method once, each family at least once. (The blocks of gpt_oss cannot be run again: not value_zeroing.)
EACH = [(FAMILIES[i % len(FAMILIES)], method) for i, method in enumerate((*ONE_MAP[::-1], *GRADIENTS))]


def ids(text: str) -> list[int]:
    return list(tokenizer()(text)["input_ids"])


def close(one: wf.Explanation, other: wf.Explanation, tolerance: float = 1e-5) -> None:
    assert one.value == pytest.approx(other.value, abs=tolerance * max(1, abs(other.value)))
    assert np.abs(one.scores - other.scores).max() <= tolerance * np.abs(other.scores).max()


def answer_log_probability(lm: nn.Module, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """Σ_t log p(y_t | x, y_<t), token by token, each from a text of its own."""
    lm.eval()
    total = torch.zeros(())
    for step, token in enumerate(answer):
        logits = lm(input_ids=torch.tensor([prompt + answer[:step]])).logits[0, -1]
        total = total + logits.log_softmax(0)[token]
    return total


@pytest.mark.parametrize(("family", "method"), EACH)
def test_tokens_of_an_answer_are_what_each_is_by_itself(family: str, method: str) -> None:
    lm, answer = shared(family), ids(SHORT)
    options: dict[str, Any] = {"baseline": "zero", "steps": 6} if method == "integrated_gradients" else {}
    together = wf.explain(lm, (PROMPT, SHORT), processor=tokenizer(), method=method, **options)
    assert isinstance(together, wf.Generation) and [e.target.index for e in together] == answer
    for step, explanation in enumerate(together):
        text = {"input_ids": torch.tensor([ids(PROMPT) + answer[:step]])}
        close(explanation, wf.explain(lm, text, method=method, target=answer[step], **options)[0])
    if method not in {"value_zeroing", "integrated_gradients"}:  # the map, and what is said
        assert sum(e.cost.forwards for e in together) <= (3 if method in ONE_MAP else 1) + 1e-9


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_oss"])
def test_a_span_is_the_sum_of_its_tokens(family: str) -> None:
    """Its value, and its gradient at the word embeddings, from texts that end before each token."""
    lm = shared(family)
    span = wf.explain(lm, (PROMPT, ANSWER), processor=tokenizer(), method="input_x_gradient", span=True)
    assert (span.scalar, span.target.label) == ("log_probability", ANSWER)
    table = lm.get_input_embeddings()  # type: ignore[operator]
    prompt, answer = ids(PROMPT), ids(ANSWER)
    expected, total = np.zeros(len(prompt) + len(answer) - 1), 0.0
    for step, token in enumerate(answer):
        leaf = table(torch.tensor([prompt + answer[:step]])).detach().requires_grad_()
        value = lm(inputs_embeds=leaf).logits[0, -1].log_softmax(0)[token]
        total += value.item()
        (gradient,) = torch.autograd.grad(value, leaf)
        expected[: leaf.shape[1]] += (leaf * gradient).sum(2)[0].detach().numpy()
    assert span.value == pytest.approx(total, rel=1e-5)
    assert np.abs(span.scores - expected).max() <= 1e-5 * np.abs(expected).max()
    assert (span.cost.forwards, span.cost.backwards) == (1, 1)


def test_generic_attention_of_a_span() -> None:
    """R = Π (I + mean_h relu(A ∘ ∂s/∂A)), s = Σ_t log p(y_t), on the model's own eager maps, read where it is said."""
    prompt, answer = ids(PROMPT), ids(ANSWER)
    span = wf.explain(shared("gpt_oss"), (PROMPT, ANSWER), tokenizer(), method="generic_attention", span=True)
    lm: Any = model("gpt_oss")
    lm.set_attn_implementation("eager")
    said = lm(input_ids=torch.tensor([prompt + answer[:-1]]), output_attentions=True)
    rows = said.logits[0, len(prompt) - 1 :].log_softmax(1)
    value = rows.gather(1, torch.tensor(answer)[:, None]).sum()
    relevance = torch.eye(len(prompt) + len(answer) - 1)
    for maps, gradients in zip(said.attentions, torch.autograd.grad(value, said.attentions), strict=True):
        relevance = relevance + (maps * gradients).clamp(min=0).mean(1)[0].detach() @ relevance
    expected = relevance[len(prompt) - 1 :].mean(0).numpy()
    assert span.value == pytest.approx(value.item(), rel=1e-5)
    assert np.abs(span.scores - expected).max() <= 1e-5 * np.abs(expected).max()


def test_a_part_of_the_answer() -> None:
    lm, prompt, answer = shared("llama"), ids(PROMPT), ids(ANSWER)
    start = ANSWER.index("the")
    part = wf.explain(lm, (PROMPT, ANSWER), processor=tokenizer(), span=(start, start + 7))
    expected = answer_log_probability(lm, prompt + answer[:2], answer[2:4])
    assert part.target.label == "the dog" and part.value == pytest.approx(expected.item(), rel=1e-5)
    assert len(part.scores) == len(prompt) + 3


def test_occlusion_of_a_span_leaves_the_answer_alone() -> None:
    lm, prompt, answer = shared("llama"), ids(PROMPT), ids(ANSWER)
    span = wf.explain(lm, (PROMPT, ANSWER), processor=tokenizer(), method="occlusion", span=True, replace="delete")
    whole = answer_log_probability(lm, prompt, answer).item()
    drops = [whole - answer_log_probability(lm, prompt[:i] + prompt[i + 1 :], answer).item() for i in range(5)]
    np.testing.assert_allclose(span.scores[:5], drops, atol=2e-4)
    assert not span.scores[5:].any()


def test_what_the_model_writes() -> None:
    lm = shared("llama")
    said = wf.explain(lm, PROMPT, processor=tokenizer(), generate=4)
    text, expected = ids(PROMPT), []
    while len(expected) < 4 and expected[-1:] != [2]:
        expected.append(int(lm(input_ids=torch.tensor([text])).logits[0, -1].argmax()))
        text = [*text, expected[-1]]
    assert [e.target.index for e in said] == expected
    assert said.text == tokenizer().decode(expected)
    assert said.matrix.shape == (len(expected), 5 + len(expected) - 1)
    assert np.isnan(said.matrix[0, 5:]).all() and not np.isnan(said.matrix[-1]).any()
    assert set(said.units.role or ()) == ({"prompt", "answer"} if len(expected) > 1 else {"prompt"})


def test_an_answer_is_drawn_by_the_seed_and_by_nothing_else() -> None:
    drawn = {"do_sample": True, "max_new_tokens": 12, "min_new_tokens": 12}
    before, texts = torch.get_rng_state(), []
    with beside_another_thread():
        for seed in (0, 0, 1):
            how: dict[str, Any] = {"generate": drawn, "span": True, "method": "random", "seed": seed}
            texts.append(wf.explain(shared("llama"), PROMPT, processor=tokenizer(), **how).target.label)
    assert torch.equal(before, torch.get_rng_state())
    assert texts[0] == texts[1] != texts[2]


WRITTEN: dict[str, Any] = {"generate": 3}


@pytest.mark.parametrize(("side", "how"), [("left", WRITTEN), ("left", WRITTEN | {"span": True}), ("right", {})])
def test_prompts_beside_each_other_are_as_alone(side: str, how: dict[str, Any]) -> None:
    prompts, tok = ["the cat", "he said the big red dog ran home ."], copy.deepcopy(tokenizer())
    tok.padding_side = side
    for prompt, together in zip(prompts, wf.explain(shared("qwen3"), prompts, processor=tok, **how), strict=True):
        alone = wf.explain(shared("qwen3"), prompt, processor=tok, **how)
        whole = isinstance(alone, wf.Explanation)
        for a, b in zip([together] if whole else together, [alone] if whole else alone, strict=True):
            close(a, b, 2e-5)


def test_one_gradient_for_all_tokens_is_said() -> None:
    lm = shared("llama")
    together = wf.explain(lm, (PROMPT, ANSWER), processor=tokenizer(), method="generic_attention", one_pass=True)
    span = wf.explain(lm, (PROMPT, ANSWER), processor=tokenizer(), method="generic_attention", span=True)
    rows = np.nan_to_num(together.matrix).mean(0)
    np.testing.assert_allclose(rows, span.scores, rtol=1e-4, atol=1e-6)
    assert "one_pass" in " ".join(together[0].warnings)
    assert sum(e.cost.backwards for e in together) == pytest.approx(1)


def test_one_map_serves_an_answer_of_any_length() -> None:
    """Also of more tokens than are run together elsewhere."""
    long = " ".join(["the cat sat on the mat ."] * 5)
    ways: list[dict[str, Any]] = [{"method": "attention_rollout"}, {"method": "generic_attention", "one_pass": True}]
    for how in ways:
        said = wf.explain(shared("llama"), (PROMPT, long), processor=tokenizer(), **how)
        assert len(said) == 35
        assert sum(e.cost.forwards for e in said) == pytest.approx(2)  # the map, and what is said
        in_parts = wf.explain(shared("llama"), (PROMPT, long), processor=tokenizer(), batch_size=8, **how)
        for one, other in zip(said, in_parts, strict=True):
            close(one, other)


def test_a_choice_is_made_among_its_tokens() -> None:
    lm = shared("llama")
    logits = lm(input_ids=torch.tensor([ids(PROMPT)])).logits[0, -1].detach()
    yes, no = ids("yes no")
    chosen = wf.explain(lm, PROMPT, processor=tokenizer(), choices=["yes", "no"], scalar="probability")
    expected = logits[[yes, no]].softmax(0)
    assert chosen.value == pytest.approx(float(expected.max()), rel=1e-5)
    assert chosen.target.label == ("yes", "no")[int(expected.argmax())]
    rather = wf.explain(lm, PROMPT, processor=tokenizer(), choices=["yes", "no"], target=("no", "yes"))
    assert rather.value == pytest.approx(float(logits[no] - logits[yes]), rel=1e-4)
    longer = wf.explain(lm, PROMPT, processor=tokenizer(), choices=["the cat", "no"])
    assert any("only the first token" in warning for warning in longer.warnings)


CHAT = [
    {"role": "system", "content": "he said yes ."},
    {"role": "user", "content": "The cat sat on the mat . Where is paris ?"},
]


def test_messages_are_written_out_by_the_template() -> None:
    lm, tok = shared("llama"), tokenizer()
    text = tok.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    plain = tok(text, add_special_tokens=False)["input_ids"]
    chat = wf.explain(lm, CHAT, processor=tok)
    close(chat, wf.explain(lm, {"input_ids": torch.tensor([plain])}, target=chat.target.index)[0])
    roles = dict.fromkeys(chat.units.role or ())
    assert list(roles) == ["template", "system", "user"]
    of = {
        role: [u for u, r in zip(chat.units.labels, chat.units.role or (), strict=True) if r == role] for role in roles
    }
    assert of["system"] == "he said yes .".split() and "assistant" in of["template"]
    both = wf.explain(lm, [CHAT, CHAT[1:]], processor=tok)
    close(both[0], chat)
    said = wf.explain(lm, [*CHAT, {"role": "assistant", "content": "paris is red ."}], processor=tok)
    assert [e.target.label for e in said] == "paris is red .".split(), "the assistant's last word is the answer"
    bare = copy.deepcopy(tok)
    bare.chat_template = None
    with pytest.raises(NotOffered, match="chat template"):
        wf.explain(lm, CHAT, processor=bare)


def fall_without(part: str, found: wf.Explanation) -> float:
    """By how much the explained logit falls where a part of the chat is deleted."""
    text = tokenizer().apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    left = tokenizer()(text.replace(part, ""), add_special_tokens=False, return_tensors="pt")
    return float(found.value - shared("llama")(**left).logits[0, -1, found.target.index].item())


def test_sentences_are_scored_as_one() -> None:
    """Added up of tokens, or taken away together."""
    lm, tok = shared("llama"), tokenizer()
    added, away = (wf.explain(lm, CHAT, tok, units="sentence", method=m) for m in ("generic_attention", "occlusion"))
    shown = [u for u, special in zip(added.units.labels, added.units.special, strict=True) if not special]
    assert shown == ["he said yes .", "The cat sat on the mat .", "Where is paris ?"]
    tokens = wf.explain(lm, CHAT, tok, method="generic_attention")
    assert added.scores.sum() == pytest.approx(tokens.scores.sum(), rel=1e-4)
    fall = fall_without("The cat sat on the mat . ", away)
    assert away.scores[away.units.labels.index("The cat sat on the mat .")] == pytest.approx(fall, abs=1e-4)


def test_voices_are_scored_as_one() -> None:
    lm, tok = shared("llama"), tokenizer()
    voices = wf.explain(lm, CHAT, processor=tok, units="role", method="occlusion")
    assert voices.units.role == ("template", "system", "template", "user", "template")
    assert voices.scores[1] == pytest.approx(fall_without("he said yes .", voices), abs=1e-4)
    with pytest.raises(NotOffered, match="needs roles"):
        wf.explain(lm, PROMPT, processor=tok, units="role")


def test_ranges_that_someone_chose() -> None:
    tokens = wf.explain(shared("llama"), "the cat sat on the mat", processor=tokenizer())
    ranges = wf.explain(shared("llama"), "the cat sat on the mat", processor=tokenizer(), units=[(8, 11), (0, 7)])
    assert ranges.units.labels == ("sat", "the cat")
    np.testing.assert_allclose(ranges.scores, [tokens.scores[2], tokens.scores[:2].sum()], rtol=1e-5)
    assert ranges.checks["outside_units"] == pytest.approx(float(tokens.scores[3:].sum()), rel=1e-5)


def test_the_share_of_the_first_token_is_in_every_result() -> None:
    explanation = wf.explain(shared("gpt_oss"), "the cat sat on the mat", processor=tokenizer())
    share = np.abs(explanation.scores)[0] / np.abs(explanation.scores).sum()
    assert explanation.checks["first_token_share"] == pytest.approx(share, rel=1e-6)


def test_a_generation_is_saved_and_listed(tmp_path: Path) -> None:
    said = wf.explain(shared("llama"), (PROMPT, ANSWER), processor=tokenizer())
    for other in (wf.load(said.save(tmp_path / "said.json")), pickle.loads(pickle.dumps(said))):
        assert isinstance(other, wf.Generation) and other.text == ANSWER and len(other) == len(said)
        np.testing.assert_array_equal(np.nan_to_num(other.matrix), np.nan_to_num(said.matrix))
    frame = said.to_frame()
    assert len(frame) == sum(len(e.scores) for e in said) and list(frame.columns)[:2] == ["step", "token"]


@pytest.mark.parametrize(
    "inputs, how, message",
    [
        ("the cat", {"span": True}, "give \\(prompt, answer\\)"),
        ("the cat", {"generate": 0}, "generate=0"),
        ("the cat", {"choices": []}, "choices"),
        ("the cat", {"choices": ["the cat", "the dog"]}, "same token"),
        ("the cat", {"units": [(0, 99)]}, "7 characters"),
        ("the cat", {"units": "line"}, "'sentence'"),
        ("the cat", {"generate": 9999}, "the model takes 256"),
        ((PROMPT, ANSWER), {"span": True, "target": "paris"}, "omit target="),
        ((PROMPT, ANSWER), {"span": (90, 99)}, "characters"),
        ([{"role": "user", "content": 3}], {}, "strings"),
        ("the cat", {"generate": {"max_new_tokens": True}}, "max_new_tokens.*whole number from 1"),
        ("the cat", {"generate": {"nonsense": 1}}, "generate raised ValueError.*settings that it supports"),
        ("the cat", {"generate": {"max_new_tokens": 2, "num_beams": 0}}, "generate raised ZeroDivisionError"),
        ("the cat", {"generate": {"attention_mask": 3}}, "omit attention_mask"),
        ((PROMPT, ANSWER), {"generate": 2}, "the answer is given with the prompt"),
        ((PROMPT, ANSWER), {"choices": ["yes", "no"]}, "omit the answer"),
        ("the cat", {"target": ("the dog ran", "the dog ran")}, "both answers are the same"),
    ],
)
def test_what_cannot_be_asked(inputs: Any, how: dict[str, Any], message: str) -> None:
    with pytest.raises(wf.errors.WhyformerError, match=message):
        wf.explain(shared("llama"), inputs, processor=tokenizer(), **how)


def test_wishes_for_language_models_are_refused_elsewhere(tmp_path: Path) -> None:
    from tests.support import folders

    tok = folders.tokenizer(tmp_path)
    for how in ({"generate": 3}, {"span": True}, {"choices": ["good"]}, {"one_pass": True}, {"first_token": False}):
        with pytest.raises(NotOffered, match="next token"):
            wf.explain(folders.bert(), "the movie was good", processor=tok, **how)
    by_word = wf.explain(folders.bert(), "the movie was boring", processor=tok, units="word")
    assert by_word.units.labels == ("[CLS]", "the", "movie", "was", "boring", "[SEP]")


@pytest.mark.parametrize(
    ("family", "how"),
    [
        ("gpt2", {"replace": 9}),
        ("gpt_oss", {"replace": 9}),
        ("llama", {"replace": "delete", "units": "sentence", "span": True}),
    ],
)
def test_variants_go_on_from_a_shared_beginning(
    family: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is remembered of it changes no score, and the saving is said."""
    from whyformer.engines.perturbation import game

    prompt = "The cat sat on the mat . The big red dog ran home . He said yes . " + PROMPT.capitalize()
    inputs: Any = (prompt, ANSWER) if "span" in how else prompt
    read: list[int] = []
    lm = model(family)  # which is watched
    lm.get_input_embeddings().register_forward_hook(  # type: ignore[operator]
        lambda module, args, out: read.append(args[0].numel())
    )
    wf.explain(lm, inputs, processor=tokenizer(), method="occlusion", batch_size=4, **how)  # the model is studied once
    read.clear()
    quick = wf.explain(lm, inputs, processor=tokenizer(), method="occlusion", batch_size=4, **how)
    tokens, _ = sum(read), read.clear()
    monkeypatch.setattr(game, "SHORTEST", 10**6)
    whole = wf.explain(lm, inputs, processor=tokenizer(), method="occlusion", batch_size=4, target=None, **how)
    np.testing.assert_allclose(quick.scores, whole.scores, atol=1e-4 * max(1, np.abs(whole.scores).max()))
    assert quick.checks["prefix_reused"] > (0.05 if "units" in how else 0.3) and "prefix_reused" not in whole.checks
    assert quick.cost.forwards == whole.cost.forwards
    assert tokens < sum(read) or "units" in how  # of few long variants the beginning itself is read once more


def test_of_a_prompt_that_goes_as_a_whole_the_last_token_stays() -> None:
    lm, how = shared("llama"), {"method": "occlusion", "units": "sentence", "span": True}
    only = wf.explain(lm, (PROMPT, ANSWER), processor=tokenizer(), **how)  # type: ignore[arg-type]
    whole, rest = (answer_log_probability(lm, prompt, ids(ANSWER)).item() for prompt in (ids(PROMPT), ids(PROMPT)[-1:]))
    assert only.scores[0] == pytest.approx(whole - rest, abs=1e-4)


def test_one_answer_rather_than_another() -> None:
    lm, prompt = shared("llama"), ids(PROMPT)
    one, other = "paris and the dog", "rome is big"

    def rather(left: list[int]) -> float:
        said, instead = (answer_log_probability(lm, left, ids(text)).item() for text in (one, other))
        return said - instead

    why = wf.explain(lm, PROMPT, processor=tokenizer(), target=(one, other), method="occlusion", replace="delete")
    assert why.value == pytest.approx(rather(prompt), rel=1e-5)
    assert str(why.target) == f"{one} rather than {other}"
    drops = [why.value - rather(prompt[:place] + prompt[place + 1 :]) for place in range(len(prompt))]
    np.testing.assert_allclose(why.scores, drops, atol=3e-4)
    by_method = wf.explain(lm, [PROMPT], processor=tokenizer(), target=(one, other), method=["attn_lrp", "occlusion"])
    assert set(by_method) == {"attn_lrp", "occlusion"} and by_method["attn_lrp"][0].signed
    token = wf.explain(lm, PROMPT, processor=tokenizer(), target=("paris", "rome"))  # tokens: one pass, their logits
    assert token.scalar == "logit" and token.cost.forwards == 1


# As people load them: cache on, compiled, adapted.

LONGER = "the cat sat on the mat and the big red dog ran home"


@pytest.mark.parametrize("way", ["cached", "compiled"])
def test_a_cache_that_is_on_stays_on_and_a_compiled_model_is_looked_into_uncompiled(way: str) -> None:
    lm: Any = model("llama")
    lm.config.use_cache = lm.generation_config.use_cache = True
    found = wf.explain(torch.compile(lm, backend="eager") if way == "compiled" else lm, LONGER, tokenizer(), generate=2)
    plain = wf.explain(model("llama"), LONGER, processor=tokenizer(), generate=2)
    assert found.text == plain.text
    np.testing.assert_allclose(found[0].scores, plain[0].scores, rtol=1e-4, atol=1e-6)
    assert lm.config.use_cache and lm.generation_config.use_cache


def test_a_vocabulary_times_length_is_never_made() -> None:
    """Logits are computed at the positions that are explained, whatever is asked."""
    lm: Any = model("llama")
    sizes: list[int] = []
    lm.lm_head.register_forward_hook(lambda module, args, out: sizes.append(out.shape[1]))
    longer = " ".join([LONGER] * 4)
    for how in ({}, {"span": True}, {"method": "occlusion", "span": True, "units": "word"}):
        wf.explain(lm, [(longer, "yes . no ."), (LONGER, "no .")], processor=tokenizer(), **how)  # type: ignore[arg-type]
    assert max(sizes) <= 16 < len(tokenizer()(longer)["input_ids"])
