"""Hops, in plain torch: relevance on the spans before an answer, handed on latest first, hop by hop.

For any method that explains Σ_t log p(token t), of the answer, and Σ_t w_t log(p / (1 - p)), of a span. Two of them are
written out: input × gradient, which has a sign, and generic attention (Chefer et al. 2021), which has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Span = tuple[int, int]  # first token, and the one after the last
Method = Callable[[Any, list[int], int, list[float], bool], list[float]]
EVEN = 0.8


def weighted(logits_NV: Tensor, ids: list[int], first: int, weights: list[float], odds: bool) -> Tensor:
    """Σ_t w_t log p(t | tokens before t), or of p / (1 - p); logits: of the tokens before the last one."""
    value = torch.zeros((), dtype=logits_NV.dtype)
    for number, weight in enumerate(weights):
        place = first + number
        p = logits_NV[place - 1].softmax(0)[ids[place]]
        value = value + weight * torch.log(p / (1 - p) if odds else p)
    return value


def input_x_gradient(lm: Any, ids: list[int], first: int, weights: list[float], odds: bool) -> list[float]:
    read = torch.tensor([ids[: first + len(weights) - 1]])
    leaf = lm.get_input_embeddings()(read).detach().requires_grad_()
    value = weighted(lm(inputs_embeds=leaf).logits[0], ids, first, weights, odds)
    (gradient,) = torch.autograd.grad(value, leaf)
    return [float(x @ g) for x, g in zip(leaf[0].detach(), gradient[0], strict=True)]


def generic_attention(lm: Any, ids: list[int], first: int, weights: list[float], odds: bool) -> list[float]:
    """R = Π (I + mean_h relu(A ∘ ∂s/∂A)), read in the rows that predict the span, by the size of their weights."""
    read = torch.tensor([ids[: first + len(weights) - 1]])
    said = lm(input_ids=read, output_attentions=True)
    value = weighted(said.logits[0], ids, first, weights, odds)
    relevance = torch.eye(read.shape[1], dtype=said.logits.dtype)
    for maps, gradients in zip(said.attentions, torch.autograd.grad(value, said.attentions), strict=True):
        relevance = relevance + (maps * gradients).clamp(min=0).mean(1)[0].detach() @ relevance
    rows = [abs(weight) * relevance[first - 1 + number] for number, weight in enumerate(weights)]
    return (torch.stack(rows).sum(0) / sum(abs(weight) for weight in weights)).tolist()


def handed_on(
    lm: Any, ids: list[int], answer: Span, spans: Sequence[Span], hops: int, method: Method
) -> tuple[list[float], list[list[float]]]:
    """Return the scores of the tokens before the answer's last, and what each span handed on, in order."""
    direct = method(lm, ids, answer[0], [1.0] * (answer[1] - answer[0]), False)
    scores, maps, stayed = direct, [], dict[Span, list[float]]()
    for _ in range(hops):
        scores = list(direct)
        for first, stop in sorted(spans, reverse=True):
            inside, count = scores[first:stop], stop - first
            total, size = sum(inside), sum(abs(score) for score in inside)
            sign = 1 if total > 0 else -1
            mattered = [sign * score / size for score in inside]
            if (first, stop) in stayed:
                mattered = [one + more for one, more in zip(mattered, stayed[first, stop], strict=True)]
            norm = sum(abs(one) for one in mattered)
            weights = [EVEN + (1 - EVEN) * count * one / norm for one in mattered]
            speaking = [max(0.0, score) for score in method(lm, ids, first, weights, True)]
            stayed[first, stop] = [score / sum(speaking) for score in [*speaking[first:], 0.0]]
            before = speaking[:first]
            received = [total * score / sum(before) for score in before]
            scores = (
                [score + more for score, more in zip(scores, received, strict=False)] + [0.0] * count + scores[stop:]
            )
            maps.append(received + [0.0] * (len(direct) - first))
    return scores, maps
