"""Numbers of small tensors that Python asks about: token ids, and which positions are real.

A GPU stops for every question, and what it was told stands in a row before it: asked in the middle of an explanation,
the answer comes when all of that is done. So each tensor is fetched once, as long as nobody writes to it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

AT_HAND = {"cpu"}  # devices that answer at once
_COPIES = WeakIdKeyDictionary()  # by tensor: how often it had been written to, and its numbers


def on_host(tensor: Tensor) -> Tensor:
    """The same numbers on the CPU."""
    if tensor.device.type in AT_HAND or tensor.is_inference():  # writes to the latter are not counted
        return tensor.cpu()
    known = _COPIES.get(tensor)
    if known is None or known[0] != tensor._version:
        known = _COPIES[tensor] = tensor._version, tensor.cpu()
    copy: Tensor = known[1]
    return copy


def all_real(*shape: int, device: torch.device) -> Tensor:
    """A mask without padding, of which the CPU knows that."""
    mask = torch.ones(*shape, dtype=torch.bool, device=device)
    if mask.device.type not in AT_HAND and not mask.is_inference():
        _COPIES[mask] = mask._version, torch.ones(*shape, dtype=torch.bool)
    return mask
