"""Interference: does looking into a model change what it says?

Some code takes another way while it is looked into: torch's fused encoder sets padded rows to zero and is left aside as
soon as a function mode is on. So what a model says under interception is held to what it says by itself, once for each
form of a batch; a difference that is no rounding is an error.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from whyformer.borrow import modules_of
from whyformer.errors import NotOffered

FULL = (1e-3, 1e-5)  # of the largest logit, and besides: what float32 may lose over many layers
COARSE_STEPS = (32.0, 16.0)  # the same in steps of a coarser type
FUSED_ADVICE = (
    "torch's fused encoder (nn.TransformerEncoder in eval mode) sets padded rows to zero, and the head reads them. Let "
    "the head leave padded rows out; or make the model say what its layers say, by "
    "torch.backends.mha.set_fastpath_enabled(False); or give inputs one by one, without padding. occlusion explains "
    "the model as it is."
)
OTHER_ADVICE = (
    "Its code takes another way when gradients or torch function modes are on: find where it asks for "
    "torch.is_grad_enabled(), requires_grad or has_torch_function. occlusion explains the model as it is."
)

Form = tuple[object, ...]


def rounding(model: nn.Module, logits: Tensor) -> float:
    """How far two passes may differ by rounding: attention written out is rounded otherwise than torch's kernels."""
    modules = modules_of(model)
    types = {logits.dtype, *(p.dtype for m in modules for p in m._parameters.values() if p is not None)}
    if torch.is_autocast_enabled(logits.device.type):
        types.add(torch.get_autocast_dtype(logits.device.type))
    if any("quantized" in type(m).__module__ for m in modules) or not all(t.is_floating_point for t in types):
        types.add(torch.bfloat16)  # eight bits
    largest = float(logits.abs().max()) if logits.numel() else 0.0
    step = max((torch.finfo(t).eps for t in types if t.is_floating_point), default=0.0)
    if step <= torch.finfo(torch.float32).eps:
        return FULL[0] * largest + FULL[1]
    return step * (COARSE_STEPS[0] * largest + COARSE_STEPS[1])


def require_same(model: nn.Module, watched: Tensor, alone: Callable[[], Tensor]) -> int:
    """Refuse a model that says something else while it is looked into; how many passes that took.

    watched: logits under interception; alone: the same pass without any.
    """
    with torch.no_grad():
        plain = alone().detach().float()
        looked = watched.detach().float()
        if plain.shape == looked.shape and _apart(plain, looked) <= rounding(model, plain):
            return 1
        again = alone().detach().float()
    if again.shape != plain.shape or _apart(plain, again) > rounding(model, plain):
        raise NotOffered(
            f"the model answers differently each time ({_shown(plain, again)}), so that no explanation would be of "
            "its answer. Take what is random out of its forward, or seed it there."
        )
    fused = _by_fused_path(model, looked, alone)
    raise NotOffered(
        f"the model says something else while it is looked into ({_shown(plain, looked)}), so that this would explain "
        f"another answer. {FUSED_ADVICE if fused else OTHER_ADVICE}"
    )


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference; where both are NaN or the same infinity there is none."""
    same = (one == other) | (one.isnan() & other.isnan())
    return float((one - other).abs().masked_fill(same, 0).nan_to_num(nan=torch.inf).max()) if one.numel() else 0.0


def _shown(one: Tensor, other: Tensor) -> str:
    if one.shape != other.shape:
        return f"outputs of shape {tuple(one.shape)} and {tuple(other.shape)}"
    row, column = divmod(int((one - other).abs().nan_to_num(nan=torch.inf).argmax()), one.shape[1])
    return f"{float(one[row, column]):.4g} and {float(other[row, column]):.4g} for class {column} of input {row}"


def _by_fused_path(model: nn.Module, looked: Tensor, alone: Callable[[], Tensor]) -> bool:
    """Does the model say the same by itself once torch's fused encoder is off?"""
    if not torch.backends.mha.get_fastpath_enabled():
        return False
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            unfused = alone().detach().float()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    return unfused.shape == looked.shape and _apart(unfused, looked) <= rounding(model, unfused)
