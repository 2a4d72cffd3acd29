"""How the relevance of a result is shared out among what it was computed from (alpha = 1, beta = 0).

Autograd functions that show the result and hand back, where autograd expects a gradient, a relevance.
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
    away = torch.add(z, z.sign(), alpha=TINY)
    return torch.div(relevance, away, out=away).masked_fill_(z == 0, 0.0)


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


class _ProductOfTwo(torch.autograd.Function):
    """The same for a product of matrices, whose slopes are products of matrices."""

    @staticmethod
    def forward(ctx: Any, shown: Tensor, left: Tensor, right: Tensor) -> Tensor:
        # Scores are larger than what they are the product of, and computed again; a head's result is kept.
        small = shown.numel() <= left.numel()
        ctx.save_for_backward(left, right, *([shown] if small else []))
        return shown.clone() if small else shown.detach()  # which the model may write into

    @staticmethod
    def backward(ctx: Any, *relevances: Any) -> Any:
        left, right, *shown = ctx.saved_tensors
        half = divided(relevances[0], shown[0] if shown else left @ right).div_(2)
        return None, (half @ right.mT).mul_(left), (left.mT @ half).mul_(right)


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
        shares = [term * slope for term in (a, b)]
        sums = [ctx.totals(share) for share in shares]
        if not all(bool(total.isfinite().all()) for total in sums):
            # A mask of -inf has no relevance where nothing passes.
            shares = [share.masked_fill_(slope == 0, 0.0) for share in shares]
            sums = [ctx.totals(share) for share in shares]
        whole = ctx.totals(relevance) / (sums[0].abs() + sums[1].abs() + TINY)
        back = [
            share.mul_(divided(total.abs() * whole, total)).sum_to_size(term.shape) if carries else None
            for share, total, term, carries in zip(shares, sums, (a, b), ctx.carry, strict=True)
        ]
        return *back, None


def whole(x: Tensor, shown: Tensor) -> Tensor:
    """All relevance to ``x``: softmax, normalisation, activation, a constant factor."""
    return _Whole.apply(x, shown)  # type: ignore[no-untyped-call, no-any-return]


def proportional(operation: Callable[..., Tensor], shown: Tensor, *factors: Tensor) -> Tensor:
    """x·∂z/∂x·(R/z), divided by the number of factors."""
    return _Proportional.apply(operation, shown, *factors)  # type: ignore[no-untyped-call, no-any-return]


def product_of_two(shown: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """:func:`proportional` for the product of two stacks of matrices."""
    return _ProductOfTwo.apply(shown, left, right)  # type: ignore[no-untyped-call, no-any-return]


def positive_part(operation: Callable[[Tensor, Tensor], Tensor], shown: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """All relevance to ``x``, through what raised the result: z = W⁺x⁺ + W⁻x⁻ (bias ignored)."""
    return _PositivePart.apply(operation, shown, x, weight)  # type: ignore[no-untyped-call, no-any-return]


def split(a: Tensor, b: Tensor, totals: Totals) -> Tensor:
    """a + b: each entry in proportion, then the two sides rescaled to share |Σa| : |Σb|.

    NOTE[DIFF] the authors' sums run over the whole tensor, batch included; ``totals`` sums each input by itself.
    """
    return _Split.apply(a, b, totals)  # type: ignore[no-untyped-call, no-any-return]
