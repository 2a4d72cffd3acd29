"""Alpha-beta rules (alpha = 1, beta = 0) as autograd functions, which return a relevance in place of a gradient."""

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


# All relevance to x, of whatever is shown: softmax, normalisation, activation, a constant factor.
whole: Callable[[Tensor, Tensor], Tensor] = _Whole.apply
# x·∂z/∂x·(R/z), divided by the number of factors: operation, its result, and the factors.
proportional: Callable[..., Tensor] = _Proportional.apply
product_of_two: Callable[[Tensor, Tensor, Tensor], Tensor] = _ProductOfTwo.apply  # result and both factors
# All relevance to x, through what raised the result, z = W⁺x⁺ + W⁻x⁻ (bias ignored): operation, its result, x, W.
positive_part: Callable[[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor, Tensor], Tensor] = _PositivePart.apply
# a + b: each entry in proportion, then the two sides rescaled to share |Σa| : |Σb|.
# NOTE[DIFF] the authors' sums run over the whole tensor, batch included; ``totals`` sums each input by itself.
split: Callable[[Tensor, Tensor, Totals], Tensor] = _Split.apply


# The alpha-beta rule of a linear layer, z = W⁺x⁺ + W⁻x⁻ and R_in = x⁺ ∘ W⁺ᵀ(R/z) + x⁻ ∘ W⁻ᵀ(R/z), in few products.
#
# 2z = Wx + |W||x| and 2R_in = x ∘ Wᵀ(R/z) + |x| ∘ |W|ᵀ(R/z): three products, since Wx is known, and of the weights'
# parts only |W|. All three are taken in the precision of the weights. Rows for which that would not do are taken as the
# rule is written, in the precision of the pass: those whose relevance has large entries of both signs, and those where
# Wx and |W||x| nearly cancel.

CALM = 10  # Σ|R| / |ΣR| of the rows together that are taken in single precision
CANCELLED = {torch.float32: 0.02, torch.float64: 1e-6}  # 2z / |Wx| up to which it is not taken for a difference
FEW = 16  # rows that are taken as the rule is written: it costs them little, and at the head rounding grows longest
TILE = 512  # rows at a time: what is computed on the way stays in the cache


class Desk:
    """Reused memory for a layer's weights in another precision, or without signs; allocating it is slow."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._rooms: dict[torch.dtype, Tensor] = {}

    def copy(self, weight: Tensor) -> Tensor:
        """The weight in the pass's precision, until something else is asked for."""
        return weight if weight.dtype == self.dtype else self._room(weight, self.dtype).copy_(weight)

    def size(self, weight: Tensor) -> Tensor:
        """|W|, until something else is asked for."""
        return torch.abs(weight, out=self._room(weight, weight.dtype))

    def _room(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        room = self._rooms.get(dtype)
        if room is None or room.numel() < weight.numel() or room.device != weight.device:
            room = self._rooms[dtype] = torch.empty(weight.numel(), dtype=dtype, device=weight.device)
        return room[: weight.numel()].view(weight.shape)


class _PositiveLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, desk: Desk, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shown: Tensor = torch.nn.functional.linear(x, desk.copy(weight))
        # At least single, and never more than the pass itself has.
        narrow = torch.float64 if x.dtype == weight.dtype == torch.float64 else torch.float32
        ctx.desk = desk
        ctx.save_for_backward(shown.to(narrow, copy=True), x, weight)  # the model may write into what is shown
        return shown if bias is None else shown.add_(bias)

    @staticmethod
    def backward(ctx: Any, *relevances: Any) -> Any:
        straight, x, weight = ctx.saved_tensors
        x_MI, straight_MO, relevance_MO = (t.flatten(0, -2) for t in (x, straight, relevances[0]))
        sums_M = relevance_MO.abs().sum(1)
        rows = sums_M.nonzero()[:, 0]  # a head that reads one row leaves one to the last block
        if len(rows) <= FEW or 4 * len(rows) < len(x_MI):
            back_MI = torch.zeros_like(x_MI)
        else:
            back_MI, delicate_M = _in_three(x_MI, straight_MO, relevance_MO, weight.to(straight.dtype), ctx.desk)
            if straight.dtype != x.dtype:
                # Rows with such large entries of both signs that rounding them would show in the sum of one input.
                total_B = relevances[0].flatten(1).sum(1)
                quiet_first = sums_M.view(len(total_B), -1).sort(1)
                loud_BN = quiet_first.values.cumsum(1) > CALM * total_B.abs()[:, None]
                delicate_M |= torch.empty_like(loud_BN).scatter_(1, quiet_first.indices, loud_BN).flatten()
            rows = delicate_M.nonzero()[:, 0]
        if len(rows):
            back_MI[rows] = _as_written(x_MI[rows], relevance_MO[rows], weight)
        return None, back_MI.view(x.shape), None, None


def _in_three(
    x_MI: Tensor, straight_MO: Tensor, relevance_MO: Tensor, weight_OI: Tensor, desk: Desk
) -> tuple[Tensor, Tensor]:
    """The relevance of x in three products, and the rows for which it is not to be trusted."""
    dtype, size_OI = weight_OI.dtype, desk.size(weight_OI)
    back_MI = torch.empty_like(x_MI)
    cancelled_M = torch.zeros(len(x_MI), dtype=torch.bool, device=x_MI.device)
    for start in range(0, len(x_MI), TILE):
        rows = slice(start, start + TILE)
        x, straight = x_MI[rows].to(dtype), straight_MO[rows]
        size = x.abs()
        twice_z = torch.addmm(straight, size, size_OI.mT)
        cancelled_M[rows] = torch.add(twice_z, straight, alpha=CANCELLED[dtype]).amin(1) < 0
        slope = relevance_MO[rows].to(dtype, copy=True).div_(twice_z.add_(2 * TINY))
        back_MI[rows] = (slope @ weight_OI).mul_(x).addcmul_(slope @ size_OI, size)
    return back_MI, cancelled_M


def _as_written(x_MI: Tensor, relevance_MO: Tensor, weight: Tensor) -> Tensor:
    outputs = relevance_MO.any(0).nonzero()[:, 0]
    if 2 * len(outputs) < len(weight):  # a head, of which one class is explained
        relevance_MO, weight = relevance_MO[:, outputs], weight[outputs]
    weight_OI = weight.to(x_MI.dtype)
    above_OI, below_OI = weight_OI.clamp(min=0), weight_OI.clamp(max=0)
    z = torch.addmm(x_MI.clamp(min=0) @ above_OI.mT, x_MI.clamp(max=0), below_OI.mT)
    slope = relevance_MO / z.add_(TINY)
    return torch.where(x_MI > 0, slope @ above_OI, slope @ below_OI).mul_(x_MI)


positive_linear: Callable[[Desk, Tensor, Tensor, Tensor | None], Tensor] = _PositiveLinear.apply  # of linear(x, W, b)
