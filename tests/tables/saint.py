"""SAINT (Somepalli et al. 2021, arXiv:2106.01342), written out: columns look at each other, then rows do."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Mixer(nn.Module):
    """Pre-norm attention and feed-forward, each with its residual."""

    def __init__(self, width: int, heads: int, dropout: float, expansion: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, expansion * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(expansion * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y)[0]
        return x + self.feed_forward(self.norm2(x))


class SAINT(nn.Module):
    """Columns as tokens, a class token first; every layer mixes columns within a row, then rows within the batch."""

    def __init__(
        self,
        numerical: int,
        categories: tuple[int, ...],
        classes: int,
        width: int = 16,
        layers: int = 1,
        heads: int = 4,
        dropout: float = 0.1,
        expansion: int = 2,
        row_expansion: int = 1,
    ) -> None:
        super().__init__()
        tokens = 1 + numerical + len(categories)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.weight = nn.Parameter(torch.randn(numerical, width) * 0.1)
        self.bias = nn.Parameter(torch.randn(numerical, width) * 0.1)
        self.embeddings = nn.ModuleList(nn.Embedding(n, width) for n in categories)
        self.columns = nn.ModuleList(Mixer(width, heads, dropout, expansion) for _ in range(layers))
        self.rows = nn.ModuleList(Mixer(width * tokens, heads, dropout, row_expansion) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, x_num: Tensor | None, x_cat: Tensor | None) -> Tensor:
        parts = []
        if x_num is not None:
            parts.append(x_num[:, :, None] * self.weight + self.bias)
        if x_cat is not None:
            parts.append(torch.stack([embed(x_cat[:, i]) for i, embed in enumerate(self.embeddings)], 1))
        tokens = torch.cat(parts, 1)
        x = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], 1)
        for columns, rows in zip(self.columns, self.rows, strict=True):
            x = columns(x)
            x = rows(x.flatten(1)[None])[0].unflatten(1, x.shape[1:])
        return self.head(x[:, 0])
