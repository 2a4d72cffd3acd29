"""LRP as a changed gradient: the rules of AttnLRP and CP-LRP, one per torch function, and the mode applying them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whyformer.capture import functions as fn
from whyformer.capture.functions import Args, Function, Kwargs, in_model, plain_name, sdpa_operands, tensors_in
from whyformer.capture.leaves import Gaps, nodes_behind, unruled_text
from whyformer.capture.lookups import LOOKUPS
from whyformer.capture.lrp.elementwise import (
    BENDS,
    FACTORS,
    PIECES,
    Elementwise,
    carrying,
    constant_pieces,
    scanning_layer,
    without,
)
from whyformer.capture.site import OffPlan
from whyformer.capture.trail import Notes


class Rules(Protocol):
    """The mode that applies rules: a ``with`` block, in which functions of a body that was hidden meet their rules."""

    attention_is_constant: bool

    def __enter__(self) -> Any: ...
    def __exit__(self, *exc: Any) -> Any: ...


Rule = Callable[[Any, Function, tuple[Any, ...], dict[str, Any]], Any]  # mode, function, its arguments
# A function that the model called, its rule, and which arguments carry relevance (None: they do not decide the rule).
Step = tuple[Function, Rule | None, tuple[int, ...] | None]
OWN = {Tensor, nn.Parameter}  # no subclass
CONSTANT = fn.MEASURES | {"__rdiv__"}
CUTS = frozenset(("detach", "__get__"))  # a getter: x.data
Attribute = type(Tensor.shape.__get__)  # type: ignore[attr-defined]  # x.shape, x.dtype, …


class _Scaled(torch.autograd.Function):
    """What is shown, with the gradient of x times a factor (a number, or a tensor of its shape; None: as it is)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shown: Tensor, factor: Any) -> Tensor:
        ctx.factor = factor
        return shown.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] if ctx.factor is None else gradients[0] * ctx.factor, None, None


def carried_by(args: Args, kwargs: Kwargs) -> tuple[int, ...]:
    """Return which arguments are tensors that require a gradient; of a list, how many."""
    values = (*args, *kwargs.values()) if kwargs else args
    return tuple([
        value.requires_grad if isinstance(value, Tensor) else len(carrying(value)) if isinstance(value, list) else 0
        for value in values
    ])  # fmt: skip


def as_it_is(rules: Rules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    return func(*args, **kwargs)


def scaled(x: Tensor, factor: float) -> Tensor:
    """``x`` with its gradient times ``factor``."""
    return x if factor == 1 else _Scaled.apply(x, x, factor)  # type: ignore[no-untyped-call, no-any-return]


def _plain(func: Function, args: Args, kwargs: Kwargs) -> Any:
    with torch.no_grad():
        return func(*args, **kwargs)


class _Activated(torch.autograd.Function):
    """f(x), with the gradient times f(x)/x; 0 at x = 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shown: Tensor) -> Tensor:
        ctx.save_for_backward(x, shown)
        return shown.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, shown = ctx.saved_tensors
        # NOTE[DIFF] the published stabiliser is x + 1e-10, which changes nothing but x of that size.
        return (shown / x).nan_to_num_(0.0, 0.0, 0.0).to(x.dtype) * gradients[0], None


def activation(rules: Rules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """f(x)/x in place of f'(x): the identity rule, R_in = R_out."""
    if func.__name__ in {"pow", "__pow__", "float_power"}:
        exponent = args[1] if len(args) > 1 else kwargs["exponent"]
        if isinstance(exponent, (int, float)) and exponent < 0:
            return _plain(func, args, kwargs)
    x = carrying((*args, *kwargs.values()))[0]
    return _Activated.apply(x, _plain(func, args, kwargs))  # type: ignore[no-untyped-call]


class _Centred(torch.autograd.Function):
    """layer_norm, with the gradient of (x - mean) · weight · constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shown: Tensor, spread: Tensor, weight: Tensor | None, shape: list[int]) -> Tensor:
        ctx.save_for_backward(spread, weight)
        ctx.shape = shape
        return shown.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,), (spread, weight) = gradients, ctx.saved_tensors
        # torch's own backward at x = mean, where the standard deviation has no slope.
        zero, mean = torch.zeros_like(gradient), torch.zeros_like(spread)
        wanted = [True, False, False]
        backward = torch.ops.aten.native_layer_norm_backward
        return backward(gradient, zero, ctx.shape, mean, spread, weight, None, wanted)[0], *[None] * 4


def norm(rules: Rules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """(x - mean)/std with std a constant; the bias takes its share and loses it. rms_norm has neither mean nor bias."""
    centred = func.__name__ == "layer_norm"
    names = ("input", "normalized_shape", "weight", *(("bias", "eps") if centred else ("eps",)))
    call = dict(zip(names, args, strict=False)) | kwargs
    x, shape = call["input"], list(call["normalized_shape"])
    eps, weight, bias = call.get("eps"), call.get("weight"), call.get("bias")
    plain = all(t is None or (type(t) in OWN and t.dtype == x.dtype) for t in (weight, bias))
    if centred and plain and type(x) in OWN and (x.is_cuda or x.dtype in {torch.float32, torch.float64}):
        with torch.no_grad():
            out, _, spread = torch.native_layer_norm(x, shape, weight, bias, 1e-5 if eps is None else eps)
        return _Centred.apply(x, out, spread, weight, shape)  # type: ignore[no-untyped-call]
    dims, wide = tuple(range(-len(shape), 0)), x.to(torch.promote_types(x.dtype, torch.float32))
    if centred:
        spread = (wide.detach().var(dims, correction=0, keepdim=True) + (1e-5 if eps is None else eps)).rsqrt()
        scaled_x = (wide - wide.mean(dims, keepdim=True)) * spread
    else:
        eps = torch.finfo(wide.dtype).eps if eps is None else eps
        scaled_x = wide * (wide.detach().square().mean(dims, keepdim=True) + eps).rsqrt()
    stand_in = scaled_x if weight is None else scaled_x * weight
    out = _plain(func, args, kwargs)
    return _Scaled.apply(stand_in.to(out.dtype), out, None)  # type: ignore[no-untyped-call]


def group_norm(rules: Rules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """The rule of layer_norm, over the channels of a group and all positions; weights are one per channel."""
    names: tuple[str, ...] = ("input", "num_groups", "weight", "bias", "eps")
    if func.__name__ == "instance_norm":  # torch.instance_norm, below torch.nn.functional, has another order
        names = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
        names = names if func is F.instance_norm else (names[0], *names[3:5], *names[1:3], *names[5:])
    call = dict(zip(names, args, strict=False)) | kwargs
    if not call.get("use_input_stats", True):
        return func(*args, **kwargs)  # the running mean and spread are constants: it is linear
    x, weight = call["input"], call.get("weight")
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    grouped = wide.unflatten(1, (call.get("num_groups", x.shape[1]), -1)).flatten(2)
    spread = (grouped.detach().var(2, correction=0, keepdim=True) + call.get("eps", 1e-5)).rsqrt()
    stand_in = ((grouped - grouped.mean(2, keepdim=True)) * spread).view(x.shape)
    stand_in = stand_in if weight is None else stand_in * weight.view(-1, *[1] * (x.ndim - 2))
    out = _plain(func, args, kwargs)
    return _Scaled.apply(stand_in.to(out.dtype), out, None)  # type: ignore[no-untyped-call]


def product(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Rule:
    """R/n to each of the n factors that carry relevance; in CP-LRP, one that weighs the others is a constant."""
    # What is added to the product is no factor: the first operand of baddbmm, the bias of a linear layer.
    added = {"input"} if func.__name__.startswith(("addmm", "addbmm", "addmv", "baddbmm")) else {"bias"}
    first, last = (1, None) if "input" in added else (0, 2 if plain_name(func.__name__)[0] in fn.WEIGHTED else None)
    factors = carrying((*args[first:last], *(v for k, v in kwargs.items() if k not in added)))
    if len(factors) < 2:
        return as_it_is
    weights = [f for f in factors if rules.attention_is_constant and rules.elementwise.of(f).weighs]
    weights = [] if len(weights) == len(factors) else weights
    part = 1 / (len(factors) - len(weights))
    if len(carrying((*args, *kwargs.values()))) == len(factors):  # linear in each: the result's gradient is shared
        held = tuple(i for i, value in enumerate(args) if any(value is w for w in weights))
        if len(held) == len(weights):
            return partial(_shared, held, part)
    rules.plannable = False
    return partial(_shared_by, factors, weights, part)


def _shared(held: tuple[int, ...], part: float, rules: Rules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """The function with these arguments constant, and the gradient of its result times ``part``."""
    args = tuple(a.detach() if i in held else a for i, a in enumerate(args)) if held else args
    return scaled(func(*args, **kwargs), part)


def _shared_by(
    factors: list[Tensor], weights: list[Tensor], part: float, rules: Rules, func: Function, args: Args, kwargs: Kwargs
) -> Any:
    def share(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(share(v) for v in value)
        if any(value is w for w in weights):
            return value.detach()
        return scaled(value, part) if any(value is f for f in factors) else value

    return func(*(share(a) for a in args), **{k: share(v) for k, v in kwargs.items()})


def elementwise_product(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Rule:
    """A gate shares with what it gates (CP-LRP: is a constant); a written-out activation is one activation."""
    left, right = args[0], args[1] if len(args) > 1 else kwargs["other"]
    if len(carrying((left, right))) < 2:
        return as_it_is
    a, b = rules.elementwise.of(left), rules.elementwise.of(right)
    if a.origin is b.origin:  # f(x) = g(x)·h(x): with g by its own rule and h constant, the gradient is f(x)/x
        return partial(_held_factor, 0 if a.curved and not b.curved else 1, _made_by(left, right))
    if rules.attention_is_constant and a.weighs != b.weighs:
        return partial(_held_factor, 0 if a.weighs else 1, _made_by(left, right))
    return partial(_shared, (), 0.5)


def _made_by(left: Tensor, right: Tensor) -> tuple[type, type]:
    """Return the kinds of node that made both factors: of a product whose factors change places, they do, too."""
    return type(left.grad_fn), type(right.grad_fn)


def _held_factor(
    constant: int, made_by: tuple[type, type], rules: Rules, func: Function, args: Args, kwargs: Kwargs
) -> Any:
    factors = [args[0], args[1] if len(args) > 1 else kwargs["other"]]
    if (made := _made_by(*factors)) != made_by and made == made_by[::-1]:
        raise OffPlan  # the factor that an earlier pass held constant is now the other one
    factors[constant] = factors[constant].detach()
    return func(*factors)


def quotient(rules: Rules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """The denominator is a constant."""
    left, right = args[0], args[1] if len(args) > 1 else kwargs["other"]
    rounding = {k: v for k, v in kwargs.items() if k != "other"}
    return func(left, right.detach() if isinstance(right, Tensor) else right, **rounding)


def softmax(rules: Rules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Its gradient is its rule, a Taylor expansion: R_i = x_i (R_i - s_i ΣR). In CP-LRP maps are constants."""
    x = args[0] if args else kwargs["input"]
    # Class probabilities, with two axes, are no map over positions.
    constant_map = rules.attention_is_constant and x.ndim > 2
    return _plain(func, args, kwargs).detach() if constant_map else func(*args, **kwargs)


def attention(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Rule:
    """softmax(QKᵀ)V in one call: the rules of its two products, taken together, on torch's own kernel."""
    call = sdpa_operands(args, kwargs)
    query, key, value = call["query"], call["key"], call["value"]
    maps = [] if rules.attention_is_constant else carrying((query, key))
    outer = 0.5 if maps and carrying((value,)) else 1.0
    return partial(_attention, 1 / max(1, len(maps)), outer)


def _attention(pair: float, outer: float, rules: Rules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    call = sdpa_operands(args, kwargs)
    query, key, value = call["query"], call["key"], call["value"]
    if rules.attention_is_constant:
        query, key = query.detach(), key.detach()
    others = {k: v for k, v in kwargs.items() if k not in {"query", "key", "value"}}
    # Linear in the values, and in the maps that queries and keys share.
    return scaled(func(scaled(query, pair), scaled(key, pair), value, *args[3:], **others), outer)


def multi_head_attention(rules: Rules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """nn.MultiheadAttention hides its body from function modes: run the same body with the rules on."""
    with rules:
        return fn.open_body(F.multi_head_attention_forward)(*args, **kwargs)


def glu(rules: Rules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    call = {"dim": -1} | dict(zip(("input", "dim"), args, strict=False)) | kwargs
    with rules:
        value, gate = call["input"].chunk(2, call["dim"])
        return value * gate.sigmoid()


def normalize(rules: Rules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    defaults = {"p": 2.0, "dim": 1, "eps": 1e-12}
    call = defaults | dict(zip(("input", *defaults), args, strict=False)) | kwargs
    length = call["input"].detach().norm(call["p"], call["dim"], keepdim=True).clamp_min(call["eps"])
    return call["input"] / length


def solved(rules: Rules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """The system is a constant: its solution is linear in the right-hand side (the delta rule of linear attention)."""
    return func(args[0].detach(), *args[1:], **kwargs)


def sampled(rules: Rules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Where it samples is a constant: the rest is linear (deformable attention)."""
    call = dict(zip(("input", "grid"), args[:2], strict=False)) | kwargs
    return func(call.pop("input"), call.pop("grid").detach(), *args[2:], **call)


def constant_result(rules: Rules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """What only normalises, and decays and step sizes of a layer with a state, carries no relevance."""
    return _plain(func, args, kwargs)


def scan_pieces(rules: Rules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """So are B and C, or queries and keys."""
    layer = scanning_layer()
    constants = () if layer is None else constant_pieces(layer, args, kwargs)
    out = func(*args, **kwargs)
    return without(out, constants) if constants else out


IN_A_SCAN: dict[str, Rule] = {
    **dict.fromkeys(FACTORS, constant_result),
    **dict.fromkeys(PIECES, scan_pieces),
}

# Where it depends on what the operands are: functions that return the rule.
CHOSEN: dict[str, Rule] = {
    **dict.fromkeys(fn.PRODUCTS | fn.RARE_PRODUCTS | fn.WEIGHTED, product),
    "mul": elementwise_product,
    "scaled_dot_product_attention": attention,
}

RULES: dict[str, Rule] = {
    **dict.fromkeys(BENDS, activation),
    **dict.fromkeys(CONSTANT, constant_result),
    "div": quotient,
    **dict.fromkeys(fn.NORMS, norm),
    **dict.fromkeys(("group_norm", "instance_norm"), group_norm),
    "normalize": normalize,
    "softmax": softmax,
    "mark_attention": softmax,
    "multi_head_attention_forward": multi_head_attention,
    "glu": glu,
    **dict.fromkeys(("linalg_solve_triangular", "linalg_solve"), solved),
    **dict.fromkeys(("grid_sample", "grid_sampler"), sampled),
}

UNDECIDED = (fn.LINEAR | fn.COMPLEX_VIEWS) - RULES.keys() - CHOSEN.keys()  # whatever carries relevance, without a rule


class GradientRules(TorchFunctionMode):
    """Run a model inside ``with rules:`` and differentiate: input × gradient is AttnLRP, or CP-LRP.

    ``attention_is_constant``: CP-LRP. Only tensors that require a gradient carry relevance, so the parameters must be
    frozen and the input must be a leaf.
    """

    def __init__(self, attention_is_constant: bool) -> None:
        super().__init__()
        self.attention_is_constant = attention_is_constant
        self.unruled: list[tuple[str, Any]] = []  # functions without a rule, and the node of autograd that they made
        self.elementwise = Elementwise()
        self.gaps = Gaps()
        self.detached = Notes[bool]()  # made of the input with gradients off, by the model
        self.cut: list[Tensor] = []  # copies of those that were added to what carries relevance: their share is lost
        self.steps: list[Step] = []  # functions of the model, in their order
        self.plannable = True
        self._coming: Iterator[Step] | None = None  # the steps of a plan that are still to come
        self._lookups: TorchFunctionMode | None = None

    @property
    def plan(self) -> tuple[Step, ...] | None:
        """The functions of the pass with their rules; None if something in it has to be looked at each time."""
        unplanned = self.unruled or self.cut or self.gaps or not self.plannable
        return None if unplanned or self._coming is not None else tuple(self.steps)

    def expect(self, plan: Sequence[Step] | None, lookups: TorchFunctionMode) -> None:
        """Apply the rules of an earlier pass step by step; OffPlan if the model does something else.

        lookups: the mode that makes the word embeddings leaves. It is asked only where something is looked up: each
        further mode costs microseconds per function.
        """
        self._coming, self._lookups = None if plan is None else iter(plan), lookups

    def require_done(self) -> None:
        """Raise OffPlan if a pass ended before its plan."""
        if self._coming is not None and next(self._coming, None) is not None:
            raise OffPlan

    def __exit__(self, *exc: Any) -> None:
        self.gaps.close()
        super().__exit__(*exc)

    def __torch_function__(self, func: Function, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        if self._coming is None:
            with self.gaps:
                return self._ruled(func, args, kwargs or {}) if in_model() else func(*args, **(kwargs or {}))
        if type(func) is Attribute:
            return func(*args)
        function, rule, carried = next(self._coming, (None, None, None))
        if func is not function and func != function:
            if function is None and not in_model():  # the scalar is computed from the answer
                return func(*args, **(kwargs or {}))
            raise OffPlan
        if carried is not None and carried_by(args, kwargs or {}) != carried:  # another rule may hold
            raise OffPlan
        if rule is not None:
            return rule(self, func, args, kwargs or {})
        if self._lookups is not None and func.__name__ in LOOKUPS:
            return self._lookups.__torch_function__(func, types, args, kwargs)
        return func(*args, **kwargs) if kwargs else func(*args)

    def functions_without_rule(self, value: Tensor, inputs: Tensor | None = None) -> set[str]:
        """Return those that relevance passes on its way from ``value`` to ``inputs`` (None: to the leaves)."""
        # Relevance does not meet what makes a constant: the exp of a denominator, an encoder before the inputs.
        passed = nodes_behind(value.grad_fn, None if inputs is None else inputs.grad_fn) if self.unruled else ()
        return {name for name, node in self.unruled if node in passed}

    def unruled_text(self, value: Tensor, inputs: Tensor | None = None, linear: Collection[type] = ()) -> list[str]:
        """What to say of the functions without a rule between both; linear: see :meth:`Gaps.functions`."""
        hidden = self.gaps.functions(value, linear_is_known=True, linear=linear, inputs=inputs)
        return unruled_text(self.functions_without_rule(value, inputs), hidden)

    def _ruled(self, func: Function, args: Args, kwargs: Kwargs) -> Any:
        name, in_place = plain_name(func.__name__)
        values = (*args, *kwargs.values())
        operands = carrying(values)
        detached = len(self.detached) > 0 and any(map(self._is_detached, tensors_in(values)))
        carried = None if name in UNDECIDED else carried_by(args, kwargs)
        if not operands or not torch.is_grad_enabled() or name in CUTS:
            if name != "__get__":  # modes read attributes, too
                self.steps.append((func, None, carried))
            out = func(*args, **kwargs)
            if (operands or detached) and not name.startswith("new_") and not name.endswith("_like"):
                for tensor in tensors_in((out,)):
                    if tensor.is_floating_point() and not tensor.requires_grad:
                        self.detached.put(tensor, True)
            return out
        rule, choose = RULES.get(name), CHOSEN.get(name)
        if name in IN_A_SCAN and scanning_layer() is not None:
            rule, choose, self.plannable = IN_A_SCAN[name], None, False
        if rule is None and choose is None:
            if detached:
                written = int(in_place or name == "__setitem__")  # stays the tensor that it is
                args = (*args[:written], *self._opened(args[written:]))
                kwargs = {key: self._opened(value) for key, value in kwargs.items()}
            self.steps.append((func, None, carried))
            out = func(*args, **kwargs)
            if name not in fn.LINEAR and name not in fn.COMPLEX_VIEWS:
                self.unruled += [(name, tensor.grad_fn) for tensor in carrying((out,))]
        elif in_place or kwargs.get("inplace"):
            func = fn.out_of_place(name) if in_place else func
            self.plannable = False
            out = self._in_place(rule, choose, func, args, kwargs)
        else:
            if rule is None:
                assert choose is not None
                rule = choose(self, func, args, kwargs)
            self.steps.append((func, None if rule is as_it_is else rule, carried))
            out = rule(self, func, args, kwargs)
        self.elementwise.follow(name, operands, out)
        return out

    def _is_detached(self, tensor: Tensor) -> bool:
        # What a torch.autograd.Function made is given a gradient by its backward, and carries relevance again.
        return self.detached.get(tensor) is not None and not tensor.requires_grad

    def _opened(self, value: Any) -> Any:
        """Detached tensors as leaves of the graph, whose relevance is known after the backward pass."""
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._opened, value))
        if not isinstance(value, Tensor) or not self._is_detached(value):
            return value
        self.cut.append(value.clone().requires_grad_())  # a copy: tensors of inference mode cannot require a gradient
        return self.cut[-1]

    def _in_place(self, rule: Rule | None, choose: Rule | None, func: Function, args: Args, kwargs: Kwargs) -> Tensor:
        """The rule on a copy, whose result is then written where the model expects it."""
        before = args[0].clone()
        self.elementwise.follow("clone", [args[0]], before)
        args_of_copy, others = (before, *args[1:]), {k: v for k, v in kwargs.items() if k != "inplace"}
        if rule is None:
            assert choose is not None
            rule = choose(self, func, args_of_copy, others)
        out: Tensor = rule(self, func, args_of_copy, others)
        return args[0].copy_(out)
