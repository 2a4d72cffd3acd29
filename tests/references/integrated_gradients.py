"""Integrated gradients by hand: (x - x') · mean of the gradients at many midpoints of the straight line."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.references.input_x_gradient import score_at


def integrated_gradients(model: nn.Module, ids_N: Tensor, target: int, baseline_id: int, points: int = 2000) -> Tensor:
    """A midpoint rule with very many points: slow, but it needs no quadrature weights to be right."""
    table = model.get_input_embeddings()
    words = table(ids_N).detach()
    start = table(torch.full_like(ids_N, baseline_id)).detach()
    total = torch.zeros_like(words)
    for k in range(points):
        at = (start + (k + 0.5) / points * (words - start)).requires_grad_()
        (gradient,) = torch.autograd.grad(score_at(model, at, target), at)
        total += gradient / points
    return ((words - start) * total).sum(1)
