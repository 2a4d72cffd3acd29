"""How one operation shares out the relevance R of its result: autograd functions whose backward is that share.

All take ``shown``, the result as the model computed it, and a callable for the operation itself. R/z is stabilised, and
zero where z is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TINY = 1e-9
Totals = Callable[[Tensor], Tensor]  # sums per input, shaped to broadcast against what was summed


def divided(relevance: Tensor, z: Tensor) -> Tensor:
    # NOTE[DIFF] the authors add 1e-9 whatever the sign of z, which can make the denominator smaller.
    return torch.where(z == 0, 0.0, relevance / (z + TINY * z.sign()))


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shown: Tensor) -> Tensor:
        ctx.shape = x.shape
        return shown.detach()

    @staticmethod
    def backward(ctx: Any, *relevances: Any) -> Any:
        return relevances[0].sum_to_size(ctx.shape), None


class _Proportional(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operation: Any, shown: Tensor, *factors: Tensor) -> Tensor:
        ctx.operation = operation
        ctx.save_for_backward(*factors)
        return shown.detach()

    @staticmethod
    def backward(ctx: Any, *relevances: Any) -> Any:
        with torch.enable_grad():
            factors = [f.detach().requires_grad_() for f in ctx.saved_tensors]
            z = ctx.operation(*factors)
        slopes = torch.autograd.grad(z, factors, divided(relevances[0], z.detach()))
        return None, None, *(f.detach() * s / len(factors) for f, s in zip(factors, slopes, strict=True))


class _PositivePart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operation: Any, shown: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        ctx.operation = operation
        ctx.save_for_backward(x, weight)
        return shown.detach()

    @staticmethod
    def backward(ctx: Any, *relevances: Any) -> Any:
        x, weight = ctx.saved_tensors
        weight = weight.to(x.dtype)
        with torch.enable_grad():
            above, below = x.detach().clamp(min=0).requires_grad_(), x.detach().clamp(max=0).requires_grad_()
            z = ctx.operation(above, weight.clamp(min=0)) + ctx.operation(below, weight.clamp(max=0))
        up, down = torch.autograd.grad(z, (above, below), divided(relevances[0], z.detach()))
        return None, None, above.detach() * up + below.detach() * down, None


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, totals: Any) -> Tensor:
        ctx.totals, ctx.carry = totals, (a.requires_grad, b.requires_grad)
        ctx.save_for_backward(a, b)
        return a + b

    @staticmethod
    def backward(ctx: Any, *relevances: Any) -> Any:
        a, b = ctx.saved_tensors
        (relevance,) = relevances
        slope = divided(relevance, a + b)
        # A mask of -inf has no relevance where nothing passes.
        shares = [torch.where(slope == 0, 0.0, term * slope) for term in (a, b)]
        sums = [ctx.totals(share) for share in shares]
        whole = ctx.totals(relevance) / (sums[0].abs() + sums[1].abs() + TINY)
        back = [
            (share * divided(total.abs() * whole, total)).sum_to_size(term.shape) if carries else None
            for share, total, term, carries in zip(shares, sums, (a, b), ctx.carry, strict=True)
        ]
        return *back, None


def whole(x: Tensor, shown: Tensor) -> Tensor:
    """All relevance to ``x``: softmax, normalisation, activation, a constant factor."""
    return _Whole.apply(x, shown)  # type: ignore[no-untyped-call, no-any-return]


def proportional(operation: Callable[..., Tensor], shown: Tensor, *factors: Tensor) -> Tensor:
    """x·∂z/∂x·(R/z), divided by the number of factors."""
    return _Proportional.apply(operation, shown, *factors)  # type: ignore[no-untyped-call, no-any-return]


def positive_part(operation: Callable[[Tensor, Tensor], Tensor], shown: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """All relevance to ``x``, through what raised the result: z = W⁺x⁺ + W⁻x⁻ (bias ignored)."""
    return _PositivePart.apply(operation, shown, x, weight)  # type: ignore[no-untyped-call, no-any-return]


def split(a: Tensor, b: Tensor, totals: Totals) -> Tensor:
    """a + b: each entry in proportion, then the two sides rescaled to share |Σa| : |Σb|.

    NOTE[DIFF] the authors' sums run over the whole tensor, batch included; ``totals`` sums each input by itself.
    """
    return _Split.apply(a, b, totals)  # type: ignore[no-untyped-call, no-any-return]
