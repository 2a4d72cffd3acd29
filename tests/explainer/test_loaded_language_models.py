"""Language models as people load them: cache on, compiled, adapted, with experts and windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.support.language import model, tokenizer

TEXT = "the cat sat on the mat and the big red dog ran home"


class LoRA(nn.Module):
    """A linear layer with a low-rank change beside it, as adapters wrap it: W x + s B A x."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base
        generator = torch.Generator().manual_seed(rank)
        self.down = nn.Parameter(torch.randn(rank, base.in_features, generator=generator) * 0.3)
        self.up = nn.Parameter(torch.randn(base.out_features, rank, generator=generator) * 0.3)

    def forward(self, hidden: Tensor) -> Tensor:
        changed: Tensor = self.base(hidden) + hidden @ self.down.T @ self.up.T
        return changed


def adapted(merged: bool) -> nn.Module:
    """A Llama with adapters at queries and values, beside the weights or added to them."""
    lm: Any = model("llama")
    for layer in lm.model.layers:
        for name in ("q_proj", "v_proj"):
            wrapped = LoRA(getattr(layer.self_attn, name))
            if merged:
                with torch.no_grad():
                    wrapped.base.weight += wrapped.up @ wrapped.down
            else:
                setattr(layer.self_attn, name, wrapped)
    return lm


@pytest.mark.parametrize("method", ["attn_lrp", "generic_attention", "attention_rollout", "occlusion"])
def test_adapters_are_part_of_the_model(method: str) -> None:
    beside, merged = (wf.explain(adapted(way), TEXT, processor=tokenizer(), method=method) for way in (False, True))
    assert beside.value == pytest.approx(merged.value, rel=1e-4)
    if method != "attn_lrp":  # the added path takes a share of its own, as any sum does
        np.testing.assert_allclose(beside.scores, merged.scores, atol=1e-4 * np.abs(merged.scores).max())


@pytest.mark.parametrize("way", ["cached", "compiled"])
def test_a_cache_that_is_on_stays_on_and_a_compiled_model_is_looked_into_uncompiled(way: str) -> None:
    lm: Any = model("llama")
    lm.config.use_cache = lm.generation_config.use_cache = True
    found = wf.explain(torch.compile(lm, backend="eager") if way == "compiled" else lm, TEXT, tokenizer(), generate=2)
    plain = wf.explain(model("llama"), TEXT, processor=tokenizer(), generate=2)
    assert found.text == plain.text
    np.testing.assert_allclose(found[0].scores, plain[0].scores, rtol=1e-4, atol=1e-6)
    assert lm.config.use_cache and lm.generation_config.use_cache


@pytest.mark.parametrize("family", ["mixtral", "mistral"])
def test_experts_and_windows(family: str) -> None:
    """generate, spans and single tokens agree, with experts that are chosen per token and attention in windows."""
    import transformers as t

    from tests.models.case import seeded
    from tests.support.language import SHORT, SMALL

    sizes = SMALL | SHORT | {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6}
    if family == "mixtral":
        config = t.MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2)
        lm = seeded(lambda: t.MixtralForCausalLM(config))
    else:
        lm = seeded(lambda: t.MistralForCausalLM(t.MistralConfig(**sizes)))
    said = wf.explain(lm, TEXT, processor=tokenizer(), generate=2, method="input_x_gradient")
    ids = tokenizer()(TEXT)["input_ids"]
    how = {"method": "input_x_gradient", "target": said[0].target.index}
    (alone,) = wf.explain(lm, {"input_ids": torch.tensor([ids])}, **how)
    np.testing.assert_allclose(said[0].scores, alone.scores, atol=1e-4 * np.abs(alone.scores).max())


def test_a_vocabulary_times_length_is_never_made() -> None:
    """Logits are computed at the positions that are explained, whatever is asked."""
    lm: Any = model("llama")
    sizes: list[int] = []
    lm.lm_head.register_forward_hook(lambda module, args, out: sizes.append(out.shape[1]))
    longer = " ".join([TEXT] * 4)
    for how in ({}, {"span": True}, {"method": "occlusion", "span": True, "units": "word"}):
        wf.explain(lm, [(longer, "yes . no ."), (TEXT, "no .")], processor=tokenizer(), **how)  # type: ignore[arg-type]
    assert max(sizes) <= 16 < len(tokenizer()(longer)["input_ids"])
