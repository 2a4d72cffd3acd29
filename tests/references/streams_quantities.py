"""Attention and gradients of models with several streams, taken from the model itself, one input, padding cut off."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from tests.models import CASES, run
from tests.models.case import softmax_outputs
from tests.references.generic_attention_streams import Layer


def alone(name: str, index: int) -> dict[str, Tensor]:
    """One input of a case, its padding cut off."""
    inputs: Any = CASES[name].inputs()
    one = {k: v[index : index + 1] for k, v in inputs.items()}
    if "attention_mask" in one:
        width = one["attention_mask"].shape[1]
        real = one["attention_mask"][0].bool()
        text = ("input_ids", "attention_mask")
        one = {k: v[:, real] if k in text and v.shape[1] == width else v for k, v in one.items()}
    return one


@cache
def layers_of(name: str, index: int, target: int) -> list[Layer]:
    """(attention, gradient) of every attention call, in call order: all softmaxes of an eager float64 model."""
    case = CASES[name]
    model = case.build("eager").double()
    one = {k: v.double() if v.is_floating_point() else v for k, v in alone(name, index).items()}
    assert case.logits is not None
    with softmax_outputs() as found:
        logits = case.logits(run(model, one))[0]
    maps = [p for p in found if p.ndim == 4]
    gradients = torch.autograd.grad(logits[target], maps, allow_unused=True)
    return [
        (p[0].detach().double().numpy(), (torch.zeros_like(p) if g is None else g)[0].double().numpy())
        for p, g in zip(maps, gradients, strict=True)
    ]
