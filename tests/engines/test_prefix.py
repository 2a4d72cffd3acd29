"""Caches that cannot be cut: hybrids of attention with states that sum a text up read variants as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import nn

import whyformer as wf
from tests.models.case import randint

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 8}
CONVOLUTION = {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
HYBRIDS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "bamba": lambda: (hf.BambaForCausalLM, hf.BambaConfig(
        **SIZES, **MAMBA, num_hidden_layers=2, attn_layer_indices=[1])),
    "lfm2_moe": lambda: (hf.Lfm2MoeForCausalLM, hf.Lfm2MoeConfig(
        **SIZES, **CONVOLUTION, **EXPERTS, num_dense_layers=1)),
    "minimax": lambda: (hf.MiniMaxForCausalLM, hf.MiniMaxConfig(
        **SIZES, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], num_local_experts=2,
        num_experts_per_tok=1, head_dim=8, block_size=8)),
    "recurrent_gemma": lambda: (hf.RecurrentGemmaForCausalLM, hf.RecurrentGemmaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=96, num_attention_heads=4, num_hidden_layers=3, lru_width=32,
        attention_window_size=16, bos_token_id=1, eos_token_id=2, pad_token_id=0)),
}  # fmt: skip
IDS = randint(5, 50, 1, 14)
INPUTS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def made(kind: Any, config: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = kind(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4 if weight.ndim > 1 else 1)
    return model


def by_hand(model: nn.Module, replace: int | str, target: int) -> list[float]:
    """One plain pass per token."""
    with torch.no_grad():
        scores = [float(model(input_ids=IDS).logits[0, -1, target])]
        for gone in range(IDS.shape[1]):
            ids = IDS.clone()
            ids[0, gone] = 9
            left = [i for i in range(IDS.shape[1]) if i != gone]
            changed = IDS[:, left] if replace == "delete" else ids
            scores.append(float(model(input_ids=changed).logits[0, -1, target]))
    return [scores[0] - score for score in scores[1:]]


@pytest.mark.parametrize("name", HYBRIDS)
def test_states_that_cannot_be_cut_are_not_gone_on_from(name: str) -> None:
    model = made(*HYBRIDS[name]())
    for replace in (9, "delete"):
        (found,) = wf.explain(model, INPUTS, method="occlusion", replace=replace, batch_size=4, progress=False)
        expected = by_hand(model, replace, found.target.index)
        np.testing.assert_allclose(found.scores, expected, atol=1e-5 * np.abs(expected).max() + 1e-5)
        assert "prefix_reused" not in found.checks
    (found,) = wf.explain(model, INPUTS, method="two_ended", replace=9, progress=False)
    assert np.isfinite(found.scores).all() and found.scores.any()


def test_angles_that_depend_on_the_length_are_shared_by_texts_of_one_length() -> None:
    """Without one of 14 tokens, the text is on the other side of the switch between short and long factors."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    config = hf.Phi3Config(
        **SIZES, num_hidden_layers=2, original_max_position_embeddings=13, rope_parameters=rope | {"factor": 4.0}
    )
    model = made(hf.Phi3ForCausalLM, config)
    for replace, reused in ((9, True), ("delete", False)):
        (found,) = wf.explain(model, INPUTS, method="occlusion", replace=replace, batch_size=4, progress=False)
        np.testing.assert_allclose(found.scores, by_hand(model, replace, found.target.index), atol=1e-4)
        assert ("prefix_reused" in found.checks) == reused
