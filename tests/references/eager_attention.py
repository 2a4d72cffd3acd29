"""Attention maps and their gradients as the model itself reports them, one input at a time, without padding.

What the twins of the attention methods are fed with: nothing here knows about whyformer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.models import CASES
from tests.models.case import Inputs, alone, softmax_outputs
from tests.references.twin import TARGET

Array = np.ndarray


@dataclass
class Reported:
    """One input: per layer (H, Q, K) attention and gradient of the target's logit; the row that is read."""

    attention: list[Any]
    gradient: list[Any]
    row: int
    logit: float


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


@cache
def quantities_of(name: str, index: int) -> Reported:
    """The same as tensors, for the target of all twins."""
    found = reported(name, index, TARGET)
    attention, gradient = (list(map(torch.from_numpy, maps)) for maps in (found.attention, found.gradient))
    return replace(found, attention=attention, gradient=gradient)


def one_input(inputs: Inputs, index: int) -> dict[str, Tensor]:
    """One input in float64, its padding cut off."""
    single: Any = alone(inputs, index)
    return {k: v.double() if v.is_floating_point() else v for k, v in single.items()}
