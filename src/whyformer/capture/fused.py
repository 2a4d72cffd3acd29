"""Torch's own attention kernel: its map, and the gradient of that, from what the kernel was given and got back.

The kernel stays in the graph, so that a pass with gradients costs what the model's own costs. Its map A is the softmax
of its queries and keys, and ∂s/∂A = ∂s/∂out · Vᵀ. Layers of one shape are computed in one go: on a GPU a small one takes
as long to ask for as to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.functions import attention_weights, repeat_heads, sdpa_operands

# Numbers of maps that are computed at a time. Larger ones would be in memory twice, and are worth a call of their own.
TOGETHER = {"cpu": 2**20}
TOGETHER_ON_DEVICE = 2**25


@dataclass(slots=True)
class FusedCall:
    """What scaled_dot_product_attention was given."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float | None
    version: int = 0

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FusedCall:
        call = sdpa_operands(args, kwargs)
        made = cls(call["query"], call["key"], call["value"], call["attn_mask"], call["is_causal"], call["scale"])
        made.version = made.written
        return made

    @property
    def written(self) -> int:
        """How often its tensors were written to: another number later on means that they hold something else."""
        mask = 0 if self.mask is None else self.mask._version
        return int(self.query._version + self.key._version + self.value._version + mask)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the map."""
        return (*self.query.shape[:-1], self.key.shape[-2])

    def weights(self) -> Tensor:
        key = repeat_heads(self.query, self.key)
        return attention_weights(self.query, key, self.mask, self.causal, self.scale)

    def gradient(self, result: Tensor) -> Tensor:
        """∂s/∂A of the gradient of the result."""
        value = repeat_heads(self.query, self.value)
        gradient = torch.matmul(result, value.transpose(-2, -1))
        return gradient if gradient.shape == self.shape else gradient.sum_to_size(self.shape)

    @property
    def form(self) -> tuple[object, ...]:
        """Calls of the same one can be computed together."""
        query, key, value = self.query, self.key, self.value
        return query.shape, key.shape, value.shape, query.dtype, query.device, id(self.mask), self.causal, self.scale


def groups(calls: Sequence[FusedCall]) -> list[list[FusedCall]]:
    """Calls that are computed together: those that follow each other and are alike, as far as memory goes."""
    result = []
    for _, alike in groupby(calls, lambda call: call.form):
        members = list(alike)
        shape, device = members[0].shape, members[0].query.device.type
        step = max(1, TOGETHER.get(device, TOGETHER_ON_DEVICE) // max(1, torch.Size(shape).numel()))
        result += [members[i : i + step] for i in range(0, len(members), step)]
    return result


@torch.no_grad()
def all_weights(calls: Sequence[FusedCall]) -> list[Tensor]:
    """The map of each call."""
    maps: list[Tensor] = []
    for group in groups(calls):
        if len(group) == 1:
            maps.append(group[0].weights())
        else:
            maps += _stacked(group).weights().unbind()
    return maps


@torch.no_grad()
def all_gradients(calls: Sequence[FusedCall], results: Sequence[Tensor | None]) -> list[Tensor]:
    """The gradient of each map, of those of the results; zeros where there is none."""
    gradients: list[Tensor] = []
    for group in groups(calls):
        known = results[len(gradients) : len(gradients) + len(group)]
        if len(group) > 1 and all(result is not None for result in known):
            value = torch.stack([repeat_heads(call.query, call.value) for call in group])
            gradients += torch.matmul(torch.stack(list(known)), value.transpose(-2, -1)).unbind()  # type: ignore[arg-type]
            continue
        for call, result in zip(group, known, strict=True):
            gradients.append(call.query.new_zeros(call.shape) if result is None else call.gradient(result))
    return gradients


def _stacked(group: Sequence[FusedCall]) -> FusedCall:
    """Several calls as one, whose first axis counts them; a mask is the same for all."""
    first = group[0]
    query, key = (torch.stack([getattr(call, name) for call in group]) for name in ("query", "key"))
    return FusedCall(query, key, first.value, first.mask, first.causal, first.scale)
