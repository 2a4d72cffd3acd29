"""The attention debate, one input, one shuffle, one weight at a time, on a Hugging Face BERT with eager attention.

Attention is imposed by answering the model's own softmax calls: nothing of whyformer is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn


@contextmanager
def answering(change: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """The n-th softmax of the model returns ``change(n, what it would have returned)``."""
    original, calls = torch.nn.functional.softmax, 0

    def softmax(*args: Any, **kwargs: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return change(calls - 1, original(*args, **kwargs))

    with patch.object(torch.nn.functional, "softmax", softmax):
        yield


def output(model: nn.Module, one: dict[str, Tensor], rows: dict[int, Tensor], query: int = 0) -> list[float]:
    """Probabilities with row ``query`` of some layers replaced: layer → (H, K)."""

    def change(layer: int, attention: Tensor) -> Tensor:
        if layer not in rows:
            return attention
        changed = attention.clone()
        changed[0, :, query] = rows[layer]
        return changed

    with torch.no_grad(), answering(change):
        logits = model(**one).logits[0]
    return [math.exp(float(x)) / sum(math.exp(float(y)) for y in logits) for x in logits]


def own_row(model: nn.Module, one: dict[str, Tensor], layer: int, query: int = 0) -> Tensor:
    """(H, K) the model's own attention of one query."""
    with torch.no_grad():
        return model(**one, output_attentions=True).attentions[layer][0, :, query]


def total_variation(p: list[float], q: list[float]) -> float:
    return sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


def divergence(p: list[float], q: list[float]) -> float:
    """Jensen–Shannon divergence in nats, from its definition."""
    total = 0.0
    for a, b in zip(p, q, strict=True):
        middle = (a + b) / 2
        total += a / 2 * math.log(a / middle) if a else 0.0
        total += b / 2 * math.log(b / middle) if b else 0.0
    return total


def gradient_x_input(model: nn.Module, one: dict[str, Tensor], target: int) -> list[float]:
    """|Σ_d x_d · ∂ log-odds / ∂x_d| of every word embedding, with attention detached."""
    words = model.get_input_embeddings()(one["input_ids"]).detach().requires_grad_()
    rest = {k: v for k, v in one.items() if k != "input_ids"}
    with answering(lambda _, attention: attention.detach()):
        logits = model(inputs_embeds=words, **rest).logits[0]
    others = torch.stack([x for i, x in enumerate(logits) if i != target])
    (grad,) = torch.autograd.grad(logits[target] - others.logsumexp(0), words)
    return [abs(float((grad[0, i] * words[0, i]).sum().detach())) for i in range(words.shape[1])]


def leave_one_out(model: nn.Module, one: dict[str, Tensor], filler: int) -> list[float]:
    before = output(model, one, {})
    found = []
    for i in range(one["input_ids"].shape[1]):
        ids = one["input_ids"].clone()
        ids[0, i] = filler
        found.append(total_variation(output(model, one | {"input_ids": ids}, {}), before))
    return found


def kendall(a: list[float], b: list[float]) -> float:
    """τ-b by counting pairs."""
    agree = tied_a = tied_b = 0
    pairs = [(i, j) for i in range(len(a)) for j in range(i)]
    for i, j in pairs:
        x, y = (a[i] > a[j]) - (a[i] < a[j]), (b[i] > b[j]) - (b[i] < b[j])
        agree += x * y
        tied_a, tied_b = tied_a + (x == 0), tied_b + (y == 0)
    return agree / math.sqrt((len(pairs) - tied_a) * (len(pairs) - tied_b))


def erased_until_flip(model: nn.Module, one: dict[str, Tensor], layer: int, order: list[int]) -> float | None:
    """Share of ``order`` that was erased when the decision flipped: weights set to 0, the row renormalised."""
    row = own_row(model, one, layer)
    decision = max(range(len(p := output(model, one, {}))), key=p.__getitem__)
    for count in range(1, len(order) + 1):
        left = row.clone()
        for key in order[:count]:
            left[:, key] = 0
        left = left / left.sum(-1, keepdim=True)
        p = output(model, one, {layer: left})
        if max(range(len(p)), key=p.__getitem__) != decision:
            return count / len(order)
    return None
