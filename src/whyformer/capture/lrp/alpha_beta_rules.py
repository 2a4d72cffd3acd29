"""The alpha-beta rules, one per torch function: (mode, function, arguments) → result.

The result has the value that the function itself gives; its backward shares out relevance (capture/lrp/shares.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whyformer.capture.lrp.elementwise import ACTIVATIONS, carrying, plain_name
from whyformer.capture.lrp.gradient_rules import CONSTANT
from whyformer.capture.lrp.shares import positive_part, proportional, split, whole

if TYPE_CHECKING:
    from whyformer.capture.lrp.alpha_beta import AlphaBeta

Function = Callable[..., Any]
Rule = Callable[["AlphaBeta", Function, tuple[Any, ...], dict[str, Any]], Any]


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
    call.pop("bias", None)
    return _weighted(
        rules, lambda t, w: func(t, w, None, *args[3:], **call), rules.plain(func, args, kwargs), x, weight
    )


def addmm(rules: AlphaBeta, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """addmm(b, x, W)."""
    call = dict(zip(("input", "mat1", "mat2"), args, strict=False)) | kwargs
    return _weighted(rules, torch.mm, rules.plain(func, args, kwargs), call["mat1"], call["mat2"])


def product(rules: AlphaBeta, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """matmul(a, b), bmm, mm."""
    left, right = (*args, *kwargs.values())[:2]
    return _weighted(rules, func, rules.plain(func, args, kwargs), left, right)


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
    **dict.fromkeys(ACTIVATIONS, passes),
    **dict.fromkeys(
        "softmax layer_norm rms_norm group_norm batch_norm instance_norm normalize neg negative".split(), passes
    ),
    **dict.fromkeys("clamp clamp_min clamp_max clip nan_to_num rsub __rsub__".split(), passes),
    **dict.fromkeys(CONSTANT, nothing),
    **dict.fromkeys("to type type_as float double half bfloat16".split(), cast),
    **dict.fromkeys("sum mean cumsum avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d".split(), reduction),
    **dict.fromkeys("linear conv1d conv2d conv3d".split(), linear),
    **dict.fromkeys("matmul __matmul__ bmm mm".split(), product),
    "addmm": addmm,
    "baddbmm": baddbmm,
    "einsum": einsum,
    "pow": power,
    "mul": elementwise_product,
    "div": quotient,
    "add": addition,
    "sub": addition,
}
