"""Value times gradient: Σ over the layers of v_j · ∂s/∂v_j, v being what the value projection puts out.

Read off the projection by a hook, so that no attention map is needed: heads that share a value (Llama) add up in its
gradient by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tests.models import CASES
from tests.references.blocks import FAMILIES, model_of
from tests.references.eager_attention import one_input
from tests.references.twin import FAMILY, TARGET, Twin, each


@cache
def values_and_gradients(name: str, row: int) -> list[tuple[Tensor, Tensor]]:
    """Per layer (N, width) values of one input, padding cut off, and the gradient of the target's logit there."""
    names, model = FAMILIES[name], model_of(name)
    projected: list[Tensor] = []

    def keep(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        projected.append(out if out.requires_grad else out.detach().requires_grad_())
        return projected[-1]

    blocks = list(model.get_submodule(names.blocks))
    hooks = [block.get_submodule(names.value).register_forward_hook(keep) for block in blocks]
    try:
        logits = model(**one_input(CASES[name].inputs(), row)).logits[0]
    finally:
        for hook in hooks:
            hook.remove()
    logit = logits[TARGET] if logits.ndim == 1 else logits[-1, TARGET]
    gradients = torch.autograd.grad(logit, projected)
    pairs = []
    for value, gradient in zip(projected, gradients, strict=True):
        width = value.shape[-1] // 3 if names.packed else value.shape[-1]  # queries and keys come first
        pairs.append((value[0, :, -width:].detach(), gradient[0, :, -width:]))
    return pairs


def value_x_gradient(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    scores = torch.zeros(len(pairs[0][0]), dtype=torch.float64)
    for value, gradient in pairs:
        for j in range(len(scores)):
            for d in range(value.shape[1]):
                scores[j] += value[j, d] * gradient[j, d]
    return scores


def expected(name: str, row: int, layers: str | int | Sequence[int] = "all") -> dict[str, Tensor]:
    pairs = values_and_gradients(name, row)
    chosen = range(len(pairs)) if layers == "all" else [-1] if layers == "last" else layers
    return {"scores": value_x_gradient([pairs[i] for i in ([chosen] if isinstance(chosen, int) else chosen)])}


CHOICES: list[dict[str, Any]] = [{}, {"layers": "last"}, {"layers": 0}, {"layers": [0, 1]}]
TWIN = Twin(expected, each(FAMILY, CHOICES))
