"""LRP as a changed gradient: the rules of AttnLRP and CP-LRP, one per torch function, and the mode applying them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whyformer.capture import functions as fn
from whyformer.capture.functions import Args, Function, Kwargs, in_model, plain_name, sdpa_operands, tensors_in
from whyformer.capture.leaves import Gaps, nodes_behind, unruled_text
from whyformer.capture.lrp import recurrent
from whyformer.capture.trail import Notes

# Which tensors are functions, element by element, of one and the same tensor, and which weigh others.
#
# Activations are often written out: ``0.5 * x * (1 + tanh(…x…))``, ``x * sigmoid(1.702 * x)``. Rules for products would
# take such a line apart. So every tensor that was computed element by element from a single tensor carries that
# tensor's mark: a product of two tensors with the same mark is a piece of an activation, a product of two others is a
# gate.
#
# Of two factors the gate is the one that an activation or a softmax made, and that was only moved, chosen from or
# normalised since: act(Wx) of a gated MLP, the weights a router gives its experts.

# Curved: f(x) is not proportional to x. Of these the rules know BENDS as activations.
BENDS = fn.ACTIVATIONS | fn.RARE_ACTIVATIONS
CURVED = BENDS | fn.CLAMPS | frozenset("exp expm1 log log1p abs reciprocal __rdiv__".split())
STRAIGHT = (fn.CASTS | fn.DROPOUTS | fn.RARE_DROPOUTS) | frozenset(
    "add sub rsub __rsub__ mul div neg negative positive contiguous clone".split()
)
# A clamp is curved and makes no gate: GPT-OSS clamps what is gated as well.
WEIGHING = (CURVED - fn.CLAMPS) | {"softmax"}
MOVES = (fn.LAYOUTS | fn.PIECES | fn.REPEATS | fn.LISTED) | frozenset(
    "topk sort gather take_along_dim index_select select narrow __getitem__ where masked_fill masked_select scatter "
    "scatter_add index_put roll flip broadcast_to".split()
)
LIKE = frozenset("type_as to view_as reshape_as expand_as".split())  # another tensor says what type or shape it gets


def carrying(values: Any) -> list[Tensor]:
    """Return the tensors that depend on the input, lists and tuples opened: those that require a gradient."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            if value.requires_grad:
                tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors.extend(carrying(value))
    return tensors


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a tensor was computed from, element by element."""

    origin: object  # a token of the tensor: that may be gone by now
    curved: bool = False  # f(x) is not proportional to x
    weighs: bool = False  # it weighs what it is multiplied with


class Elementwise:
    """The origin of every tensor that a rule has met."""

    def __init__(self) -> None:
        self._origins = Notes[Origin]()

    def of(self, tensor: Tensor) -> Origin:
        """Where it comes from: from itself, if nothing is known."""
        origin = self._origins.get(tensor)
        if origin is None:
            origin = Origin(object())
            self._origins.put(tensor, origin)
        return origin

    def follow(self, name: str, operands: Sequence[Tensor], out: Any) -> None:
        """``out`` is ``name`` of these operands, constants left out."""
        operands = operands[:1] if name in LIKE else operands
        if name in MOVES or name == "softmax":
            weighs = name in WEIGHING or all(self.of(t).weighs for t in operands)
            for moved in carrying((out,)) if weighs else ():
                self._origins.put(moved, Origin(object(), weighs=True))
        if not isinstance(out, Tensor) or not operands or (name not in CURVED and name not in STRAIGHT):
            return
        origins = [self.of(t) for t in operands]
        if any(o.origin is not origins[0].origin for o in origins):
            weighs = all(o.weighs for o in (origins[:1] if name == "div" else origins))
            self._origins.put(out, Origin(object(), weighs=weighs))  # out may be an operand, written in place
            return
        several = len(origins) > 1 and name in {"mul", "div"}
        curved = several or name in CURVED or any(o.curved for o in origins)
        weighs = several or name in WEIGHING or any(o.weighs for o in origins)
        self._origins.put(out, Origin(origins[0].origin, curved, weighs))


Rule = Callable[["GradientRules", Function, tuple[Any, ...], dict[str, Any]], Any]  # mode, function, its arguments
TINY = 1e-10
CONSTANT = fn.MEASURES | {"__rdiv__"}
CUTS = frozenset(("detach", "__get__"))  # a getter: x.data


class _Scaled(torch.autograd.Function):
    """What is shown, with the gradient of x times a factor (a number, or a tensor of its shape; None: as it is)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shown: Tensor, factor: Any) -> Tensor:
        ctx.factor = factor
        return shown.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] if ctx.factor is None else gradients[0] * ctx.factor, None, None


def scaled(x: Tensor, factor: float) -> Tensor:
    """``x`` with its gradient times ``factor``."""
    return x if factor == 1 else _Scaled.apply(x, x, factor)  # type: ignore[no-untyped-call, no-any-return]


def _plain(func: Function, args: Args, kwargs: Kwargs) -> Any:
    with torch.no_grad():
        return func(*args, **kwargs)


def activation(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """f(x)/x in place of f'(x): the identity rule, R_in = R_out."""
    if func.__name__ in {"pow", "__pow__", "float_power"}:
        exponent = args[1] if len(args) > 1 else kwargs["exponent"]
        if isinstance(exponent, (int, float)) and exponent < 0:
            return _plain(func, args, kwargs)
    x = carrying((*args, *kwargs.values()))[0]
    out = _plain(func, args, kwargs)
    wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    # NOTE[DIFF] the published stabiliser is +1e-10 whatever the sign; here it moves away from zero on both sides.
    ratio = torch.where(wide == 0, 0.0, out.to(wide.dtype) / (wide + TINY * wide.sign()))
    return _Scaled.apply(x, out, ratio.to(x.dtype))  # type: ignore[no-untyped-call]


def norm(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """(x - mean)/std with std a constant; the bias takes its share and loses it. rms_norm has neither mean nor bias."""
    centred = func.__name__ == "layer_norm"
    names = ("input", "normalized_shape", "weight", *(("bias", "eps") if centred else ("eps",)))
    call = dict(zip(names, args, strict=False)) | kwargs
    x, dims = call["input"], tuple(range(-len(tuple(call["normalized_shape"])), 0))
    x, eps, weight = x.to(torch.promote_types(x.dtype, torch.float32)), call.get("eps"), call.get("weight")
    if centred:
        spread = (x.detach().var(dims, correction=0, keepdim=True) + (1e-5 if eps is None else eps)).rsqrt()
        scaled_x = (x - x.mean(dims, keepdim=True)) * spread
    else:
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        scaled_x = x * (x.detach().square().mean(dims, keepdim=True) + eps).rsqrt()
    stand_in = scaled_x if weight is None else scaled_x * weight
    out = _plain(func, args, kwargs)
    return _Scaled.apply(stand_in.to(out.dtype), out, None)  # type: ignore[no-untyped-call]


def group_norm(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Any:
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


def product(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """R/n to each of the n factors that carry relevance; in CP-LRP, one that weighs the others is a constant."""
    # What is added to the product is no factor: the first operand of baddbmm, the bias of a linear layer.
    added = {"input"} if func.__name__.startswith(("addmm", "addbmm", "addmv", "baddbmm")) else {"bias"}
    first, last = (1, None) if "input" in added else (0, 2 if plain_name(func.__name__)[0] in fn.WEIGHTED else None)
    factors = carrying((*args[first:last], *(v for k, v in kwargs.items() if k not in added)))
    if len(factors) < 2:
        return func(*args, **kwargs)
    weights = [f for f in factors if rules.attention_is_constant and rules.elementwise.of(f).weighs]
    weights = [] if len(weights) == len(factors) else weights
    part = 1 / (len(factors) - len(weights))

    def share(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(share(v) for v in value)
        if any(value is w for w in weights):
            return value.detach()
        return scaled(value, part) if any(value is f for f in factors) else value

    return func(*(share(a) for a in args), **{k: share(v) for k, v in kwargs.items()})


def elementwise_product(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """A gate shares with what it gates (CP-LRP: is a constant); a written-out activation is one activation."""
    left, right = args[0], args[1] if len(args) > 1 else kwargs["other"]
    if len(carrying((left, right))) < 2:
        return func(*args, **kwargs)
    a, b = rules.elementwise.of(left), rules.elementwise.of(right)
    if a.origin is b.origin:  # f(x) = g(x)·h(x): with g by its own rule and h constant, the gradient is f(x)/x
        return func(left.detach(), right) if a.curved and not b.curved else func(left, right.detach())
    if rules.attention_is_constant and a.weighs != b.weighs:
        return func(left.detach(), right) if a.weighs else func(left, right.detach())
    return func(scaled(left, 0.5), scaled(right, 0.5))


def quotient(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """The denominator is a constant."""
    left, right = args[0], args[1] if len(args) > 1 else kwargs["other"]
    rounding = {k: v for k, v in kwargs.items() if k != "other"}
    return func(left, right.detach() if isinstance(right, Tensor) else right, **rounding)


def softmax(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Its gradient is its rule, a Taylor expansion: R_i = x_i (R_i - s_i ΣR). In CP-LRP maps are constants."""
    x = args[0] if args else kwargs["input"]
    # Class probabilities, with two axes, are no map over positions.
    constant_map = rules.attention_is_constant and x.ndim > 2
    return _plain(func, args, kwargs).detach() if constant_map else func(*args, **kwargs)


def attention(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """softmax(QKᵀ)V in one call: the rules of its two products, taken together, on torch's own kernel."""
    call = sdpa_operands(args, kwargs)
    query, key, value = call["query"], call["key"], call["value"]
    if rules.attention_is_constant:
        query, key = query.detach(), key.detach()
    pair = 1 / max(1, len(carrying((query, key))))
    outer = 0.5 if carrying((query, key)) and carrying((value,)) else 1.0
    query, key, value = scaled(query, pair * outer), scaled(key, pair * outer), scaled(value, outer)
    others = {k: v for k, v in kwargs.items() if k not in {"query", "key", "value"}}
    return func(query, key, value, *args[3:], **others)


def multi_head_attention(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """nn.MultiheadAttention hides its body from function modes: run the same body with the rules on."""
    with rules:
        return fn.open_body(F.multi_head_attention_forward)(*args, **kwargs)


def glu(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    call = {"dim": -1} | dict(zip(("input", "dim"), args, strict=False)) | kwargs
    with rules:
        value, gate = call["input"].chunk(2, call["dim"])
        return value * gate.sigmoid()


def normalize(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    defaults = {"p": 2.0, "dim": 1, "eps": 1e-12}
    call = defaults | dict(zip(("input", *defaults), args, strict=False)) | kwargs
    length = call["input"].detach().norm(call["p"], call["dim"], keepdim=True).clamp_min(call["eps"])
    return call["input"] / length


def solved(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """The system is a constant: its solution is linear in the right-hand side (the delta rule of linear attention)."""
    return func(args[0].detach(), *args[1:], **kwargs)


def sampled(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Where it samples is a constant: the rest is linear (deformable attention)."""
    call = dict(zip(("input", "grid"), args[:2], strict=False)) | kwargs
    return func(call.pop("input"), call.pop("grid").detach(), *args[2:], **call)


def scan_factor(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Decays and step sizes of a layer with a state are constants."""
    return _plain(func, args, kwargs)


def scan_pieces(rules: GradientRules, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """So are B and C, or queries and keys."""
    layer = recurrent.scanning_layer()
    constants = () if layer is None else recurrent.constant_pieces(layer, args, kwargs)
    out = func(*args, **kwargs)
    return recurrent.without(out, constants) if constants else out


IN_A_SCAN: dict[str, Rule] = {
    **dict.fromkeys(recurrent.FACTORS, scan_factor),
    **dict.fromkeys(recurrent.PIECES, scan_pieces),
}

RULES: dict[str, Rule] = {
    **dict.fromkeys(BENDS, activation),
    **dict.fromkeys(CONSTANT, lambda rules, *call: _plain(*call)),  # what only normalises carries no relevance
    **dict.fromkeys(fn.PRODUCTS | fn.RARE_PRODUCTS | fn.WEIGHTED, product),
    "mul": elementwise_product,
    "div": quotient,
    **dict.fromkeys(fn.NORMS, norm),
    **dict.fromkeys(("group_norm", "instance_norm"), group_norm),
    "normalize": normalize,
    "softmax": softmax,
    "mark_attention": softmax,
    "scaled_dot_product_attention": attention,
    "multi_head_attention_forward": multi_head_attention,
    "glu": glu,
    **dict.fromkeys(("linalg_solve_triangular", "linalg_solve"), solved),
    **dict.fromkeys(("grid_sample", "grid_sampler"), sampled),
}


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

    def __exit__(self, *exc: Any) -> None:
        self.gaps.close()
        super().__exit__(*exc)

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        with self.gaps:
            return self._ruled(func, args, kwargs or {}) if in_model() else func(*args, **(kwargs or {}))

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
        if not operands or not torch.is_grad_enabled() or name in CUTS:
            out = func(*args, **kwargs)
            if (operands or detached) and not name.startswith("new_") and not name.endswith("_like"):
                for tensor in tensors_in((out,)):
                    if tensor.is_floating_point() and not tensor.requires_grad:
                        self.detached.put(tensor, True)
            return out
        rule = RULES.get(name)
        if name in IN_A_SCAN and recurrent.scanning_layer() is not None:
            rule = IN_A_SCAN[name]
        if rule is None:
            if detached:
                written = int(in_place or name == "__setitem__")  # stays the tensor that it is
                args = (*args[:written], *self._opened(args[written:]))
                kwargs = {key: self._opened(value) for key, value in kwargs.items()}
            out = func(*args, **kwargs)
            if name not in fn.LINEAR and name not in fn.COMPLEX_VIEWS:
                self.unruled += [(name, tensor.grad_fn) for tensor in carrying((out,))]
        elif in_place or kwargs.get("inplace"):
            out = self._in_place(rule, fn.out_of_place(name) if in_place else func, args, kwargs)
        else:
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

    def _in_place(self, rule: Rule, func: Function, args: Args, kwargs: Kwargs) -> Tensor:
        """The rule on a copy, whose result is then written where the model expects it."""
        before = args[0].clone()
        self.elementwise.follow("clone", [args[0]], before)
        out: Tensor = rule(self, func, (before, *args[1:]), {k: v for k, v in kwargs.items() if k != "inplace"})
        return args[0].copy_(out)
