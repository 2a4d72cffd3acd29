"""Head importance as the papers write it: a mask on the input of each output projection, one input at a time.

Michel, Levy & Neubig 2019 (arXiv:1905.10650) and Voita et al. 2019 (arXiv:1905.09418). Models run in float64 with
their own eager attention; the mask is a hook on W_O, so nothing here depends on how whyformer finds heads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from tests.models import CASES
from tests.models.case import HEADS, LAYERS
from tests.references.eager_attention import one_input, reported
from tests.support.released import VIT_ATTENTION, VIT_LAYERS

OUTPUT_PROJECTION = {
    "bert": "bert.encoder.layer.{}.attention.output.dense",
    "vit": f"{VIT_LAYERS}.{{}}.{VIT_ATTENTION[-1]}",
    "gpt2": "transformer.h.{}.attn.c_proj",
    "llama": "model.layers.{}.self_attn.o_proj",
}

Scalar = Callable[[Tensor], Tensor]


def logit(target: int) -> Scalar:
    return lambda logits: logits[target]


def loss(label: int) -> Scalar:
    return lambda logits: logits.logsumexp(0) - logits[label]


@cache
def double_model(name: str) -> nn.Module:
    return CASES[name].build("eager").double()


def masked(name: str, index: int, mask_LH: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits of one input with head h of layer l multiplied by mask[l, h], and the (masked) inputs of W_O."""
    model = double_model(name)
    seen: list[Tensor] = []

    def hook(layer: int) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
        def multiply(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            results = args[0].unflatten(-1, (HEADS, -1)) * mask_LH[layer][:, None]  # B, N, H, D
            seen.append(results)
            return (results.flatten(-2), *args[1:])

        return multiply

    modules = dict(model.named_modules())
    projections = [modules[OUTPUT_PROJECTION[name].format(layer)] for layer in range(LAYERS)]
    handles = [p.register_forward_pre_hook(hook(layer)) for layer, p in enumerate(projections)]
    logits = model(**one_input(CASES[name].inputs(), index)).logits[0]
    for handle in handles:
        handle.remove()
    return logits if logits.ndim == 1 else logits[-1], seen


def mask_gradient(name: str, index: int, scalar: Scalar) -> np.ndarray:
    """∂s/∂ξ at ξ = 1, by autograd on the mask itself."""
    mask = torch.ones(LAYERS, HEADS, dtype=torch.float64, requires_grad=True)
    logits, _ = masked(name, index, mask)
    (gradient,) = torch.autograd.grad(scalar(logits), mask)
    return gradient.numpy()


def finite_difference(name: str, index: int, scalar: Scalar, layer: int, head: int, step: float = 1e-5) -> float:
    values = []
    for sign in (1, -1):
        mask = torch.ones(LAYERS, HEADS, dtype=torch.float64)
        mask[layer, head] += sign * step
        values.append(float(scalar(masked(name, index, mask)[0]).detach()))
    return (values[0] - values[1]) / (2 * step)


def token_sums(name: str, index: int, scalar: Scalar) -> np.ndarray:
    """Σ over tokens of |Att_h(x)_t · ∂s/∂Att_h(x)_t|, as Michel's code has it."""
    logits, results = masked(name, index, torch.ones(LAYERS, HEADS, dtype=torch.float64))
    gradients = torch.autograd.grad(scalar(logits), results)
    sums = np.zeros((LAYERS, HEADS))
    for layer, (result, gradient) in enumerate(zip(results, gradients, strict=True)):
        for token in range(result.shape[1]):
            for head in range(HEADS):
                sums[layer, head] += abs(float((result[0, token, head].detach() * gradient[0, token, head]).sum()))
    return sums


def tokens(name: str, index: int) -> int:
    return masked(name, index, torch.ones(LAYERS, HEADS, dtype=torch.float64))[1][0].shape[1]


def ablation(name: str, index: int, scalar: Scalar, keep_one: bool = False) -> np.ndarray:
    """s(x) - s(x without the head): the mask at 0; or all other heads of its layer at 0."""
    whole = float(scalar(masked(name, index, torch.ones(LAYERS, HEADS, dtype=torch.float64))[0]).detach())
    drops = np.zeros((LAYERS, HEADS))
    for layer in range(LAYERS):
        for head in range(HEADS):
            mask = torch.ones(LAYERS, HEADS, dtype=torch.float64)
            if keep_one:
                mask[layer] = 0
                mask[layer, head] = 1
            else:
                mask[layer, head] = 0
            drops[layer, head] = whole - float(scalar(masked(name, index, mask)[0]).detach())
    return drops


def confidence(name: str, index: int, special: list[bool]) -> np.ndarray:
    """Mean over tokens of the largest weight, special tokens not being looked at."""
    result = np.zeros((LAYERS, HEADS))
    for layer, attention in enumerate(reported(name, index, 0).attention):
        for head in range(HEADS):
            rows = [max(w for w, s in zip(row, special, strict=True) if not s) for row in attention[head]]
            result[layer, head] = sum(rows) / len(rows)
    return result


def generic_relevance(name: str, index: int, target: int) -> np.ndarray:
    """What passes through each head on the way to the readout row, r = e (I + Ā_L) ··· (I + Ā_1); not normalised."""
    seen = reported(name, index, target)
    size = seen.attention[0].shape[-1]
    row = np.zeros(size)
    row[seen.row] = 1
    result = np.zeros((LAYERS, HEADS))
    for layer in reversed(range(LAYERS)):
        added = np.zeros(size)
        for head in range(HEADS):
            raised = np.maximum(0, seen.attention[layer][head] * seen.gradient[layer][head]) / HEADS
            through = np.array([sum(row[i] * raised[i, j] for i in range(size)) for j in range(size)])
            result[layer, head] = through.sum()
            added += through
        row = row + added
    return result
