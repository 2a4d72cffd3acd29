"""Models that attention cannot explain: none between tokens, or tokens mixed beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.case import CLASSES, HEADS, LAYERS, WIDTH, Build, Inputs, seeded
from tests.models.handwritten import HEAD_WIDTH, PackedAttention, VisionClassifier, images, packed_weights
from tests.models.hf import CONTROL, ENCODER, VOCAB, hf, hf_case, last_logits, text
from tests.models.vision import pixels

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
