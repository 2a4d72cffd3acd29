"""A model that learns in context, written again one attention at a time: weights of training rows, relevance of cells.

Reads the weights of tests/tables/in_context_model.py by their names, in float64, for one table and one asked row.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor


class Plain:
    """The forward pass with explicit softmaxes. ``maps``: (kind, (lead, heads, Q, K)) of every attention, in order."""

    def __init__(self, state: Mapping[str, Tensor], layers: int, heads: int) -> None:
        self.state = {k: v.double() for k, v in state.items()}
        self.layers, self.heads = layers, heads
        self.maps: list[tuple[str, Tensor]] = []

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def attention(self, name: str, kind: str, x: Tensor, counts: Tensor) -> Tensor:
        """x: (lead, tokens, width); counts: how many times each key is there, (keys,)."""
        y = self.norm(f"{name}.norm", x)
        keys = y[:, : len(counts)]
        q = self.linear(f"{name}.queries", y)
        k, v = self.linear(f"{name}.keys_values", keys).chunk(2, -1)
        size = q.shape[-1] // self.heads
        heads, maps = [], []
        for h in range(self.heads):
            part = slice(h * size, (h + 1) * size)
            scores = q[..., part] @ k[..., part].transpose(1, 2) / size**0.5
            grown = counts * (scores - scores.amax(-1, keepdim=True).detach()).exp()
            map_ = grown / grown.sum(-1, keepdim=True)
            maps.append(map_)
            heads.append((map_, v[..., part]))
        stacked = torch.stack(maps, 1)
        self.maps.append((kind, stacked))
        out = torch.cat([stacked[:, h] @ value for h, (_, value) in enumerate(heads)], -1)
        return x + self.linear(f"{name}.out", out)

    def logits(self, context: Tensor, answers: Tensor, row: Tensor, counts: Tensor) -> Tensor:
        """(C,) for one row beside training rows, each of which is there ``counts`` times."""
        self.maps.clear()
        known, columns = context.shape
        cells = torch.cat([context, row[None]])[..., None]
        told = torch.cat([self.state["answer.weight"][answers], self.state["unknown"][None]])
        x = torch.cat([self.linear("cell", cells), told[:, None]], 1)
        for layer in range(self.layers):
            name = f"layers.{layer}"
            x = self.attention(f"{name}.columns", "columns", x, torch.ones(columns + 1).double())
            x = self.attention(f"{name}.rows", "rows", x.transpose(0, 1), counts).transpose(0, 1)
            y = self.linear(f"{name}.feed_forward.1", self.norm(f"{name}.feed_forward.0", x))
            x = x + self.linear(f"{name}.feed_forward.3", F.gelu(y))
        return self.linear("head", self.norm("norm", x[known, -1]))


def weight_slopes(plain: Plain, context: Tensor, answers: Tensor, row: Tensor, target: int) -> Tensor:
    """(R,) how the target's logit changes as each training row comes to be there more than once."""
    counts = torch.ones(len(context)).double().requires_grad_()
    value = plain.logits(context.double(), answers, row.double(), counts)[target]
    return torch.autograd.grad(value, counts)[0]


def cells_by_whole_matrices(plain: Plain, context: Tensor, answers: Tensor, row: Tensor, target: int) -> Tensor:
    """(T, W) Chefer et al. 2021: R = (I + Ā_L) ··· (I + Ā_1) over all T·W cells, the row of the answer that is read."""
    counts = torch.ones(len(context)).double()
    leaf = context.double().requires_grad_()
    value = plain.logits(leaf, answers, row.double(), counts)[target]
    maps = list(plain.maps)
    gradients = torch.autograd.grad(value, [m for _, m in maps], allow_unused=True)
    rows, width = len(context) + 1, context.shape[1] + 1
    whole = torch.eye(rows * width).double()
    for (kind, seen), gradient in zip(maps, gradients, strict=True):
        map_, slope = seen.detach(), torch.zeros_like(seen) if gradient is None else gradient
        layer = torch.zeros(rows * width, rows * width).double()
        for i in range(map_.shape[0]):
            for q in range(map_.shape[2]):
                for k in range(map_.shape[3]):
                    mean = sum(max(0.0, float(map_[i, h, q, k] * slope[i, h, q, k])) for h in range(map_.shape[1]))
                    at, to = (i * width + q, i * width + k) if kind == "columns" else (q * width + i, k * width + i)
                    layer[at, to] = mean / map_.shape[1]
        whole = (torch.eye(rows * width).double() + layer) @ whole
    return whole[rows * width - 1].view(rows, width)
