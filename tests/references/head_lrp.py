"""Relevance of heads by CP-LRP on a Llama without biases, by linearising the model at one input.

With attention maps, gates and the scales of the norms held at what they were, the model is linear in its embeddings,
and the ε rule (ε → 0) hands each summand its own part of the output. So the relevance of a head is what the logit loses
when that head's result is taken out of the linearised model.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tests.models import CASES
from tests.models.case import HEADS, LAYERS
from tests.references.eager_attention import one_input


def lrp_relevance(index: int, target: int) -> tuple[np.ndarray, float]:
    """(L, H) signed relevance in the Llama case, and the logit."""
    case = CASES["llama"]
    model = case.build("eager").double().requires_grad_(False)
    single = one_input(case.inputs(), index)
    scales: dict[nn.Module, Tensor] = {}
    gates: dict[nn.Module, Tensor] = {}

    def keep_scale(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        scales[module] = (args[0].pow(2).mean(-1, keepdim=True) + module.variance_epsilon).rsqrt()

    def keep_gate(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        gates[module] = out

    handles = []
    for name, module in model.named_modules():
        if name.endswith("norm"):
            handles.append(module.register_forward_pre_hook(keep_scale))
        if name.endswith("act_fn"):
            handles.append(module.register_forward_hook(keep_gate))
    out = model(**single, output_attentions=True)
    for handle in handles:
        handle.remove()

    def linear(without: tuple[int, int] | None) -> float:
        def norm(module: nn.Module, x: Tensor) -> Tensor:
            return x * scales[module][0] * module.weight

        x = model.model.embed_tokens(single["input_ids"])[0]
        for number, layer in enumerate(model.model.layers):
            attention, mlp = layer.self_attn, layer.mlp
            value = attention.v_proj(norm(layer.input_layernorm, x)).unflatten(-1, (-1, attention.head_dim))
            value = value.repeat_interleave(HEADS // value.shape[1], 1)
            results = torch.einsum("hqk,khd->qhd", out.attentions[number][0], value)
            if without is not None and without[0] == number:
                results[:, without[1]] = 0
            x = x + attention.o_proj(results.flatten(1))
            gated = gates[mlp.act_fn][0] * mlp.up_proj(norm(layer.post_attention_layernorm, x))
            x = x + mlp.down_proj(gated)
        return float(model.lm_head(norm(model.model.norm, x))[-1, target])

    whole = linear(None)
    relevance = [[whole - linear((layer, head)) for head in range(HEADS)] for layer in range(LAYERS)]
    return np.array(relevance), whole
