"""Small models with what was learned of them, once for all tests."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.hf import ENCODER, hf

WORDS = "the a film movie story actor is was very not good bad great boring funny sad long short new old".split()


def texts(count: int = 36, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, size=int(generator.integers(3, 6)))) for _ in range(count)]


@cache
def tokenizer() -> Any:
    return wf.demo.load_sentiment()[1]


def bert(seed: int = 0) -> nn.Module:
    config = ENCODER | {"vocab_size": len(tokenizer()), "num_hidden_layers": 2, "num_labels": 3}
    model = hf("BertForSequenceClassification", **config)(None)
    if seed:
        with torch.no_grad():
            model.classifier.weight.mul_(1 + seed)
    return model


@cache
def _learned() -> tuple[nn.Module, wf.Learned]:
    model = bert()
    return model, wf.learn(model, texts(), tokenizer(), forwards=800, progress=False)


def learned_bert() -> tuple[nn.Module, wf.Learned]:
    """A model and what was learned of it, known by its name in this test."""
    model, learned = _learned()
    return model, replace(learned)


class Additive(nn.Module):
    """Every token attends to all alike, so that the one output is a sum over tokens."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        size = len(tokenizer())
        self.words = nn.Embedding(size, 8)
        self.words.weight.data = torch.randn(size, 8, generator=generator)
        self.values, self.head = nn.Linear(8, 8), nn.Linear(8, 1)
        for parameter in (*self.values.parameters(), *self.head.parameters()):
            parameter.data = torch.randn(parameter.shape, generator=generator)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(input_ids)
        scores = torch.zeros(len(x), 1, x.shape[1], x.shape[1]).masked_fill(attention_mask[:, None, None] == 0, -1e9)
        mixed = scores.softmax(-1) @ self.values(x)[:, None]
        return self.head(mixed[:, 0, 0])
