"""Torch's own attention kernel: its map, and the gradient of that, from what the kernel was given and got back.

The kernel stays in the graph, so that a pass with gradients costs what the model's own costs. Its map A is the softmax
of its queries and keys, and ∂s/∂A = ∂s/∂out · Vᵀ. Layers of one shape are computed in one go: to ask a GPU for a small
one takes as long as to compute it. Keys and values are stacked transposed, as they are read then: a CPU's library of
small products may take ten times as long where it has to turn each of them around.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from whyformer.capture.functions import attention_weights, repeat_heads

# Numbers of maps that are computed at a time. Larger ones would be in memory twice, and are worth a call of their own.
TOGETHER = {"cpu": 2**20}
TOGETHER_ON_DEVICE = 2**25


class FusedCall:
    """What scaled_dot_product_attention was given; ``shape`` is that of the map."""

    __slots__ = ("causal", "form", "key", "mask", "query", "scale", "shape", "value", "version")

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> None:
        self.query, self.key, self.value, self.mask, self.causal, self.scale = query, key, value, mask, causal, scale
        self.shape = (*query.shape[:-1], key.shape[-2])
        # How often its tensors were written to: another number later on means that they hold something else.
        self.version = query._version + key._version + value._version + (0 if mask is None else mask._version)
        # Calls of the same form can be computed together.
        self.form = (query.shape, key.shape, value.shape, query.dtype, query.device, id(mask), causal, scale)

    @property
    def written(self) -> bool:
        """Its tensors hold something else by now."""
        tensors = (self.query, self.key, self.value, *(() if self.mask is None else (self.mask,)))
        return sum(tensor._version for tensor in tensors) != self.version


def groups(calls: Sequence[FusedCall]) -> list[list[FusedCall]]:
    """Calls that are computed together: those that follow each other and are alike, as far as memory goes."""
    result = []
    for _, alike in groupby(calls, lambda call: call.form):
        members = list(alike)
        first = members[0]
        numbers = max(1, torch.Size(first.shape).numel())
        step = max(1, TOGETHER.get(first.query.device.type, TOGETHER_ON_DEVICE) // numbers)
        result += [members[i : i + step] for i in range(0, len(members), step)]
    return result


@torch.no_grad()
def all_weights(calls: Sequence[FusedCall]) -> list[Tensor]:
    """The map of each call."""
    maps: list[Tensor] = []
    for group in groups(calls):
        first, alone = group[0], len(group) == 1
        query = first.query if alone else torch.stack([call.query for call in group])
        key = first.key if alone else torch.stack([call.key.mT for call in group]).mT
        key = key if key.shape[:-2] == query.shape[:-2] else repeat_heads(query, key)
        weights = attention_weights(query, key, first.mask, first.causal, first.scale)
        maps += [weights] if alone else weights.unbind()
    return maps


@torch.no_grad()
def all_gradients(calls: Sequence[FusedCall], results: Sequence[Tensor | None]) -> list[Tensor]:
    """The gradient of each map, of those of the results; zeros where there is none."""
    gradients: list[Tensor] = []
    for group in groups(calls):
        known = [r for r in results[len(gradients) : len(gradients) + len(group)] if r is not None]
        if len(known) == len(group) > 1:
            value = torch.stack([call.value.mT for call in group]).mT
            value = value if value.shape[1:-2] == group[0].shape[:-2] else repeat_heads(group[0].query, value)
            gradients += torch.matmul(torch.stack(known), value.transpose(-2, -1)).unbind()
            continue
        for call in group:
            result = results[len(gradients)]
            if result is None:
                gradients.append(call.query.new_zeros(call.shape))
                continue
            gradient = torch.matmul(result, repeat_heads(call.query, call.value).transpose(-2, -1))
            # Queries that several values share collect what all of them say.
            gradients.append(gradient if gradient.shape == call.shape else gradient.sum_to_size(call.shape))
    return gradients
