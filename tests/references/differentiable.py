"""One input of a test model as numbers to differentiate: word embeddings or pixels, in float64, without whyformer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from tests.models import CASES
from tests.references.twin import TARGET


@dataclass
class Numbers:
    """x, the score as a function of x, and the entries of x that belong to each unit (None: a unit without any)."""

    x: Tensor
    score: Callable[[Tensor], Tensor]
    units: list[Tensor | None]

    def gradient(self, x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(self.score(leaf), leaf)[0]


@cache
def double(name: str) -> nn.Module:
    return CASES[name].build("eager").double()


def tokens(name: str, row: int) -> Tensor:
    inputs = CASES[name].inputs()
    return inputs["input_ids"][row][inputs["attention_mask"][row].bool()]


def word_embeddings(name: str, row: int, ids: Tensor | None = None) -> Numbers:
    """The word embeddings of one text, its padding cut off."""
    model = double(name)
    ids = tokens(name, row) if ids is None else ids
    x = model.get_input_embeddings()(ids).detach()

    def score(embeddings: Tensor) -> Tensor:
        logits = model(inputs_embeds=embeddings[None]).logits[0]
        return logits[TARGET] if logits.ndim == 1 else logits[-1, TARGET]

    return Numbers(x, score, [_row(x, i) for i in range(len(x))])


def bert_embeddings(row: int, ids: Tensor | None = None) -> Numbers:
    """The output of BERT's whole embedding module, with positions, types and norm."""
    model = double("bert")
    ids = tokens("bert", row) if ids is None else ids
    x = model.bert.embeddings(ids[None]).detach()[0]

    def score(vectors: Tensor) -> Tensor:
        handle = model.bert.embeddings.register_forward_hook(lambda module, args, out: vectors[None])
        try:
            return model(input_ids=ids[None]).logits[0, TARGET]
        finally:
            handle.remove()

    return Numbers(x, score, [_row(x, i) for i in range(len(x))])


def pixels(name: str, row: int, patch: int = 8) -> Numbers:
    """The pixels of one image; the first unit is [CLS], which has none."""
    model = double(name)
    x = CASES[name].inputs()["pixel_values"][row].double()
    units: list[Tensor | None] = [None]
    for top in range(0, x.shape[1], patch):
        for left in range(0, x.shape[2], patch):
            inside = torch.zeros_like(x, dtype=torch.bool)
            inside[:, top : top + patch, left : left + patch] = True
            units.append(inside)
    return Numbers(x, lambda image: model(pixel_values=image[None]).logits[0, TARGET], units)


def numbers(name: str, row: int) -> Numbers:
    return pixels(name, row) if name == "vit" else word_embeddings(name, row)


def _row(x: Tensor, i: int) -> Tensor:
    inside = torch.zeros_like(x, dtype=torch.bool)
    inside[i] = True
    return inside
