"""Relevance by alpha-beta rules (alpha = 1, beta = 0): what autograd calls a gradient here is a relevance.

Four autograd functions whose backward shares out the relevance of a result; on top of them one rule per torch function;
and the mode that applies the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.functions import (
    ATTENTION,
    CASTS,
    CLAMPS,
    LINEAR,
    MATMULS,
    REDUCTIONS,
    REVERSED_SUBS,
    Function,
    attention_weights,
    out_of_place,
    plain_name,
    repeat_heads,
    sdpa_operands,
)
from whyformer.capture.intercept import Intercept
from whyformer.capture.lrp.changed_gradients import CONSTANT
from whyformer.capture.lrp.elementwise import BENDS, Elementwise, carrying
from whyformer.capture.site import OpenSite
from whyformer.errors import AmbiguousLayout

TINY = 1e-9
CANCELLED = 1e-6  # a sum this small beside its terms is not taken for a difference of two others
CALM = 100  # Σ|R| / |ΣR| up to which a product of relevance is taken in single precision
TILE = 256  # rows at a time: what is computed on the way stays in the cache
OPAQUE = ATTENTION | {"__get__"}
Totals = Callable[[Tensor], Tensor]  # sums per input, shaped to broadcast against what was summed
Rule = Callable[["AlphaBeta", Function, tuple[Any, ...], dict[str, Any]], Any]  # mode, function, its arguments


def divided(relevance: Tensor, z: Tensor) -> Tensor:
    # NOTE[DIFF] the authors add 1e-9 whatever the sign of z, which can make the denominator smaller.
    return (relevance / z.sign().mul_(TINY).add_(z)).masked_fill_(z == 0, 0.0)


class Desk:
    """Where the weights of one layer after the other lie in the pass's precision: they are used at once, and as large
    tensors made anew each time they would cost more than the products.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._room = torch.empty(0, dtype=dtype)

    def copy(self, weight: Tensor) -> Tensor:
        """The weight, until the next one is asked for."""
        if self._room.numel() < weight.numel() or self._room.device != weight.device:
            self._room = torch.empty(weight.numel(), dtype=self.dtype, device=weight.device)
        return self._room[: weight.numel()].view(weight.shape).copy_(weight)


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


class _PositiveLinear(torch.autograd.Function):
    """The same for a linear layer, in three products instead of eight, and for rows that have any relevance."""

    @staticmethod
    def forward(ctx: Any, desk: Desk, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shown: Tensor = torch.nn.functional.linear(x, desk.copy(weight), None if bias is None else bias.to(x.dtype))
        ctx.desk = desk
        ctx.save_for_backward(shown, x, weight, bias)
        return shown.clone()  # which the model may write into

    @staticmethod
    def backward(ctx: Any, *relevances: Any) -> Any:
        shown, x, weight, bias = ctx.saved_tensors
        x_MI, shown_MO, relevance_MO = (t.flatten(0, -2) for t in (x, shown, relevances[0]))
        sums_M = relevance_MO.abs().sum(1)
        rows = sums_M.nonzero()[:, 0]  # a head that reads one row leaves one to the last block
        few = 2 * len(rows) < len(x_MI)
        if few:
            x_MI, shown_MO, relevance_MO = x_MI[rows], shown_MO[rows], relevance_MO[rows]
        size_OI = ctx.desk.copy(weight).abs_()
        # Signs that do not cancel do not amplify rounding either.
        calm = weight.dtype == torch.float32 and bool(sums_M.sum() < CALM * relevance_MO.sum().abs())
        weight_OI = weight if calm else weight.to(x.dtype)
        above_OI, below_OI = weight_OI.clamp(min=0), weight_OI.clamp(max=0)
        back_MI = torch.empty_like(x_MI)
        for start in range(0, len(x_MI), TILE):
            tile = slice(start, start + TILE)
            z = _raised(x_MI[tile], shown_MO[tile], weight, size_OI, bias)
            slope = torch.div(relevance_MO[tile], z.add_(TINY), out=z).to(above_OI.dtype)
            torch.mul(torch.where(x_MI[tile] > 0, slope @ above_OI, slope @ below_OI), x_MI[tile], out=back_MI[tile])
        if few:
            back_MI = torch.zeros_like(x).flatten(0, -2).index_copy_(0, rows, back_MI)
        return None, back_MI.view(x.shape), None, None


def _raised(x_MI: Tensor, shown_MO: Tensor, weight: Tensor, size_OI: Tensor, bias: Tensor | None) -> Tensor:
    """z = W⁺x⁺ + W⁻x⁻ = (Wx + |W||x|) / 2: one product, since Wx is known.

    Where the two nearly cancel, rounding would be left: then z is added up as it is written.
    """
    size_MO = x_MI.abs() @ size_OI.mT
    z_MO = size_MO + shown_MO
    if bias is not None:
        z_MO -= bias
        size_MO += bias.abs()
    if bool((z_MO < size_MO.mul_(CANCELLED)).any()):
        weight = weight.to(x_MI.dtype)
        return x_MI.clamp(min=0) @ weight.clamp(min=0).mT + x_MI.clamp(max=0) @ weight.clamp(max=0).mT
    return z_MO.div_(2)


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


def product_of_two(shown: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """:func:`proportional` for the product of two stacks of matrices."""
    return _ProductOfTwo.apply(shown, left, right)  # type: ignore[no-untyped-call, no-any-return]


def positive_linear(desk: Desk, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """:func:`positive_part` of linear(x, W, b)."""
    return _PositiveLinear.apply(desk, x, weight, bias)  # type: ignore[no-untyped-call, no-any-return]


def positive_part(operation: Callable[[Tensor, Tensor], Tensor], shown: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """All relevance to ``x``, through what raised the result: z = W⁺x⁺ + W⁻x⁻ (bias ignored)."""
    return _PositivePart.apply(operation, shown, x, weight)  # type: ignore[no-untyped-call, no-any-return]


def split(a: Tensor, b: Tensor, totals: Totals) -> Tensor:
    """a + b: each entry in proportion, then the two sides rescaled to share |Σa| : |Σb|.

    NOTE[DIFF] the authors' sums run over the whole tensor, batch included; ``totals`` sums each input by itself.
    """
    return _Split.apply(a, b, totals)  # type: ignore[no-untyped-call, no-any-return]


def passes(rules: AlphaBeta, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """All relevance to the first operand that carries any."""
    return whole(carrying((*args, *kwargs.values()))[0], rules.plain(func, args, kwargs))


def power(rules: AlphaBeta, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    exponent = args[1] if len(args) > 1 else kwargs["exponent"]
    rule = nothing if isinstance(exponent, (int, float)) and exponent < 0 else passes
    return rule(rules, func, args, kwargs)


def nothing(rules: AlphaBeta, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What only normalises carries no relevance."""
    return rules.plain(func, args, kwargs)


def cast(rules: AlphaBeta, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Floats stay in this pass's precision."""
    out = func(*args, **kwargs)
    return args[0].to(out.device, rules.dtype) if out.is_floating_point() else out


def reduction(rules: AlphaBeta, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = carrying(args)[0]
    rest, named = args[1:], rules.lifted_named(kwargs)
    return proportional(lambda t: func(t, *rest, **named), rules.plain(func, args, kwargs), x)


def linear(rules: AlphaBeta, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """linear(x, W, b), conv(x, W, b, …)."""
    names = ("input", "weight", "bias")
    call = dict(zip(names, args, strict=False)) | kwargs
    x, weight = call.pop("input"), call.pop("weight")
    bias = call.pop("bias", None)
    if func.__name__ == "linear" and weight.ndim == 2 and x.ndim > 1 and not weight.requires_grad:
        return positive_linear(rules.desk, x, weight, bias)
    shown = rules.plain(func, args, kwargs)
    return _weighted(rules, lambda t, w: func(t, w, None, *args[3:], **call), shown, x, weight)


def addmm(rules: AlphaBeta, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """addmm(b, x, W)."""
    call = dict(zip(("input", "mat1", "mat2"), args, strict=False)) | kwargs
    return _weighted(rules, torch.mm, rules.plain(func, args, kwargs), call["mat1"], call["mat2"])


def product(rules: AlphaBeta, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """matmul(a, b), bmm, mm."""
    left, right = (*args, *kwargs.values())[:2]
    shown = rules.plain(func, args, kwargs)
    if left.requires_grad and right.requires_grad and left.shape[:-2] == right.shape[:-2] and left.ndim > 1:
        return product_of_two(shown, left, right)
    return _weighted(rules, func, shown, left, right)


def baddbmm(rules: AlphaBeta, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = {"beta": 1, "alpha": 1} | dict(zip(("input", "batch1", "batch2"), args, strict=False)) | kwargs
    both = product(rules, torch.bmm, (call["batch1"], call["batch2"]), {})
    return _sum(rules, whole(both, both.detach() * call["alpha"]), call["input"] * call["beta"])


def einsum(rules: AlphaBeta, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    shown = rules.plain(func, (equation, *operands), kwargs)
    if len(operands) == 2:
        return _weighted(rules, lambda a, b: func(equation, a, b), shown, *operands)
    if len(carrying(operands)) < len(operands):
        rules.unruled.add("einsum of three")
        return func(equation, *rules.lifted(operands))
    return proportional(lambda *factors: func(equation, *factors), shown, *operands)


def _weighted(rules: AlphaBeta, operation: Function, shown: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """A bilinear operation: of two tensors, or of one with weights."""
    if left.requires_grad and right.requires_grad:
        return proportional(operation, shown, left, right)
    if left.requires_grad:
        return positive_part(operation, shown, left, right)
    return positive_part(lambda t, w: operation(w, t), shown, right, left)


def elementwise_product(rules: AlphaBeta, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    left, right = args[0], args[1] if len(args) > 1 else kwargs["other"]
    shown = rules.plain(func, args, kwargs)
    factors = carrying((left, right))
    if len(factors) == 1:
        return whole(factors[0], shown)
    a, b = rules.elementwise.of(left), rules.elementwise.of(right)
    if a.origin is b.origin:  # a piece of an activation that is written out
        return whole(right if a.curved and not b.curved else left, shown)
    # NOTE[DIFF] the paper's models have no gated MLPs; here gate and gated get half each, as factors of any product.
    return proportional(torch.mul, shown, left, right)


def quotient(rules: AlphaBeta, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """All relevance to the numerator."""
    shown = rules.plain(func, args, kwargs)
    return whole(args[0], shown) if args[0].requires_grad else shown


def addition(rules: AlphaBeta, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    left, right = args[0], args[1] if len(args) > 1 else kwargs["other"]
    sign = (-1 if plain_name(func.__name__)[0] == "sub" else 1) * kwargs.get("alpha", 1)
    if not isinstance(right, Tensor) or not isinstance(left, Tensor):
        return passes(rules, func, args, kwargs)
    return _sum(rules, left, right if sign == 1 else _signed(right, sign))


def _signed(x: Tensor, sign: float) -> Tensor:
    return whole(x, x.detach() * sign) if x.requires_grad else x * sign


def _sum(rules: AlphaBeta, left: Tensor, right: Tensor) -> Tensor:
    a, b = rules.lifted((left, right))
    for x, constant in ((a, b), (b, a)):
        if not constant.requires_grad and constant.ndim < 2:  # a bias: ignored, as in a linear layer
            return whole(x, (x + constant).detach())
    return split(a, b, rules.totals(torch.broadcast_shapes(a.shape, b.shape)))


RULES: dict[str, Rule] = {
    **dict.fromkeys(BENDS | CLAMPS | REVERSED_SUBS, passes),
    **dict.fromkeys("softmax layer_norm rms_norm group_norm batch_norm instance_norm normalize".split(), passes),
    **dict.fromkeys("neg negative nan_to_num".split(), passes),
    **dict.fromkeys(CONSTANT, nothing),
    **dict.fromkeys(CASTS, cast),
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys("linear conv1d conv2d conv3d".split(), linear),
    **dict.fromkeys(MATMULS | {"mm"}, product),
    "addmm": addmm,
    "baddbmm": baddbmm,
    "einsum": einsum,
    "pow": power,
    "mul": elementwise_product,
    "div": quotient,
    "add": addition,
    "sub": addition,
}


class AlphaBeta(Intercept):
    """Run a model inside ``with rules:``; the "gradient" of a score at an attention map is then the map's relevance.

    Only tensors that require a gradient carry relevance: parameters must be frozen and the input a leaf in ``dtype``.
    """

    def __init__(
        self,
        batch: int,
        names: dict[int, str],
        batch_axes: dict[int, int] | None = None,
        *,
        positions: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(batch, names, batch_axes)
        self.positions, self.dtype = positions, dtype
        self.unruled: set[str] = set()
        self.elementwise = Elementwise()
        self.desk = Desk(dtype)

    def at_site(self, site: OpenSite) -> None:
        """Nothing to change: the base class keeps the site."""

    def _sdpa(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Attention in one call, taken apart so that each of its steps meets its rule."""
        call = sdpa_operands(args, kwargs)
        query, key, value = call["query"], call["key"], call["value"]
        with self:
            if call["enable_gqa"]:
                key, value = repeat_heads(query, key), repeat_heads(query, value)
            weights = attention_weights(query, key, call["attn_mask"], call["is_causal"], call["scale"])
            return torch.matmul(weights, value)

    def __torch_function__(
        self, func: Function, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name, in_place = plain_name(func.__name__)
        operands = carrying((*args, *kwargs.values()))
        if not operands or name in OPAQUE:
            return super().__torch_function__(func, types, args, kwargs)
        out = super().__torch_function__(_named(func.__name__, self._ruled(func, name, in_place)), types, args, kwargs)
        if isinstance(out, Tensor):
            self.elementwise.follow(name, operands, out)
        return out

    def _ruled(self, func: Function, name: str, in_place: bool) -> Function:
        """The same function, with the backward of its rule, in double precision."""
        rule = RULES.get(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if rule is None:
                written, read = (args[:1], args[1:]) if in_place or name == "__setitem__" else ((), args)
                out = func(*written, *self.lifted(read), **self.lifted_named(kwargs))
                if name not in LINEAR and carrying((out,)):
                    self.unruled.add(name)
                return out
            if not in_place and not kwargs.get("inplace"):
                return rule(self, func, args, kwargs)
            before = args[0].clone()
            self.elementwise.follow("clone", [args[0]], before)
            named = {k: v for k, v in kwargs.items() if k != "inplace"}
            return args[0].copy_(rule(self, out_of_place(name) if in_place else func, (before, *args[1:]), named))

        return call

    def lifted(self, values: Any) -> list[Any]:
        """Floats in this pass's precision, lists and tuples opened."""
        lifted: list[Any] = []
        for value in values:
            if isinstance(value, Tensor) and value.is_floating_point():
                lifted.append(value.to(self.dtype))
            elif isinstance(value, (list, tuple)) and carrying((value,)):
                lifted.append(type(value)(self.lifted(value)))
            else:
                lifted.append(value)
        return lifted

    def lifted_named(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        named = dict(zip(kwargs, self.lifted(kwargs.values()), strict=True))
        dtype = named.get("dtype")
        return named | {"dtype": self.dtype} if isinstance(dtype, torch.dtype) and dtype.is_floating_point else named

    def plain(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result, without history."""
        with torch.no_grad():
            return func(*self.lifted(args), **self.lifted_named(kwargs))

    def totals(self, shape: torch.Size) -> Totals:
        """Sums over everything but the input's own axis, for a result of this shape."""
        if self.batch == 1:
            return lambda t: t.sum().expand([1] * len(shape))
        first, second = (*shape, 0)[:2]
        if first == second == self.batch:  # as many heads as inputs: the maps say which comes first
            axis = 0 if self.batch != self.positions and set(self.batch_axes.values()) == {0} else None
        elif first == self.batch:
            axis = 0
        else:  # positions first, unless heads are folded into the batch
            axis = 1 if second == self.batch and first % self.batch else None
        if axis is None:
            raise AmbiguousLayout(
                f"a sum of shape {tuple(shape)} for {self.batch} inputs: which entries belong to which input is not "
                "known. Explain one input at a time (batch_size=1)."
            )
        others = [i for i in range(len(shape)) if i != axis]
        return lambda t: t.sum(others, keepdim=True)


def _named(name: str, function: Function) -> Function:
    function.__name__ = name
    return function
