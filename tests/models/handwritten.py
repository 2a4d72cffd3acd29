"""Attention as people write it themselves: small classifiers, several spellings of the attention inside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.case import (
    BATCH,
    CLASSES,
    HEADS,
    LAYERS,
    WIDTH,
    Attention,
    Case,
    Inputs,
    numbered,
    randn,
    seeded,
    spied,
)
from tests.models.hf import image

HEAD_WIDTH = WIDTH // HEADS


class PackedAttention(nn.Module):
    """timm's layout: one qkv projection, (3, B, H, N, D)."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused, self.scale = fused, HEAD_WIDTH**-0.5
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def split(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        return self.qkv(x).reshape(b, n, 3, HEADS, HEAD_WIDTH).permute(2, 0, 3, 1, 4)

    def weights(self, x: Tensor) -> Tensor:
        q, k, _ = self.split(x).unbind(0)
        return ((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v) if self.fused else self.weights(x) @ v
        return self.proj(mixed.transpose(1, 2).reshape(x.shape))


class EinsumAttention(nn.Module):
    """Separate projections, heads left in place: "bhqk,bkhd->bqhd"."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (HEADS, HEAD_WIDTH)) for f in (self.q, self.k, self.v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / HEAD_WIDTH**0.5
        return self.out(torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, dim=-1), v).flatten(2))


class FoldedAttention(nn.Module):
    """Heads folded into the batch: (B*H, N, N)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (
            t.reshape(b, n, HEADS, HEAD_WIDTH).transpose(1, 2).reshape(b * HEADS, n, HEAD_WIDTH)
            for t in self.qkv(x).chunk(3, dim=-1)
        )
        scores = torch.baddbmm(q.new_zeros(1, 1, 1), q, k.transpose(1, 2), beta=0, alpha=HEAD_WIDTH**-0.5)
        mixed = torch.bmm(F.softmax(scores, dim=-1), v)
        return self.out(mixed.reshape(b, HEADS, n, HEAD_WIDTH).transpose(1, 2).reshape(b, n, WIDTH))


class OneHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, HEAD_WIDTH) for _ in range(3))
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.bmm(self.q(x), self.k(x).transpose(1, 2)) / HEAD_WIDTH**0.5
        return torch.bmm(self.softmax(scores), self.v(x))


class LoopedAttention(nn.Module):
    """Each head its own module: H separate (B, N, N) attentions."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(OneHead() for _ in range(HEADS))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([head(x) for head in self.heads], dim=-1))


class Block(nn.Module):
    """Pre-norm residual block around any mixer of tokens."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.norm1, self.mixer, self.norm2 = nn.LayerNorm(WIDTH), mixer, nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionClassifier(nn.Module):
    """Patches of a 32x32 image, a class token first, blocks, linear on token 0."""

    def __init__(self, mixers: list[Callable[[], nn.Module]]) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, kernel_size=8, stride=8)
        self.cls_token, self.pos_embed = (nn.Parameter(torch.zeros(1, n, WIDTH)) for n in (1, 17))
        self.blocks = nn.Sequential(*(Block(mixer()) for mixer in mixers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patches(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class VectorClassifier(nn.Module):
    """Vectors straight in, blocks, linear on token 0."""

    def __init__(self, mixers: list[Callable[[], nn.Module]]) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(mixer()) for mixer in mixers))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x)[:, 0])


@torch.no_grad()
def packed_weights(model: nn.Module, inputs: Inputs) -> dict[int, Tensor]:
    """Reference attention, recomputed by hand from the input of each packed attention."""
    found: list[Tensor] = []
    hooks = [
        module.register_forward_pre_hook(lambda module, args: found.append(module.weights(args[0])))
        for module in model.modules()
        if isinstance(module, PackedAttention)
    ]
    model(*inputs)
    for hook in hooks:
        hook.remove()
    return numbered(found)


def spied_one_by_one(model: nn.Module, inputs: Inputs) -> dict[int, Tensor]:
    """Reference attention of heads that run one after the other: every HEADS maps are one layer."""
    maps = [p[:, 0] for p in spied(model, inputs).values()]
    return numbered(torch.stack(maps[i : i + HEADS], 1) for i in range(0, len(maps), HEADS))


def images() -> Inputs:
    return (image(),)


def vectors() -> Inputs:
    return (randn(BATCH, 9, WIDTH, seed=6),)


def classifier(
    name: str,
    mixer: Callable[[], nn.Module],
    model: Callable[..., nn.Module] = VectorClassifier,
    inputs: Callable[[], Inputs] = vectors,
    attention: Attention = spied,
    **facts: Any,
) -> Case:
    return Case(name, lambda attn: seeded(lambda: model([mixer] * LAYERS)), inputs, attention, **facts)


patches = partial(classifier, model=VisionClassifier, inputs=images, attention=packed_weights, units="patches")

CASES = [
    patches("timm_fused", partial(PackedAttention, fused=True)),
    patches("timm_unfused", partial(PackedAttention, fused=False)),
    classifier("einsum", EinsumAttention),
    classifier("folded_heads", FoldedAttention),
    classifier("looped_heads", LoopedAttention, attention=spied_one_by_one),
]
