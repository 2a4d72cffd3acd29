"""Relevance by alpha-beta rules (alpha = 1, beta = 0), one per torch function, and the mode that applies them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whyformer.capture import functions as fn
from whyformer.capture.functions import Args, Function, Kwargs, in_model, plain_name, sdpa_operands
from whyformer.capture.intercept import Intercept
from whyformer.capture.leaves import Gaps, unruled_text
from whyformer.capture.lrp import redistribution as shared_out
from whyformer.capture.lrp.changed_gradients import CONSTANT
from whyformer.capture.lrp.elementwise import BENDS, Elementwise, carrying
from whyformer.capture.site import OpenSite
from whyformer.capture.trail import Notes
from whyformer.errors import AmbiguousLayout

OPAQUE = fn.ATTENTION | {"__get__"}
Rule = Callable[["AlphaBeta", Function, tuple[Any, ...], dict[str, Any]], Any]  # mode, function, its arguments


def passes(rules: AlphaBeta, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """All relevance to the first operand that carries any."""
    return shared_out.whole(carrying((*args, *kwargs.values()))[0], rules.plain(func, args, kwargs))


def power(rules: AlphaBeta, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """A negative power only normalises, and carries no relevance."""
    exponent = args[1] if len(args) > 1 else kwargs["exponent"]
    negative = isinstance(exponent, (int, float)) and exponent < 0
    return rules.plain(func, args, kwargs) if negative else passes(rules, func, args, kwargs)


def cast(rules: AlphaBeta, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Floats stay in this pass's precision."""
    out = func(*args, **kwargs)
    return args[0].to(out.device, rules.dtype) if out.is_floating_point() else out


def reduction(rules: AlphaBeta, func: Function, args: Args, kwargs: Kwargs) -> Any:
    x = carrying(args)[0]
    rest, named = args[1:], rules.lifted_named(kwargs)
    return shared_out.proportional(lambda t: func(t, *rest, **named), rules.plain(func, args, kwargs), x)


def linear(rules: AlphaBeta, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """linear(x, W, b), conv(x, W, b, …)."""
    call = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    x, weight, bias = call.pop("input"), call.pop("weight"), call.pop("bias", None)
    if func.__name__ == "linear" and weight.ndim == 2 and x.ndim > 1 and not weight.requires_grad:
        return shared_out.positive_linear(rules.desk, x, weight, bias)
    shown = rules.plain(func, args, kwargs)
    return _weighted(rules, lambda t, w: func(t, w, None, *args[3:], **call), shown, x, weight)


def addmm(rules: AlphaBeta, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """addmm(b, x, W)."""
    call = dict(zip(("input", "mat1", "mat2"), args, strict=False)) | kwargs
    return _weighted(rules, torch.mm, rules.plain(func, args, kwargs), call["mat1"], call["mat2"])


def product(rules: AlphaBeta, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """matmul(a, b), bmm, mm."""
    left, right = (*args, *kwargs.values())[:2]
    shown = rules.plain(func, args, kwargs)
    if left.requires_grad and right.requires_grad and left.shape[:-2] == right.shape[:-2] and left.ndim > 1:
        return shared_out.product_of_two(shown, left, right)
    return _weighted(rules, func, shown, left, right)


def baddbmm(rules: AlphaBeta, func: Function, args: Args, kwargs: Kwargs) -> Any:
    call = {"beta": 1, "alpha": 1} | dict(zip(("input", "batch1", "batch2"), args, strict=False)) | kwargs
    both = product(rules, torch.bmm, (call["batch1"], call["batch2"]), {})
    return _sum(rules, shared_out.whole(both, both.detach() * call["alpha"]), call["input"] * call["beta"])


def grouped(rules: AlphaBeta, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """_grouped_mm(x, W, offs): each stretch of rows of x with a matrix of its own, that of the expert they chose."""
    x, weight = args[:2]
    ends = kwargs.get("offs", args[2] if len(args) > 2 else None)
    if x.ndim != 2 or weight.ndim != 3 or weight.requires_grad or ends is None or kwargs.get("bias") is not None:
        rules.unruled.add(func.__name__)
        return func(*args, **kwargs)
    starts = [0, *ends.tolist()]

    def stretches(t: Tensor, w: Tensor) -> Tensor:
        parts = [t[a:b] @ matrix for a, b, matrix in zip(starts, starts[1:], w, strict=False)]
        return torch.cat([*parts, t.new_zeros(len(t) - starts[-1], w.shape[-1])])

    return shared_out.positive_part(stretches, rules.plain(stretches, (x, weight), {}), x, weight)


def scattered_sum(rules: AlphaBeta, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """index_add(base, dim, index, source), scatter_add: what meets in one place shares by what each brought."""
    names = ("input", "dim", "index", "source" if func.__name__ == "index_add" else "src")
    call = dict(zip(names, args, strict=False)) | kwargs
    base, source = rules.lifted((call["input"], call[names[3]]))
    others = (call["dim"], call["index"])
    scale = {"alpha": call["alpha"]} if "alpha" in call else {}

    def added(joined: Tensor) -> Tensor:
        into, brought = joined.split([base.numel(), source.numel()])
        out: Tensor = func(into.view(base.shape), *others, brought.view(source.shape), **scale)
        return out

    joined = torch.cat([base.flatten(), source.flatten()])
    return shared_out.proportional(added, rules.plain(added, (joined.detach(),), {}), joined)


def einsum(rules: AlphaBeta, func: Function, args: Args, kwargs: Kwargs) -> Any:
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    shown = rules.plain(func, (equation, *operands), kwargs)
    if len(operands) == 2:
        return _weighted(rules, lambda a, b: func(equation, a, b), shown, *operands)
    if len(carrying(operands)) < len(operands):
        rules.unruled.add("einsum of three")
        return func(equation, *rules.lifted(operands))
    return shared_out.proportional(lambda *factors: func(equation, *factors), shown, *operands)


def _weighted(rules: AlphaBeta, operation: Function, shown: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """A bilinear operation: of two tensors, or of one with weights."""
    if left.requires_grad and right.requires_grad:
        return shared_out.proportional(operation, shown, left, right)
    if left.requires_grad:
        return shared_out.positive_part(operation, shown, left, right)
    return shared_out.positive_part(lambda t, w: operation(w, t), shown, right, left)


def elementwise_product(rules: AlphaBeta, func: Function, args: Args, kwargs: Kwargs) -> Any:
    left, right = args[0], args[1] if len(args) > 1 else kwargs["other"]
    shown = rules.plain(func, args, kwargs)
    factors = carrying((left, right))
    if len(factors) == 1:
        return shared_out.whole(factors[0], shown)
    a, b = rules.elementwise.of(left), rules.elementwise.of(right)
    if a.origin is b.origin:  # a piece of an activation that is written out
        return shared_out.whole(right if a.curved and not b.curved else left, shown)
    # NOTE[DIFF] the paper's models have no gated MLPs; here gate and gated get half each, as factors of any product.
    return shared_out.proportional(torch.mul, shown, left, right)


def quotient(rules: AlphaBeta, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """All relevance to the numerator."""
    shown = rules.plain(func, args, kwargs)
    return shared_out.whole(args[0], shown) if args[0].requires_grad else shown


def addition(rules: AlphaBeta, func: Function, args: Args, kwargs: Kwargs) -> Any:
    left, right = args[0], args[1] if len(args) > 1 else kwargs["other"]
    sign = (-1 if plain_name(func.__name__)[0] == "sub" else 1) * kwargs.get("alpha", 1)
    if not isinstance(right, Tensor) or not isinstance(left, Tensor):
        return passes(rules, func, args, kwargs)
    if rules.by_expert.get(left) and not right.requires_grad:  # its bias, one row per token
        return shared_out.whole(left, rules.plain(func, args, kwargs))
    if sign != 1:
        right = shared_out.whole(right, right.detach() * sign) if right.requires_grad else right * sign
    return _sum(rules, left, right)


def _sum(rules: AlphaBeta, left: Tensor, right: Tensor) -> Tensor:
    a, b = rules.lifted((left, right))
    for x, constant in ((a, right), (b, left)):
        if not constant.requires_grad and _is_bias(constant, rules.positions):  # ignored, as in a linear layer
            return shared_out.whole(x, (a + b).detach())
    return shared_out.split(a, b, rules.totals(torch.broadcast_shapes(a.shape, b.shape)))


def _is_bias(constant: Tensor, positions: int) -> bool:
    """Is it a vector, in whatever shape it is added? One that has a number per position is none, but in a plain row."""
    if constant.ndim < 2:
        return True
    varying = [n for n, stride in zip(constant.shape, constant.stride(), strict=True) if n > 1 and stride]
    in_a_row = constant.ndim == 3 and constant.shape[-1] > 1  # scores of attention have four axes
    return not varying or (len(varying) == 1 and (varying[0] != positions or in_a_row))


GROUPED = ("_grouped_mm", "grouped_mm")
RULES: dict[str, Rule] = {
    **dict.fromkeys(BENDS | fn.CLAMPS | fn.REVERSED_SUBS, passes),
    **dict.fromkeys("softmax layer_norm rms_norm group_norm batch_norm instance_norm normalize".split(), passes),
    **dict.fromkeys("neg negative nan_to_num".split(), passes),
    **dict.fromkeys(CONSTANT, lambda rules, *call: rules.plain(*call)),  # what only normalises carries no relevance
    **dict.fromkeys(fn.CASTS, cast),
    **dict.fromkeys(fn.REDUCTIONS, reduction),
    **dict.fromkeys("linear conv1d conv2d conv3d".split(), linear),
    **dict.fromkeys(fn.MATMULS | {"mm"}, product),
    **dict.fromkeys(GROUPED, grouped),
    **dict.fromkeys("index_add scatter_add".split(), scattered_sum),
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

    def __init__(self, *where: Any, positions: int, dtype: torch.dtype) -> None:
        super().__init__(*where)
        self.positions, self.dtype = positions, dtype
        self.unruled: set[str] = set()
        self.elementwise = Elementwise()
        self.by_expert = Notes[bool]()  # what weights made that each row has of its own
        self.desk = shared_out.Desk(dtype)
        self.gaps = Gaps()

    def __exit__(self, *exc: Any) -> None:
        self.gaps.close()
        super().__exit__(*exc)

    def unruled_text(self, value: Tensor) -> list[str]:
        """What to say of the functions behind ``value`` that have no rule."""
        return unruled_text(self.unruled, self.gaps.functions(value, linear_is_known=False))

    def at_site(self, site: OpenSite) -> None:
        """Nothing to change: the base class keeps the site."""

    def _sdpa(self, func: Function, args: Args, kwargs: Kwargs) -> Tensor:
        """Attention in one call, taken apart so that each of its steps meets its rule."""
        call = sdpa_operands(args, kwargs)
        query, key, value = call["query"], call["key"], call["value"]
        with self:
            if call["enable_gqa"]:
                key, value = fn.repeat_heads(query, key), fn.repeat_heads(query, value)
            weights = fn.attention_weights(query, key, call["attn_mask"], call["is_causal"], call["scale"])
            return torch.matmul(weights, value)

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        with self.gaps:
            return self._followed(func, types, args, kwargs or {})

    def _followed(self, func: Function, types: object, args: Args, kwargs: Kwargs) -> Any:
        name, in_place = plain_name(func.__name__)
        operands = carrying((*args, *kwargs.values()))
        if not operands or name in OPAQUE:
            return super().__torch_function__(func, types, args, kwargs)
        out = super().__torch_function__(self._ruled(func, name, in_place), types, args, kwargs)
        if isinstance(out, Tensor):
            self.elementwise.follow(name, operands, out)
            if name in GROUPED or (name == "bmm" and len(operands) == 1):
                self.by_expert.put(out, True)
            elif name in {"squeeze", "unsqueeze"}:
                self.by_expert.copy(operands[0], out)
        return out

    def _ruled(self, func: Function, name: str, in_place: bool) -> Function:
        """The same function, with the backward of its rule, in double precision."""
        rule = RULES.get(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if rule is None:
                written, read = (args[:1], args[1:]) if in_place or name == "__setitem__" else ((), args)
                out = func(*written, *self.lifted(read), **self.lifted_named(kwargs))
                # The plain gradient of a logsumexp shares out by softmax, which keeps the sum of relevance.
                if (name not in fn.LINEAR or name in fn.MIXES) and carrying((out,)) and in_model():
                    self.unruled.add(name)
                return out
            if not in_place and not kwargs.get("inplace"):
                return rule(self, func, args, kwargs)
            before = args[0].clone()
            self.elementwise.follow("clone", [args[0]], before)
            self.by_expert.copy(args[0], before)
            named = {k: v for k, v in kwargs.items() if k != "inplace"}
            return args[0].copy_(rule(self, fn.out_of_place(name) if in_place else func, (before, *args[1:]), named))

        call.__name__ = func.__name__  # by which the interceptor knows it
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

    def plain(self, func: Function, args: Args, kwargs: Kwargs) -> Any:
        """The result, without history."""
        with torch.no_grad():
            return func(*self.lifted(args), **self.lifted_named(kwargs))

    def totals(self, shape: torch.Size) -> shared_out.Totals:
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
