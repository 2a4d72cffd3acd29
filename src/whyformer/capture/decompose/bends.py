"""How shares pass through what is not linear, made so with the values the model really has."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from whyformer.capture.decompose.call import Call, Found
from whyformer.capture.decompose.shares import OWN, Shares


def activation(call: Call) -> Shares:
    """f(z) = (f(z)/z)·z: every share is multiplied by the slope from the origin (zero-origin rule)."""
    ((leaf, shares),) = list(call.shares.items())[:1]
    value, out = call.leaves[leaf].to(call.dtype), call.out.to(call.dtype)
    slope = torch.where(value == 0, 0.0, out / torch.where(value == 0, 1.0, value))
    if shares.lost or len(call.shares) > 1:
        return Shares(call.sources, call.shape, None, gate=True, lost=shares.lost or f"{call.name}()")
    whole = call.settle(shares)
    return Shares(
        shares.sources,
        call.shape,
        lambda first, end: whole.part(first, end) * slope,
        stage=whole.stage,
        gate=True,
    )


def layer_norm(call: Call) -> Shares:
    """γ·(x_s - mean x_s)/σ with the deviation σ of the whole x; β is a bias."""
    x, shape, weight, bias, eps = call.arguments("input", "normalized_shape", "weight", "bias", "eps")
    dims = tuple(range(-len(shape), 0))
    value = x.to(call.dtype)
    scale = (value.var(dims, unbiased=False, keepdim=True) + (1e-5 if eps is None else eps)).rsqrt()
    return _normed(call, x, lambda v: v - v.mean(dims, keepdim=True), scale, weight, bias)


def rms_norm(call: Call) -> Shares:
    x, shape, weight, eps = call.arguments("input", "normalized_shape", "weight", "eps")
    dims = tuple(range(-len(shape), 0))
    value = x.to(call.dtype)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    scale = (value.square().mean(dims, keepdim=True) + eps).rsqrt()
    return _normed(call, x, lambda v: v, scale, weight, None)


def _normed(
    call: Call,
    x: Tensor,
    center: Callable[[Tensor], Tensor],
    scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Shares:
    shares = call.of_operand(x)
    if shares is None or shares.lost:
        return call.lost(shares.lost if shares is not None else "")
    factor = scale if weight is None else scale * weight.to(scale.dtype)
    shape = call.shape
    offset = None if shares.offset is None else center(shares.offset) * factor
    if bias is not None:
        offset = (bias.to(scale.dtype) + (0 if offset is None else offset)).expand(shape)
    stage = OWN if shares.stage == OWN else ""
    found = Shares(
        shares.sources, shape, lambda first, end: center(shares.part(first, end)) * factor, offset, stage=stage
    )
    return call.settle(found)


def unrelated(call: Call) -> None:
    """A new tensor that only has the shape or dtype of a hidden state."""
    return


def weighs(call: Call) -> Found:
    """What only weighs or selects (attention, a deviation, a maximum): may multiply or divide, never be added."""
    return call.all_lost(f"the result of {call.name}(), used as if it were a hidden state")
