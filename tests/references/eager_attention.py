"""Attention maps and their gradients as the model itself reports them, one input at a time, without padding.

What the twins of the attention methods are fed with: nothing here knows about whyformer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from tests.models import CASES
from tests.models.case import softmax_outputs

Array = np.ndarray


@dataclass
class Reported:
    """One input: per layer (H, Q, K) attention and gradient of the target's logit; the row that is read."""

    attention: list[Array]
    gradient: list[Array]
    row: int
    logit: float
    first_query: int = 0


@cache
def reported(name: str, index: int, target: int) -> Reported:
    """Run a fresh float64 eager model of the case on one of its inputs, padding cut off."""
    case = CASES[name]
    model = case.build("eager").double()
    single = one_input(case.inputs(), index)
    output = model(**single, output_attentions=True)
    logits = output.logits[0]
    row = 0 if case.readout == 0 else output.attentions[0].shape[-1] - 1
    logit = logits[target] if logits.ndim == 1 else logits[row, target]
    gradients = torch.autograd.grad(logit, output.attentions)
    return Reported(
        [a[0].detach().numpy() for a in output.attentions],
        [g[0].numpy() for g in gradients],
        row,
        float(logit.detach()),
    )


@cache
def reported_by_columns(name: str, index: int, target: int) -> Reported:
    """The same for a table model, whose last layer has one query row; its softmaxes are its attention."""
    case = CASES[name]
    model = case.build(None).double()
    single = [x[index : index + 1] for x in case.inputs()]
    with softmax_outputs() as found:
        logits = model(*[x.double() if x.is_floating_point() else x for x in single])
    gradients = torch.autograd.grad(logits[0, target], found)
    return Reported(
        [a.detach().numpy() for a in found], [g.numpy() for g in gradients], 0, float(logits[0, target].detach())
    )


def one_input(inputs: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    single = {k: v[index : index + 1] for k, v in inputs.items()}
    if "attention_mask" in single:
        real = single["attention_mask"][0].bool()
        single = {k: v[:, real] for k, v in single.items()}
    return {k: v.double() if v.is_floating_point() else v for k, v in single.items()}
