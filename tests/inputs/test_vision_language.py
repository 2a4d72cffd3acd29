"""Vision-language models are language models: prompts, answers and chats, without and with images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.hf import hf
from tests.models.vision_language import LLAVA, NAMES, RECURRENT, prompt, vision_language_model
from tests.support import processors

TARGET, WORD = 7, 5
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-5}


def logit(model: nn.Module, inputs: dict[str, Tensor], target: int = TARGET, **options: Any) -> Tensor:
    return model(**inputs, **options).logits[0, -1, target]


def generic_attention(name: str, inputs: dict[str, Tensor]) -> Tensor:
    """R ← R + mean_h (∇A ∘ A)⁺ R over the language model's own maps, read at the last token."""
    output = vision_language_model(name, "eager")(**inputs, output_attentions=True)
    maps = list(output.attentions)
    slopes = torch.autograd.grad(output.logits[0, -1, TARGET], maps)
    relevance = torch.eye(maps[0].shape[-1])
    for attention, slope in zip(maps, slopes, strict=True):
        relevance = relevance + (attention * slope).clamp(min=0)[0].mean(0).detach() @ relevance
    return relevance[-1]


def words_x_gradient(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    vectors: list[Tensor] = []

    def enter(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        vectors.append(out.detach().requires_grad_())
        return vectors[-1].clone()

    hook = model.get_input_embeddings().register_forward_hook(enter)
    try:
        (slope,) = torch.autograd.grad(logit(model, inputs), vectors)
    finally:
        hook.remove()
    return (vectors[0].detach() * slope)[0].sum(-1)


# Without an image


@pytest.mark.parametrize("name", NAMES)
def test_a_text_prompt_is_that_of_a_language_model(name: str) -> None:
    model, inputs = vision_language_model(name), prompt(name)
    methods = ["attn_lrp", "cp_lrp", "occlusion", "input_x_gradient", *["generic_attention"] * (name not in RECURRENT)]
    explained = {m: wf.explain(model, inputs, method=m, target=TARGET)[0] for m in methods if m != "occlusion"}
    explained["occlusion"] = wf.explain(model, inputs, method="occlusion", target=TARGET, replace=WORD)[0]
    with torch.no_grad():
        whole = float(logit(model, inputs))
        others = []
        for position in range(7):
            ids = inputs["input_ids"].clone()
            ids[0, position] = WORD
            others.append(whole - float(logit(model, inputs | {"input_ids": ids})))
    np.testing.assert_allclose(explained["occlusion"].scores, others, **CLOSE)
    np.testing.assert_allclose(explained["input_x_gradient"].scores, words_x_gradient(model, inputs), **CLOSE)
    if name not in RECURRENT:
        np.testing.assert_allclose(explained["generic_attention"].scores, generic_attention(name, inputs), **CLOSE)
    assert explained["attn_lrp"].value == pytest.approx(whole, abs=1e-5)
    if not any("bias" in n for n, p in model.named_parameters() if "language_model" in n and p.any()):
        assert explained["cp_lrp"].checks["conservation_error"] <= 1e-4 * np.abs(explained["cp_lrp"].scores).sum()


def test_relevance_is_that_of_the_language_model_inside() -> None:
    model = vision_language_model("llava")
    inside = hf("LlamaForCausalLM", **{k: v for k, v in LLAVA["text_config"].items() if k != "model_type"})("sdpa")
    inside.model.load_state_dict(model.model.language_model.state_dict())
    inside.lm_head.load_state_dict(model.lm_head.state_dict())
    for method in ("attn_lrp", "value_norms", "integrated_gradients"):
        one, other = (wf.explain(m, prompt(), method=method, target=TARGET)[0] for m in (model, inside))
        np.testing.assert_allclose(one.scores, other.scores, **CLOSE)
    assert wf.explain(model, prompt())[0].method == wf.explain(inside, prompt())[0].method


@pytest.mark.parametrize("name", ["llava", "paligemma"])
def test_prompt_and_answer_are_two_texts(name: str) -> None:
    """PaliGemma looks ahead in its prompt: no pass is shared by the tokens of an answer."""
    model, tokenizer = vision_language_model(name), processors.tokenizer(eos=2)
    steps = wf.explain(model, ("a cat on the", "mat dog"), processor=tokenizer, method="attn_lrp")
    assert [step.target.label for step in steps] == ["mat", "dog"]
    ids = tokenizer("a cat on the", add_special_tokens=False)["input_ids"]
    for step, said in zip(steps, ([], ["mat"]), strict=True):
        so_far = {"input_ids": torch.tensor([ids + tokenizer.convert_tokens_to_ids(said)])}
        (alone,) = wf.explain(model, so_far, method="attn_lrp", target=step.target.index)
        np.testing.assert_allclose(step.scores, alone.scores, **CLOSE)
    assert len(wf.explain(model, "a cat on the", processor=tokenizer, method="occlusion", generate=2)) == 2
    if name == "paligemma":
        with pytest.raises(wf.errors.NotOffered, match="looks ahead"):
            wf.explain(model, ("a cat", "mat dog"), processor=tokenizer, span=True)


class Template:
    """A processor that holds the template, which reads lists of parts alone, as SmolVLM's does."""

    chat_template = (
        "{% for m in messages %}{{ m.role }} : {% for part in m.content %}{% if part.type == 'image' %}<image>"
        "{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %} {% endfor %}"
        "{% if add_generation_prompt %}dog :{% endif %}"
    )

    def __init__(self) -> None:
        self.tokenizer = processors.tokenizer()


@pytest.mark.parametrize("content", ["what is this", [{"type": "text", "text": "what is this"}]])
def test_messages_go_through_the_processors_template(content: Any) -> None:
    chat: Any = [{"role": "user", "content": content}]
    explained = wf.explain(vision_language_model("llava"), chat, processor=Template(), method="attn_lrp")
    assert explained.units.text == "user : what is this dog :"
    roles = dict(zip(explained.units.labels, explained.units.role, strict=True))
    assert {roles[word] for word in ("what", "is", "this")} == {"user"} and roles["dog"] == "template"
