"""attn_lrp and cp_lrp on layers with a state: against plain torch, and conserved in whole models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import seeded
from tests.references import recurrent_lrp as twin
from tests.support.released import released, require_state_per_batch

IDS = torch.tensor([[5, 17, 33, 60, 21, 9, 44, 3, 8, 71, 12]])
TEXT = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2}
TEXT |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEADS = {"intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
STATES = {"mamba_d_state": 4, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_expand": 2}
STATES |= {"mamba_chunk_size": 4, "mamba_d_conv": 4}
DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
DELTA |= {"linear_conv_kernel_dim": 3, "layer_types": ["linear_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("Mamba", {"state_size": 4}),
    "falcon_mamba": ("FalconMamba", {"state_size": 4}),
    "mamba2": ("Mamba2", {"state_size": 4, "num_heads": 4, "head_dim": 16, "n_groups": 2, "chunk_size": 4}),
    "rwkv": ("Rwkv", {"attention_hidden_size": 32, "context_length": 64}),
    "falcon_h1": ("FalconH1", HEADS | STATES | {"mamba_d_ssm": 64}),
    "granite": (
        "GraniteMoeHybrid",
        HEADS
        | STATES
        | {"layer_types": ["mamba", "attention"], "num_local_experts": 4, "shared_intermediate_size": 32},
    ),
    "qwen3_next": ("Qwen3Next", HEADS | DELTA | EXPERTS | {"shared_expert_intermediate_size": 16, "head_dim": 8}),
    "qwen3_5": ("Qwen3_5", HEADS | DELTA | {"head_dim": 8}),
    "lfm2": ("Lfm2", HEADS | {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3}),
    "recurrent_gemma": (
        "RecurrentGemma",
        HEADS | {"lru_width": 32, "attention_window_size": 6, "block_types": ["recurrent", "attention"]},
    ),
}
WITHOUT_ATTENTION = {"mamba", "falcon_mamba", "mamba2", "rwkv"}


def built(name: str) -> nn.Module:
    """A tiny model, with weights large enough that every factor matters, and without biases, which absorb relevance."""
    family, settings = CONFIGS[name]
    require_state_per_batch(name)
    kind = released(f"{family}ForCausalLM")
    config = getattr(transformers, f"{family}TextConfig", None) or getattr(transformers, f"{family}Config")
    model = seeded(lambda: kind(config(**TEXT | settings)))
    generator = torch.Generator().manual_seed(1)
    for path, weight in model.named_parameters():
        if path.endswith("bias") and "dt" not in path:
            weight.data.zero_()
        elif path.endswith(("A_log", "time_decay", "time_first", "dt_bias", "D", "recurrent_param")):
            weight.data = 0.5 * torch.randn(weight.shape, generator=generator)
        elif weight.ndim > 1:
            weight.data = 0.3 * torch.randn(weight.shape, generator=generator)
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_relevance_is_conserved_and_no_rule_is_missing(name: str) -> None:
    """attn_lrp is conserved as far as softmax goes: its Taylor expansion is not. cp_lrp is conserved in all of them."""
    inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    found = wf.explain(built(name), inputs, method=["attn_lrp", "cp_lrp"], target=3)
    for method, (one,) in found.items():
        assert one.warnings == (), method
        if method == "cp_lrp" or name in WITHOUT_ATTENTION:
            assert one.checks["conservation_error"] <= 1e-5 * np.abs(one.scores).sum(), method


class OneLayer(nn.Module):
    """A layer between word embeddings and a classifier."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.words, self.layer, self.head = nn.Embedding(100, 32), layer, nn.Linear(32, 3, bias=False)
        for weight in (self.words.weight, self.head.weight):
            weight.data = torch.randn(weight.shape, generator=generator)

    def forward(self, input_ids: Tensor) -> Tensor:
        out = self.layer(self.words(input_ids))
        return self.head((out[0] if isinstance(out, tuple) else out).mean(1))


LAYERS: dict[str, tuple[str, Callable[[Any, Tensor], Tensor]]] = {
    "mamba": ("backbone.layers.0.mixer", twin.mamba),
    "mamba2": ("backbone.layers.0.mixer", twin.mamba2),
    "falcon_h1": ("model.layers.0.mamba", twin.mamba2),
    "granite": ("model.layers.0.mamba", twin.mamba2),
    "qwen3_next": ("model.layers.0.linear_attn", twin.gated_delta),
    "qwen3_5": ("model.layers.0.linear_attn", twin.gated_delta),
    "lfm2": ("model.layers.0.conv", twin.short_conv),
    "rwkv": ("rwkv.blocks.0.attention", twin.rwkv),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_equals_plain_torch(name: str) -> None:
    path, written = LAYERS[name]
    model = OneLayer(built(name).get_submodule(path)).eval()
    (found,) = wf.explain(model, {"input_ids": IDS}, method="attn_lrp", target=1)
    x_TE = model.words(IDS[0]).detach().requires_grad_()
    logit = (written(model.layer, x_TE).mean(0) @ model.head.weight.T)[1]
    assert logit.item() == pytest.approx(found.value, rel=1e-4), "the twin computes the layer"
    (gradient,) = torch.autograd.grad(logit, x_TE)
    expected = (x_TE * gradient).sum(-1).detach().numpy()
    np.testing.assert_allclose(found.scores, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    assert expected.sum() == pytest.approx(logit.item(), rel=1e-3), "the twin conserves relevance"
