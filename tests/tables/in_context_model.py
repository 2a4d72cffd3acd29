"""A small model that learns in context, as TabPFN v2 is built."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Pre-norm attention of the second-last axis, with its residual; rows that are asked about are no keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.queries, self.keys_values = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, keys: int | None = None) -> Tensor:
        """x: (batch, tokens, width); keys: how many of the tokens are looked at."""
        y = self.norm(x)
        q = self.queries(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.keys_values(y[:, :keys]).chunk(2, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """The columns of each row look at each other, then the rows of each column at the training rows."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.columns, self.rows = Attention(width, heads), Attention(width, heads)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor, known: int) -> Tensor:
        tables, rows, tokens, _ = x.shape
        x = self.columns(x.flatten(0, 1)).unflatten(0, (tables, rows))
        by_column = self.rows(x.transpose(1, 2).flatten(0, 1), known)
        x = by_column.unflatten(0, (tables, tokens)).transpose(1, 2)
        return x + self.feed_forward(x)


class InContext(nn.Module):
    """Cells as tokens and the answer as one more, which is read at the rows asked about."""

    def __init__(self, width: int = 64, layers: int = 4, heads: int = 4, classes: int = 2) -> None:
        super().__init__()
        self.cell = nn.Linear(1, width)
        self.answer, self.unknown = nn.Embedding(classes, width), nn.Parameter(torch.zeros(width))
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x_train: Tensor, y_train: Tensor, x_test: Tensor) -> Tensor:
        """(tables, R, U), (tables, R) and (tables, Q, U) → (tables, Q, classes)."""
        known = x_train.shape[1]
        cells = self.cell(torch.cat([x_train, x_test], 1)[..., None])
        asked = self.unknown.expand(*x_test.shape[:2], -1)
        tokens = torch.cat([cells, torch.cat([self.answer(y_train), asked], 1)[:, :, None]], 2)
        for layer in self.layers:
            tokens = layer(tokens, known)
        return self.head(self.norm(tokens[:, known:, -1]))
