"""Direct logit attribution, written from the weights: w_t · N(W_O^h z_h), the final norm's scale held constant.

Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tests.models import CASES
from tests.models.case import HEADS, LAYERS
from tests.references.eager_attention import one_input
from tests.references.head_importance import OUTPUT_PROJECTION

FINAL_NORM = {"vit": "vit.layernorm", "gpt2": "transformer.ln_f", "llama": "model.norm"}
UNEMBEDDING = {"vit": "classifier", "gpt2": "lm_head", "llama": "lm_head"}
READOUT = {"vit": 0, "gpt2": -1, "llama": -1}


def direct_shares(name: str, index: int, target: int) -> tuple[np.ndarray, float]:
    """(L, H) shares of the target's logit, and the logit."""
    case = CASES[name]
    model = case.build("eager").double()
    modules = dict(model.named_modules())
    projections = [modules[OUTPUT_PROJECTION[name].format(layer)] for layer in range(LAYERS)]
    norm = modules[FINAL_NORM[name]]
    seen: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen[module] = args[0].detach()

    for module in (*projections, norm):
        module.register_forward_pre_hook(keep)
    with torch.no_grad():
        logits = model(**one_input(case.inputs(), index)).logits[0]
    row = READOUT[name]
    stream = seen[norm][0, row]
    unembed = modules[UNEMBEDDING[name]].weight[target].detach()
    shares = np.zeros((LAYERS, HEADS))
    for layer, projection in enumerate(projections):
        # Conv1D (GPT-2) stores (in, out), Linear (out, in).
        weight = projection.weight.detach() if name == "gpt2" else projection.weight.detach().t()
        results = seen[projection][0, row].unflatten(0, (HEADS, -1))
        rows = weight.unflatten(0, (HEADS, -1))
        for head in range(HEADS):
            shares[layer, head] = float(normed(results[head] @ rows[head], stream, norm) @ unembed)
    return shares, float(logits[target] if logits.ndim == 1 else logits[-1, target])


def normed(part: Tensor, stream: Tensor, norm: nn.Module) -> Tensor:
    """A part of the stream after the norm, whose scale is that of the whole stream."""
    if isinstance(norm, nn.LayerNorm):
        return (part - part.mean()) / (stream.var(correction=0) + norm.eps).sqrt() * norm.weight.detach()
    return part / (stream.pow(2).mean() + norm.variance_epsilon).sqrt() * norm.weight.detach()
