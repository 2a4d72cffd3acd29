"""Quantised layers: found by what a layer holds. Flags and configs also mark weights that loading dequantised."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Positions and masks may be parameters, too: no library packs weights into these types.
NO_WEIGHTS = frozenset({torch.int64, torch.bool})


def is_packed(tensor: Tensor) -> bool:
    """Whether the numbers are codes: whole numbers, or floats of eight bits, which autograd has no products for."""
    dtype = tensor.dtype
    return dtype not in NO_WEIGHTS and (dtype.itemsize < 2 or not (dtype.is_floating_point or dtype.is_complex))


def is_quantized(module: nn.Module) -> bool:
    """Whether a layer itself (not a layer inside it) computes with codes in place of weights."""
    origin = type(module).__module__
    # Torch's own quantised layers hold their weights in objects that are neither parameters nor buffers.
    return (origin.startswith("torch.") and "quantized" in origin) or any(map(is_packed, _weights(module)))


def _weights(module: nn.Module) -> list[Tensor]:
    """Parameters, and buffers that hold weights: GPTQ, AWQ and BitNet register theirs as buffers (qweight)."""
    buffers = module._buffers.items()
    return [
        *(p for p in module._parameters.values() if p is not None),
        *(b for name, b in buffers if b is not None and "weight" in name),
    ]
