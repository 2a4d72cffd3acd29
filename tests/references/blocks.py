"""What the norm and value-zeroing twins start from: one input, one block after the other, read off the model's modules.

Weights and activations come from named modules of float64 eager models; nothing here knows about whyformer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tests.models import CASES
from tests.references.eager_attention import one_input
from tests.support.released import VIT_ATTENTION, VIT_LAYERS


@dataclass(frozen=True)
class Names:
    """Where a family keeps its parts."""

    blocks: str
    value: str
    output: str
    norms: tuple[str, str] | None = None  # of a post-norm block
    packed: bool = False  # one projection for queries, keys and values


FAMILIES = {
    "bert": Names(
        "bert.encoder.layer",
        "attention.self.value",
        "attention.output.dense",
        ("attention.output.LayerNorm", "output.LayerNorm"),
    ),
    "vit": Names(VIT_LAYERS, *VIT_ATTENTION[2:]),
    "gpt2": Names("transformer.h", "attn.c_attn", "attn.c_proj", packed=True),
    "llama": Names("model.layers", "self_attn.v_proj", "self_attn.o_proj"),
}


@dataclass(frozen=True)
class Norm:
    gain: Tensor
    eps: float
    before: Tensor  # (N, E) its true input


@dataclass(frozen=True, eq=False)
class Block:
    """One block on one input of N tokens."""

    attention: Tensor  # (H, N, N)
    value: Tensor  # (H, N, D)
    output: Tensor  # (H, D, E) W_O
    stream: Tensor  # (N, E) x
    norms: tuple[Norm, Norm] | None
    attended: Tensor  # (N, E) output of the attention half


@cache
def model_of(name: str) -> nn.Module:
    return CASES[name].build("eager").double()


@cache
def blocks_of(name: str, index: int) -> list[Block]:
    """The blocks of a case on one of its inputs, padding cut off."""
    names, model = FAMILIES[name], model_of(name)
    inputs = one_input(CASES[name].inputs(), index)
    modules = list(model.get_submodule(names.blocks))
    kept: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}

    def keep(layer: int, what: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            first = args[0] if args else kwargs["hidden_states"]
            kept[layer, what] = (first[0].detach(), (out if isinstance(out, Tensor) else out[0])[0].detach())

        return hook

    hooks = []
    for layer, block in enumerate(modules):
        hooks.append(block.register_forward_hook(keep(layer, ""), with_kwargs=True))
        for what in (names.value, names.output, *(names.norms or ())):
            hooks.append(block.get_submodule(what).register_forward_hook(keep(layer, what), with_kwargs=True))
    with torch.no_grad():
        reported = model(**inputs, output_attentions=True)
    for hook in hooks:
        hook.remove()
    found = []
    for layer, block in enumerate(modules):
        attention = reported.attentions[layer][0]
        heads = attention.shape[0]
        projected = kept[layer, names.value][1]
        width = projected.shape[-1] // 3 if names.packed else projected.shape[-1]
        weight = block.get_submodule(names.output).weight.detach()
        weight = weight if names.packed else weight.T  # GPT-2's Conv1D keeps (in, out)
        output = weight.reshape(heads, -1, weight.shape[1])
        value = projected[:, -width:].reshape(len(projected), -1, output.shape[1]).transpose(0, 1)
        value = value.repeat_interleave(heads // len(value), 0)  # key/value heads that several query heads share
        stream, added = kept[layer, ""][0], kept[layer, names.output][1]
        norms = None if names.norms is None else tuple(_norm(block, n, kept[layer, n][0]) for n in names.norms)
        attended = stream + added if names.norms is None else kept[layer, names.norms[0]][1]
        found.append(Block(attention, value, output, stream, norms, attended))
    return found


def _norm(block: nn.Module, name: str, before: Tensor) -> Norm:
    module = block.get_submodule(name)
    return Norm(module.weight.detach(), module.eps, before)


@cache
def with_value_zeroed(name: str, index: int, layer: int, token: int | None) -> Tensor:
    """(N, E) output of one block when the whole model runs with a token's value zeroed in that layer's heads."""
    names, model = FAMILIES[name], model_of(name)
    block = model.get_submodule(names.blocks)[layer]
    seen: list[Tensor] = []

    def zero(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        changed = out.clone()
        width = out.shape[-1] // 3 if names.packed else out.shape[-1]
        if token is not None:
            changed[:, token, -width:] = 0
        return changed

    def see(module: nn.Module, args: Any, out: Any) -> None:
        seen.append((out if isinstance(out, Tensor) else out[0])[0].detach())

    hooks = [
        block.get_submodule(names.value).register_forward_hook(zero),
        block.register_forward_hook(see),
    ]
    with torch.no_grad():
        model(**one_input(CASES[name].inputs(), index))
    for hook in hooks:
        hook.remove()
    return seen[0]
