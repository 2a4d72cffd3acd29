"""How shares pass through what is linear: views, sums, scalings. Every share goes through it alike."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whyformer.capture.decompose.call import STRANGER, Call, Found, expanded, per_source
from whyformer.capture.decompose.shares import MIXED, OWN, Shares


def linear_in_all(call: Call) -> Found:
    """A function that is linear in all its data together: views, slices, sums, joins.

    Operands without shares beside those that have some (members of a cat) are constants: they go to the offset.
    """
    if why := next((s.lost for s in call.shares.values() if s.lost), ""):
        return call.all_lost(why)
    data = _data_leaves(call)
    tracked = sorted(call.shares)
    constants = [i for i in data if i not in call.shares and isinstance(call.leaves[i], (Tensor, float, int))]
    nothing = {i: _zero(call.leaves[i]) for i in constants}
    if any(call.is_stranger(call.leaves[i]) for i in constants):
        return call.all_lost(STRANGER)
    gate = all(s.gate for s in call.shares.values())
    results = call.out if isinstance(call.out, (tuple, list)) else (call.out,)
    has_offset = bool(constants) or any(s.offset is not None for s in call.shares.values())
    offsets: Any = None
    if has_offset:
        zero = {i: _zero(call.leaves[i]) for i in tracked if call.shares[i].offset is None}
        given = {i: call.shares[i].offset for i in tracked if call.shares[i].offset is not None}
        offsets = call.again(zero | given)
        offsets = offsets if isinstance(offsets, (tuple, list)) else (offsets,)

    def nth(number: int) -> Shares:
        def compute(first: int, end: int) -> Tensor:
            def one(*parts: Tensor) -> Tensor:
                result = call.again(nothing | dict(zip(tracked, parts, strict=True)))
                return result[number] if isinstance(result, (tuple, list)) else result

            return per_source(one, [call.shares[i].part(first, end) for i in tracked])

        offset = offsets[number] if has_offset else None
        return call.settle_own(
            Shares(call.sources, tuple(results[number].shape), compute, offset, stage=call.stage, gate=gate)
        )

    found = [nth(n) if isinstance(r, Tensor) and r.is_floating_point() else None for n, r in enumerate(results)]
    only = found[0]
    return found if isinstance(call.out, (tuple, list)) or only is None else only


def _data_leaves(call: Call) -> list[int]:
    """Which operands a function of several is linear in; of the others only tensors with shares are data."""
    if call.name in {"cat", "concat", "concatenate", "stack", "hstack", "vstack"}:
        return [i for i, leaf in enumerate(call.leaves) if isinstance(leaf, Tensor)]
    if call.name == "masked_fill":
        return [0, 2]
    if call.name == "where":
        return [1, 2]
    return list(call.shares)


def _zero(leaf: Any) -> Any:
    return torch.zeros_like(leaf) if isinstance(leaf, Tensor) else type(leaf)(0)


def same(call: Call) -> Shares:
    """Casts, copies, dropout of a model that is not in training."""
    return next(iter(call.shares.values()))


def add(call: Call) -> Shares:
    """a ± b: shares add up, a constant is a bias.

    Where two streams meet, biases are shared out: those of an MLP over its own shares, before it joins the residual,
    those that came with an attention (b_V·W_O + b_O) over the sum, as the authors do.
    """
    left, right, alpha = call.arguments("input", "other", "alpha")
    if call.name in {"__rsub__", "rsub"}:
        left, right = right, left
    minus = call.name in {"sub", "subtract", "__sub__", "__rsub__", "rsub", "sub_", "__isub__"}
    factor = (1 if alpha is None else alpha) * (-1 if minus else 1)
    a, b = (call.of_operand(side) for side in (left, right))
    shape = call.shape
    if lost_at := next((s.lost for s in (a, b) if s is not None and s.lost), ""):
        return call.lost(lost_at)
    if a is not None and b is not None:
        a, b = (s if s.stage == MIXED else call.settle(s) for s in (a, b))

    def compute(first: int, end: int) -> Tensor:
        if b is None:
            assert a is not None
            return expanded(a.part(first, end), shape)
        y = factor * expanded(b.part(first, end), shape)
        return y if a is None else expanded(a.part(first, end), shape) + y

    x, y = left if a is None else a.offset, right if b is None else b.offset
    offset = None
    if x is not None or y is not None:
        total = torch.zeros(shape, dtype=call.dtype, device=call.out.device)
        offset = total + (0 if x is None else x) + factor * (0 if y is None else y)
    summed = Shares(call.sources, shape, compute, offset, stage=call.stage, gate=_is_gate(a, b))
    if a is None or b is None:
        return call.lost(STRANGER) if call.is_stranger(left if a is None else right) else call.settle_own(summed)
    summed = call.settle(summed)
    summed.stage = OWN if a.stage == b.stage == OWN else ""
    summed.keep = summed.size <= call.holdable  # a residual stream is read by each part of the next layer
    return summed


def _is_gate(a: Shares | None, b: Shares | None) -> bool:
    return (a is None or a.gate) and (b is None or b.gate)


def negative(call: Call) -> Shares:
    return _scaled(call, same(call), -1)


def multiply(call: Call) -> Shares:
    """Products. With a constant: scaled. Of two streams: a gate (a nonlinearity's result) counts as a constant.

    NOTE[DIFF] DecompX has no products of hidden states. In a gated MLP f(g)·u the decomposed u is multiplied by the
    value of f(g), as f(z) is by its slope; without a nonlinearity on exactly one side each side gets half. That makes
    activations written out in Python, z·½(1 + tanh(…)), come out as slope times z too.
    """
    left, right = call.arguments("input", "other")
    a, b = call.of_operand(left), call.of_operand(right)
    if a is None or b is None:
        known, factor = (a, right) if b is None else (b, left)
        assert known is not None
        return _scaled(call, known, factor, gate=known.gate)
    for weighs_a, weighs_b in ((bool(a.lost), bool(b.lost)), (a.gate, b.gate)):
        if weighs_a != weighs_b:
            return _scaled(call, call.settle(b), left) if weighs_a else _scaled(call, call.settle(a), right)
    if a.lost:
        return call.lost(a.lost)
    x, y = _scaled(call, a, right / 2), _scaled(call, b, left / 2)
    offset = x.offset if y.offset is None else y.offset if x.offset is None else x.offset + y.offset
    return Shares(
        call.sources,
        x.shape,
        lambda first, end: x.part(first, end) + y.part(first, end),
        offset,
        stage=call.stage,
        gate=a.gate and b.gate,
    )


def divide(call: Call) -> Shares:
    """a / b, with the divisor as a constant."""
    left, right, _ = call.arguments("input", "other", "rounding_mode")
    if call.name in {"__rtruediv__", "__rdiv__"}:
        left, right = right, left
    a = call.of_operand(left)
    if a is None:  # a constant over a hidden state: nothing but another gate
        return call.lost("a division by a hidden state")
    return _scaled(call, a, 1 / right, gate=a.gate)


def _scaled(call: Call, shares: Shares, factor: Any, gate: bool = False) -> Shares:
    shape, dtype = call.shape, call.dtype
    factor = factor.to(dtype) if isinstance(factor, Tensor) else factor
    offset = None if shares.offset is None else (shares.offset * factor).expand(shape)
    if shares.lost:
        return call.lost(shares.lost)
    return Shares(
        shares.sources,
        shape,
        lambda first, end: expanded(shares.part(first, end), shape) * factor,
        offset,
        stage=shares.stage,
        gate=gate,
    )
