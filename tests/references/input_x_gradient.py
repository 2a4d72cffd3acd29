"""Input × gradient by hand: r_i = Σ_d x_id · ∂s/∂x_id at the word embeddings, one input at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def score_at(model: nn.Module, embeddings_ND: Tensor, target: int) -> Tensor:
    """The target's logit when the words are these vectors; the model adds positions itself."""
    logits = model(inputs_embeds=embeddings_ND[None]).logits[0]
    return (logits[-1] if logits.ndim == 2 else logits)[target]


def input_x_gradient(model: nn.Module, ids_N: Tensor, target: int) -> Tensor:
    words = model.get_input_embeddings()(ids_N).detach().requires_grad_()
    score_at(model, words, target).backward()
    assert words.grad is not None
    scores = torch.zeros(len(ids_N), dtype=torch.float64)
    for i in range(len(ids_N)):
        for d in range(words.shape[1]):
            scores[i] += float(words.detach()[i, d]) * float(words.grad[i, d])
    return scores
