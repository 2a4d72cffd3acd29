"""What the twins start from, taken from the model itself (eager, ``output_attentions``), never from whyformer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from tests.models import CASES, Case
from tests.references.twin import TARGET


@dataclass
class Quantities:
    """One input: attention and gradient per layer, (H, Q, K), float64, without padding."""

    attention: list[Tensor]
    gradient: list[Tensor]
    row: int
    logit: float


def quantities(case: Case, model: nn.Module, index: int, target: int) -> Quantities:
    """Attention maps and d logit[target] / d attention of one input of a case, run alone and without padding."""
    inputs = {k: v[index : index + 1] for k, v in case.inputs().items()}
    mask = inputs.get("attention_mask")
    if mask is not None:
        keep = mask[0].bool()
        inputs = {k: v[:, keep] if v.shape[:2] == mask.shape else v for k, v in inputs.items()}
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    out = model(**inputs, output_attentions=True)
    logits = out.logits[0, -1] if out.logits.ndim == 3 else out.logits[0]
    gradient = torch.autograd.grad(logits[target], out.attentions)
    row = out.attentions[-1].shape[-1] - 1 if case.readout == "last" else int(case.readout)
    return Quantities(
        [a[0].detach() for a in out.attentions], [g[0] for g in gradient], row, float(logits[target].detach())
    )


@cache
def quantities_of(name: str, index: int) -> Quantities:
    """Those of a float64 model of the case, for the target of all twins."""
    return quantities(CASES[name], CASES[name].build("eager").double(), index, TARGET)
