"""How shares pass through matrix products: projections, and attention with its weights as constants."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from whyformer.capture.attend import attention_weights, repeat_heads
from whyformer.capture.decompose.call import Call, Found
from whyformer.capture.decompose.linear import linear_in_all
from whyformer.capture.decompose.shares import MIXED, Shares


def linear(call: Call) -> Shares:
    x, weight, bias = call.arguments("input", "weight", "bias")
    shares = call.of_operand(x)
    if shares is None or call.of_operand(weight) is not None:
        return call.lost()
    return _projected(call, shares, lambda v: F.linear(v, weight.to(v.dtype)), bias)


def addmm(call: Call) -> Shares:
    bias, x, weight = call.arguments("input", "mat1", "mat2")
    shares = call.of_operand(x)
    if shares is None or len(call.shares) > 1 or any(isinstance(leaf, (int, float)) for leaf in call.leaves):
        return call.lost()
    return _projected(call, shares, lambda v: v @ weight.to(v.dtype), bias)


def _projected(call: Call, shares: Shares, project: Callable[[Tensor], Tensor], bias: Tensor | None) -> Shares:
    if shares.lost:
        return call.lost(shares.lost)
    offset = None if shares.offset is None else project(shares.offset)
    if bias is not None:
        offset = (bias.to(call.dtype) + (0 if offset is None else offset)).expand(call.out.shape)
    found = Shares(
        shares.sources,
        call.shape,
        lambda first, end: project(shares.part(first, end)),
        offset,
        stage=shares.stage,
    )
    return call.settle_own(found)


def matrix_product(call: Call) -> Shares:
    """Attention times values: the weights count as constants. Queries times keys: not split, and never needed."""
    names = ("input", "mat2") if call.name == "bmm" else ("input", "other")
    left, right = call.arguments(*names)
    a, b = call.of_operand(left), call.of_operand(right)
    if a is not None and b is not None:
        fixed_a, fixed_b = a.gate or bool(a.lost), b.gate or bool(b.lost)
        if fixed_a == fixed_b:
            return call.lost("a product of two hidden states")
        a, b = (None, b) if fixed_a else (a, None)
    if b is None:
        assert a is not None
        return _projected(call, a, lambda v: v @ right.to(v.dtype), None)
    shares, weights = b, left
    if shares.lost:
        return call.lost(shares.lost)
    found = Shares(
        shares.sources,
        call.shape,
        lambda first, end: mixed(weights, shares.part(first, end)),
        None if shares.offset is None else weights.to(shares.offset.dtype) @ shares.offset,
        stage=MIXED,
    )
    return call.hold(found)


def mixed(weights: Tensor, values: Tensor) -> Tensor:
    """weights (…, Q, K) times values (sources, …, K, D), with the sources folded into the width: one product."""
    sources, width = values.shape[0], values.shape[-1]
    folded = values.movedim(0, -2).flatten(-2)
    out = weights.to(values.dtype) @ folded
    return out.unflatten(-1, (sources, width)).movedim(-2, 0)


def sdpa(call: Call) -> Shares:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    query, key, value, mask, _, causal, scale, gqa = call.arguments(*names)
    shares = call.of_operand(value)
    if shares is None or shares.lost:
        return call.lost(shares.lost if shares is not None else "an attention whose values are no hidden states")
    weights = attention_weights(query, repeat_heads(query, key) if gqa else key, mask, bool(causal), scale)

    def mix(v: Tensor) -> Tensor:
        return mixed(weights, repeat_heads(query, v) if gqa else v)

    found = Shares(
        shares.sources,
        call.shape,
        lambda first, end: mix(shares.part(first, end)),
        None if shares.offset is None else mix(shares.offset[None])[0],
        stage=MIXED,
    )
    return call.hold(found)


def linear_in_one(call: Call) -> Found:
    """A function that is linear in each operand (einsum): what only weighs counts as a constant."""
    split = {i: s for i, s in call.shares.items() if not s.lost and not s.gate}
    weighed = len(call.shares) > len(split)
    if len(split) != 1:
        return call.lost("a product of two hidden states")
    call.shares = split
    found = linear_in_all(call)
    if weighed and isinstance(found, Shares):
        found.stage = MIXED
        return call.hold(found)
    return found
