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
    Build,
    Case,
    Inputs,
    numbered,
    randn,
    seeded,
    spied,
)
from tests.models.hf import CONTROL, ENCODER, VOCAB, hf, hf_case, image, last_logits, text
from tests.models.text_image_table import pixels

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


# Models that attention cannot explain: none between tokens, or tokens mixed beside it.


MAMBA = {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "state_size": 4}
MAMBA |= CONTROL
RESNET = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
RESNET |= {"num_labels": CLASSES}
LONGFORMER = ENCODER | {"attention_window": [4, 4], "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}


class ChannelAttention(nn.Module):
    """XCiT: each head attends over its D channels, a (D, D) softmax; tokens mix through it all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.temperature = nn.Parameter(torch.ones(HEADS, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, HEADS, HEAD_WIDTH).permute(2, 0, 3, 4, 1)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.temperature
        return self.proj((scores.softmax(dim=-1) @ v).permute(0, 3, 1, 2).reshape(x.shape))


class TokenMixing(nn.Module):
    """A perceptron over the token axis: information crosses tokens without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(17, 17)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x.transpose(1, 2)).transpose(1, 2)


class TalkingHeads(PackedAttention):
    """CaiT: heads are mixed before and after the softmax, so what multiplies the values is not a softmax."""

    def __init__(self) -> None:
        super().__init__(fused=False)
        self.before, self.after = (nn.Linear(HEADS, HEADS, bias=False) for _ in range(2))

    def weights(self, x: Tensor) -> Tensor:
        q, k, _ = self.split(x).unbind(0)
        scores = ((q * self.scale) @ k.transpose(-2, -1)).permute(0, 2, 3, 1)  # heads last, to be mixed
        return self.after(self.before(scores).softmax(dim=2)).permute(0, 3, 1, 2)


def nothing(model: nn.Module, inputs: Inputs) -> dict[int, Tensor]:
    return {}


def blocks(*mixers: Callable[[], nn.Module]) -> Build:
    return lambda attn: seeded(lambda: VisionClassifier(list(mixers)))


def ordinary(model: nn.Module, inputs: Inputs) -> dict[int, Tensor]:
    """Only the plain attentions among the blocks, numbered by themselves."""
    maps = packed_weights(model, inputs)
    kinds = [type(module) for module in model.modules() if isinstance(module, PackedAttention)]
    return dict(enumerate(maps[i] for i, kind in enumerate(kinds) if kind is PackedAttention))


negative = partial(hf_case, attention=nothing, sites=0, implementations=(None,), self_only=False)
image_model = partial(negative, inputs=images, units="patches", logits=lambda output: output)
attend = partial(PackedAttention, fused=False)

WITHOUT_ATTENTION = [
    negative("mamba", hf("MambaForCausalLM", **MAMBA), text, readout="last", logits=last_logits),
    negative("resnet", hf("ResNetForImageClassification", **RESNET), pixels, units="patches", readout="mean"),
    negative("longformer", hf("LongformerForSequenceClassification", **LONGFORMER), partial(text, pad=1)),
    image_model("xcit", blocks(ChannelAttention, ChannelAttention)),
]
LEAKY = [
    image_model("token_mixing", blocks(attend, TokenMixing), attention=ordinary, sites=1),
    image_model("talking_heads", blocks(TalkingHeads, TalkingHeads, attend), attention=ordinary, sites=1),
]
