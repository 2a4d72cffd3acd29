"""Tensors that hold ordinary numbers, one per entry; all others are refused where they enter."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whyformer.errors import BadInput


def require_dense(name: str, tensor: Tensor, remedy: str) -> None:
    """Refuse tensors without data, and layouts and types that few operations of torch support.

    name: what the tensor is, as the subject of a sentence. remedy: how the user gets an ordinary one; ``{}`` is
    replaced by the call that converts it.
    """
    with torch._C.DisableTorchFunction():  # whoever records the model's operations need not see these
        kind, call = _kind(tensor)
    if kind:
        raise BadInput(f"{name} is {kind}: {remedy.format(call)}" if call else f"{name} is {kind}: give one with data.")


def _kind(tensor: Tensor) -> tuple[str, str]:
    """What the tensor is in place of an ordinary one, and what converts it."""
    if tensor.is_meta or (type(tensor) not in (Tensor, nn.Parameter) and _is_fake(tensor)):
        return "a tensor without data (on the meta device)", ""
    if tensor.is_nested:
        return "a nested tensor", ".to_padded_tensor(0)"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {str(tensor.layout).removeprefix('torch.').removeprefix('_')}", ".to_dense()"
    if tensor.is_quantized:
        return "a quantized tensor", ".dequantize()"
    if tensor.is_complex():
        return f"complex ({tensor.dtype})", ".abs() or .real"
    return "", ""


def _is_fake(tensor: Tensor) -> bool:
    try:
        return tensor.untyped_storage().device.type == "meta"
    except (RuntimeError, NotImplementedError):  # subclasses that are wrappers have no storage of their own
        return False
