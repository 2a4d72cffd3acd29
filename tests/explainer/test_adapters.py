"""Adapters (peft) at any projection: every method gives the scores of the model with the adapter merged."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import whyformer as wf
from tests.models.case import seeded
from tests.models.hf import ENCODER
from whyformer import errors
from whyformer.loan.backwards import quantised_layers

pytestmark = pytest.mark.filterwarnings("ignore")  # of peft
IDS = torch.tensor([[5, 17, 33, 60, 21, 9], [7, 8, 33, 60, 21, 9]])
INPUTS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
SIZES = {key: value for key, value in ENCODER.items() if key != "num_labels"}


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return seeded(lambda: BertForSequenceClassification(BertConfig(**ENCODER)))


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return seeded(lambda: LlamaForCausalLM(LlamaConfig(**SIZES)))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1)
    return seeded(lambda: GPT2LMHeadModel(config))


def config_of(kind: str, **settings: Any) -> Any:
    """A config of peft, whose import takes as long as that of all other test files: only who runs these imports it."""
    import peft

    return getattr(peft, kind)(**settings)


def with_adapter(model: nn.Module, config: Callable[[], Any]) -> Any:
    import peft

    return peft.get_peft_model(model, config())


lora, ia3 = partial(partial, config_of, "LoraConfig"), partial(partial, config_of, "IA3Config")
learned_prompt = partial(partial, config_of, "PromptTuningConfig", num_virtual_tokens=3)


def adapted(model: nn.Module, config: Callable[[], Any]) -> Any:
    """The model with an adapter that changes it: what peft begins with has no effect."""
    model = with_adapter(model, config)
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if "lora_" in name or "ia3_" in name:
            begun = weight.data if "ia3_" in name or "magnitude" in name else 0
            weight.data = begun + 0.2 * torch.randn(weight.shape, generator=generator)
    return model.eval()


def same_scores(model: nn.Module, merged: nn.Module, methods: list[str]) -> None:
    for method in methods:
        few: dict[str, Any] = {"steps": 4} if method == "integrated_gradients" else {}
        found, expected = (wf.explain(m, INPUTS, method=method, target=1, **few) for m in (model, merged))
        for ours, twins in zip(found, expected, strict=True):
            largest = float(np.abs(twins.scores).max())
            np.testing.assert_allclose(ours.scores, twins.scores, rtol=0, atol=1e-5 * largest + 1e-8, err_msg=method)
            assert ours.warnings == twins.warnings, method


EVERY = [name for name in wf.list_methods() if name not in {"random", "grad_cam", "vit_cx", "shap", "smooth_grad"}]
NEED_WEIGHTS = ["value_norms", "decompx", "transformer_attribution"]
CASES: dict[str, tuple[Callable[[], nn.Module], Any, list[str]]] = {
    "every layer": (llama, lora(r=4, target_modules="all-linear"), EVERY),
    "with biases": (bert, lora(r=4, target_modules="all-linear", lora_bias=True), NEED_WEIGHTS),
    "values and output": (llama, lora(r=4, target_modules=["v_proj", "o_proj"]), NEED_WEIGHTS),
    "transposed weights": (
        gpt2,
        lora(r=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True),
        NEED_WEIGHTS,
    ),
    "dora": (llama, lora(r=4, target_modules="all-linear", use_dora=True), NEED_WEIGHTS),
    "ia3": (
        llama,
        ia3(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
        NEED_WEIGHTS,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_scores_are_those_of_the_merged_model(name: str) -> None:
    make, config, methods = CASES[name]
    model = adapted(make(), config)
    merged = deepcopy(model).merge_and_unload().eval()
    plain, base = merged(IDS).logits, make().eval()(IDS).logits
    torch.testing.assert_close(model(IDS).logits, plain, atol=1e-5, rtol=1e-4)
    assert (plain - base).abs().max() > 0.01, "the adapter has an effect"
    same_scores(model, merged, methods)
    assert not any("forward" in vars(module) for module in model.modules()), "as it came"


def test_an_adapter_on_a_quantised_model() -> None:
    """As QLoRA trains it."""
    from tests.support.quantised import dequantised, loaded, quiet

    config = lora(r=4, target_modules=["query", "value", "dense"])
    with quiet():
        base = loaded("nf4")
        twin = adapted(dequantised(base), config).merge_and_unload().eval()
        model = adapted(base, config)
        ids = {"input_ids": IDS[:1], "attention_mask": torch.ones_like(IDS[:1])}
        for method in ("attn_lrp", "decompx"):
            found, expected = (wf.explain(m, ids, method=method, target=1)[0].scores for m in (model, twin))
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max(), err_msg=method)
    assert quantised_layers(model)


def test_an_adapter_at_the_word_embedding_has_to_be_merged_for_gradients() -> None:
    model = adapted(llama(), lora(r=4, target_modules=["embed_tokens", "q_proj"]))
    with pytest.raises(errors.NotOffered, match=r"word embedding of this model has an adapter.*merge_and_unload\(\)"):
        wf.explain(model, INPUTS, method="attn_lrp", target=1)
    merged = deepcopy(model).merge_and_unload().eval()
    same_scores(model, merged, ["generic_attention", "occlusion", "value_norms"])


def test_a_learned_prompt_is_not_left_out() -> None:
    """A classifier is explained with it; a language model reads another position then, and is refused."""
    model = with_adapter(bert(), learned_prompt(task_type="SEQ_CLS")).eval()
    found = wf.explain(model, INPUTS, method="generic_attention", target=1)[0]
    assert found.value == pytest.approx(float(model(**INPUTS).logits[0, 1]), abs=1e-5)
    assert found.units.special == (True,) * 3 + (False,) * 6
    model = with_adapter(llama(), learned_prompt(task_type="CAUSAL_LM")).eval()
    with pytest.raises(errors.NotOffered, match=r"PeftModelForCausalLM puts a learned prompt.*get_base_model\(\)"):
        wf.explain(model, INPUTS, method="occlusion", target=1)
