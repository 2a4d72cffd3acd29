"""Gradients behind batch norm: torch's kernel misreads them for a single picture, unless they lie plainly in memory.

For an input of shape (1, C, H, W) in evaluation, torch's backward pass of batch norm on the CPU takes a gradient that
was permuted (as it comes from pixels laid out as tokens) for one that was not, and its numbers go to the wrong places.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class PlainGradients(TorchFunctionMode):
    """What batch norm made is given gradients that are contiguous."""

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__ == "batch_norm" and isinstance(out, Tensor) and out.requires_grad:
            out.register_hook(Tensor.contiguous)
        return out


def plain_gradients(model: nn.Module, facts: dict[Any, Any]) -> contextlib.AbstractContextManager[Any]:
    """Around a pass that is differentiated. facts: what is known about the model."""
    if "batch norm" not in facts:
        facts["batch norm"] = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    return PlainGradients() if facts["batch norm"] and torch.is_grad_enabled() else contextlib.nullcontext()
