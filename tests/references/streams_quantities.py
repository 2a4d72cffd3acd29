"""Attention and gradients of models with several streams, taken from the model itself, one input, padding cut off."""

from __future__ import annotations

from functools import cache

import torch

from tests.models import CASES, run
from tests.models.case import softmax_outputs
from tests.references.eager_attention import one_input
from tests.references.generic_attention_streams import Layer


@cache
def layers_of(name: str, index: int, target: int) -> list[Layer]:
    """(attention, gradient) of every attention call, in call order: all softmaxes of an eager float64 model."""
    case = CASES[name]
    model = case.build("eager").double()
    one = one_input(case.inputs(), index)
    assert case.logits is not None
    with softmax_outputs() as found:
        logits = case.logits(run(model, one))[0]
    maps = [p for p in found if p.ndim == 4]
    gradients = torch.autograd.grad(logits[target], maps, allow_unused=True)
    return [
        (p[0].detach().double().numpy(), (torch.zeros_like(p) if g is None else g)[0].double().numpy())
        for p, g in zip(maps, gradients, strict=True)
    ]
