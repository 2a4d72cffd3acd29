"""The rules of a decomposition, by torch function: linear maps, products, and functions that bend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whyformer.capture import functions as fn
from whyformer.capture.decompose.shares import (
    MIXED,
    STRANGER,
    UNMIXED,
    FunctionCall,
    Outcome,
    Rule,
    Shares,
    diagonal,
    expanded,
    per_source,
    settled,
)
from whyformer.capture.functions import (
    WRITES,
    Args,
    Function,
    Kwargs,
    attention_weights,
    name_of,
    open_body,
    repeat_heads,
)
from whyformer.capture.intercept import current_path
from whyformer.capture.trail import Notes
from whyformer.errors import NotOffered

RMS_NORM = ("input", "normalized_shape", "weight", "eps")
DATA: dict[str, Iterable[int]] = {"masked_fill": (0, 2), "where": (1, 2)}  # operands by number

# What is linear: every share goes through it alike.


def linear_in_all(call: FunctionCall) -> Outcome:
    """A function that is linear in all its data (views, slices, sums, joins); operands without shares are constants."""
    if why := next((s.lost for s in call.shares.values() if s.lost), ""):
        return call.all_lost(why)
    # Operands that it is linear in, if there are several; of the others only tensors with shares are data.
    tensors = [i for i, leaf in enumerate(call.leaves) if isinstance(leaf, Tensor)]
    data = tensors if call.name in fn.LISTED else DATA.get(call.name, call.shares)
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
        carried = {i: call.shares[i].offset for i in tracked if call.shares[i].offset is not None}
        offsets = call.again(zero | carried)
        offsets = offsets if isinstance(offsets, (tuple, list)) else (offsets,)

    def nth(number: int) -> Shares:
        def compute(first: int, end: int) -> Tensor:
            def one(*parts: Tensor) -> Tensor:
                result = call.again(nothing | dict(zip(tracked, parts, strict=True)))
                return result[number] if isinstance(result, (tuple, list)) else result

            return per_source(one, [call.shares[i].part(first, end) for i in tracked])

        offset = offsets[number] if has_offset else None
        return call.settle_unmixed(
            Shares(call.sources, tuple(results[number].shape), compute, offset, stage=call.stage, gate=gate)
        )

    each = [nth(n) if isinstance(r, Tensor) and r.is_floating_point() else None for n, r in enumerate(results)]
    only = each[0]
    return each if isinstance(call.out, (tuple, list)) or only is None else only


def _zero(leaf: Any) -> Any:
    return torch.zeros_like(leaf) if isinstance(leaf, Tensor) else type(leaf)(0)


def same(call: FunctionCall) -> Shares:
    """Casts, copies, dropout of a model that is not in training."""
    return next(iter(call.shares.values()))


def add(call: FunctionCall) -> Shares:
    """a ± b: shares add up, a constant is a bias."""
    left, right, alpha = call.arguments("input", "other", "alpha")
    if call.name in fn.REVERSED_SUBS:
        left, right = right, left
    minus = call.name in fn.SUBS | fn.REVERSED_SUBS
    factor = (1 if alpha is None else alpha) * (-1 if minus else 1)
    a, b = (call.of_operand(side) for side in (left, right))
    shape = call.shape
    if lost_at := next((s.lost for s in (a, b) if s is not None and s.lost), ""):
        return call.lost(lost_at)
    # Where two streams meet, biases are shared out: those of an MLP over its own shares, before it joins the residual,
    # those that came with an attention (b_V·W_O + b_O) over the sum, as the authors do.
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
    gate = all(side.gate for side in (a, b) if side is not None)
    summed = Shares(call.sources, shape, compute, offset, stage=call.stage, gate=gate)
    if a is None or b is None:
        return call.lost(STRANGER) if call.is_stranger(left if a is None else right) else call.settle_unmixed(summed)
    summed = call.settle(summed)
    summed.stage = UNMIXED if a.stage == b.stage == UNMIXED else ""
    summed.keep = summed.size <= call.holdable  # a residual stream is read by each part of the next layer
    return summed


def multiply(call: FunctionCall) -> Shares:
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

    def compute(first: int, end: int) -> Tensor:
        return x.part(first, end) + y.part(first, end)

    return Shares(call.sources, x.shape, compute, offset, stage=call.stage, gate=a.gate and b.gate)


def divide(call: FunctionCall) -> Shares:
    """a / b, with the divisor as a constant."""
    left, right, _ = call.arguments("input", "other", "rounding_mode")
    if call.name in {"__rtruediv__", "__rdiv__"}:
        left, right = right, left
    a = call.of_operand(left)
    if a is None:  # a constant over a hidden state: nothing but another gate
        return call.lost("a division by a hidden state")
    return _scaled(call, a, 1 / right, gate=a.gate)


def _scaled(call: FunctionCall, shares: Shares, factor: Any, gate: bool = False) -> Shares:
    shape = call.shape
    factor = factor.to(call.dtype) if isinstance(factor, Tensor) else factor
    offset = None if shares.offset is None else (shares.offset * factor).expand(shape)
    return call.mapped(shares, lambda part: expanded(part, shape) * factor, offset, shares.stage, gate)


# Matrix products: projections, and attention with its weights as constants.


def linear(call: FunctionCall) -> Shares:
    x, weight, bias = call.arguments("input", "weight", "bias")
    shares = call.of_operand(x)
    if shares is None or call.of_operand(weight) is not None:
        return call.lost()
    return _projected(call, shares, lambda v: F.linear(v, weight.to(v.dtype)), bias)


def addmm(call: FunctionCall) -> Shares:
    bias, x, weight = call.arguments("input", "mat1", "mat2")
    shares = call.of_operand(x)
    if shares is None or len(call.shares) > 1 or any(isinstance(leaf, (int, float)) for leaf in call.leaves):
        return call.lost()
    return _projected(call, shares, lambda v: v @ weight.to(v.dtype), bias)


def _projected(call: FunctionCall, shares: Shares, project: Callable[[Tensor], Tensor], bias: Tensor | None) -> Shares:
    offset = None if shares.offset is None else project(shares.offset)
    if bias is not None:
        offset = (bias.to(call.dtype) + (0 if offset is None else offset)).expand(call.out.shape)
    return call.settle_unmixed(call.mapped(shares, project, offset, shares.stage))


def matrix_product(call: FunctionCall) -> Shares:
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
    offset = None if b.offset is None else left.to(b.offset.dtype) @ b.offset
    return call.hold(call.mapped(b, lambda values: mixed(left, values), offset, MIXED))


def mixed(weights: Tensor, values: Tensor) -> Tensor:
    """weights (…, Q, K) times values (sources, …, K, D), with the sources folded into the width: one product."""
    sources, width = values.shape[0], values.shape[-1]
    folded = values.movedim(0, -2).flatten(-2)
    out = weights.to(values.dtype) @ folded
    return out.unflatten(-1, (sources, width)).movedim(-2, 0)


def sdpa(call: FunctionCall) -> Shares:
    query, key, value, mask, _, causal, scale, gqa = call.arguments(*fn.SDPA)
    shares = call.of_operand(value)
    if shares is None or shares.lost:
        return call.lost(shares.lost if shares is not None else "an attention whose values are no hidden states")
    weights = attention_weights(query, repeat_heads(query, key) if gqa else key, mask, bool(causal), scale)

    def mix(v: Tensor) -> Tensor:
        return mixed(weights, repeat_heads(query, v) if gqa else v)

    return call.hold(call.mapped(shares, mix, None if shares.offset is None else mix(shares.offset[None])[0], MIXED))


def linear_in_one(call: FunctionCall) -> Outcome:
    """A function that is linear in each operand (einsum): what only weighs counts as a constant."""
    split = {i: s for i, s in call.shares.items() if not s.lost and not s.gate}
    weighed = len(call.shares) > len(split)
    if len(split) != 1:
        return call.lost("a product of two hidden states")
    call.shares = split
    outcome = linear_in_all(call)
    if weighed and isinstance(outcome, Shares):
        outcome.stage = MIXED
        return call.hold(outcome)
    return outcome


# What is not linear, made so with the values the model really has.


def activation(call: FunctionCall) -> Shares:
    """f(z) = (f(z)/z)·z: every share is multiplied by the slope from the origin (zero-origin rule)."""
    ((leaf, shares),) = list(call.shares.items())[:1]
    value, out = call.leaves[leaf].to(call.dtype), call.out.to(call.dtype)
    slope = torch.where(value == 0, 0.0, out / torch.where(value == 0, 1.0, value))
    if shares.lost or len(call.shares) > 1:
        return Shares(call.sources, call.shape, None, gate=True, lost=shares.lost or f"{call.name}()")
    whole = call.settle(shares)
    return call.mapped(whole, lambda part: part * slope, None, whole.stage, gate=True)


def norm(call: FunctionCall) -> Shares:
    """γ·(x_s - mean x_s)/σ with the deviation σ of the whole x; β is a bias. rms_norm has neither mean nor bias."""
    centred = call.name == "layer_norm"
    names = ("input", "normalized_shape", "weight", "bias", "eps") if centred else RMS_NORM
    x, shape, weight, *biases, eps = call.arguments(*names)
    shares, dims = call.of_operand(x), tuple(range(-len(shape), 0))
    if shares is None or shares.lost:
        return call.lost(shares.lost if shares is not None else "")
    if eps is None:
        eps = 1e-5 if centred else torch.finfo(x.dtype).eps
    value = x.to(call.dtype)
    spread = value.var(dims, unbiased=False, keepdim=True) if centred else value.square().mean(dims, keepdim=True)
    factor = (spread + eps).rsqrt()
    factor = factor if weight is None else factor * weight.to(factor.dtype)

    def normed(part: Tensor) -> Tensor:
        return (part - part.mean(dims, keepdim=True) if centred else part) * factor

    offset = None if shares.offset is None else normed(shares.offset)
    for bias in biases:
        if bias is not None:
            offset = (bias.to(factor.dtype) + (0 if offset is None else offset)).expand(call.shape)
    return call.settle(call.mapped(shares, normed, offset, UNMIXED if shares.stage == UNMIXED else ""))


def weighs(call: FunctionCall) -> Outcome:
    """What only weighs or selects (attention, a deviation, a maximum): may multiply or divide, never be added."""
    return call.all_lost(f"the result of {call.name}(), used as if it were a hidden state")


def _names(rule: Rule, *names: Iterable[str]) -> dict[str, Rule]:
    return {name: rule for group in names for name in (group.split() if isinstance(group, str) else group)}


RULES: dict[str, Rule] = {
    **_names(
        linear_in_all,
        fn.LAYOUTS | fn.PIECES | fn.REPEATS | fn.LISTED,
        "__getitem__ narrow select index_select gather roll flip sum mean cumsum masked_fill where take_along_dim",
        "diagonal tril triu",
    ),
    **_names(same, fn.SAME | fn.DROPOUTS | fn.RARE_DROPOUTS, "cpu cuda positive"),
    **_names(add, fn.ADDS | fn.SUBS | fn.REVERSED_SUBS),
    **_names(lambda call: _scaled(call, same(call), -1), "neg negative __neg__"),
    **_names(multiply, fn.MULS),
    **_names(divide, fn.DIVS, "__div__ __rtruediv__ __rdiv__"),
    **_names(linear, "linear"),
    **_names(addmm, "addmm"),
    **_names(matrix_product, fn.MATMULS),
    **_names(linear_in_one, "einsum"),
    **_names(sdpa, "scaled_dot_product_attention"),
    **_names(norm, fn.NORMS),
    **_names(
        activation,
        fn.ACTIVATIONS,
        "relu_ silu_ sigmoid_ tanh_ elu_ selu_ leaky_relu_ threshold clamp clamp_ clip __pow__ sqrt rsqrt exp log abs",
        "reciprocal sin cos nan_to_num nan_to_num_ normalize",
    ),
    **_names(
        weighs,
        "softmax special_softmax log_softmax var std var_mean norm vector_norm amax amin max min topk logsumexp sign",
    ),
    **_names(
        lambda call: None,  # new tensors that only have the shape or dtype of a hidden state
        "zeros_like ones_like empty_like full_like rand_like randn_like new_zeros new_ones new_empty new_full",
    ),
}


@dataclass(frozen=True)
class Stack:
    """Where the layers of a model are: the module around all of them, and each of them, as module paths."""

    around: str
    layers: tuple[str, ...]

    @classmethod
    def of(cls, model: nn.Module, site_paths: Sequence[str]) -> Stack:
        """Find layers by the paths of attention; ``around`` is the largest part of the model without an embedding."""
        parts = [path.split(".") for path in site_paths]
        shared = 0
        while all(len(p) > shared and p[shared] == parts[0][shared] for p in parts):
            shared += 1
        layers = tuple(dict.fromkeys(".".join(p[: shared + 1]) for p in parts))
        modules = dict(model.named_modules())
        embeddings = (nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)
        for depth in range(1, min(shared + 1, len(parts[0])) + 1):
            path = ".".join(parts[0][:depth])
            if not any(isinstance(m, embeddings) for m in modules[path].modules()):
                return cls(path, layers)
        return cls(layers[0], layers)


class Decompose(TorchFunctionMode):
    """Follow one input of ``positions`` hidden states through the model.

    bias: how biases are shared (shares.py), None to leave them out. ``entered(layer, shares)`` is called
    with the hidden state that enters each layer but the first.
    """

    def __init__(
        self,
        names: dict[int, str],
        stack: Stack,
        positions: int,
        bias: str | None = "absdot",
        entered: Callable[[int, Shares], None] | None = None,
    ) -> None:
        super().__init__()
        self.names, self.stack, self.positions, self.bias = names, stack, positions, bias
        self._entered = entered
        self._shares = Notes[Shares]()
        self._next_layer = 1
        self.axis = 1  # which axis of the hidden state counts the positions
        self.stream: Shares | None = None  # the last hidden state, in the shape of the embedding
        self._stream_shape: tuple[int, ...] = ()

    def settled(self, tensor: Tensor) -> Shares:
        """Shares of a result, with all biases shared out."""
        shares = self._shares.get(tensor)
        if shares is None:
            raise NotOffered(
                "decompx lost its way: the logits of this model are not connected to its first layer by functions that "
                "can be split."
                if self._stream_shape
                else "decompx did not find the hidden state that enters the first layer."
            )
        return settled(shares, self.bias, 0)

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs, name = kwargs or {}, name_of(func)
        if name is None:
            return func(*args, **kwargs)
        if name == "multi_head_attention_forward":  # hides its body from function modes: run the same body with us on
            with self:
                return open_body(F.multi_head_attention_forward)(*args, **kwargs)
        if not self._stream_shape:
            self._start(args, kwargs)
        elif self._entered is not None and self._next_layer < len(self.stack.layers):
            # The first hidden state that is used inside the next layer.
            states = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.shape == self._stream_shape]
            shares = next((s for state in states if (s := self._shares.get(state)) is not None), None)
            if shares is not None and self._inside(self.stack.layers[self._next_layer]):
                self._entered(self._next_layer, shares)
                self._next_layer += 1
        if not self._shares:
            return func(*args, **kwargs)
        call = FunctionCall.of(name, func, args, kwargs, self._shares.get)
        if not call.shares:
            return func(*args, **kwargs)
        if name in WRITES:  # a hidden state that is written into piece by piece is not followed
            out, call.out = func(*args, **kwargs), args[0]
            self._put(args[0], call.lost(f"a write into a hidden state (torch's {name}())"))
            return out
        return self._followed(call, args, kwargs)

    def _followed(self, call: FunctionCall, args: Args, kwargs: Kwargs) -> Any:
        in_place = call.name.endswith("_") and not call.name.startswith("__")
        if in_place or call.name.startswith("__i") or kwargs.get("inplace"):
            # The rule needs the operands as they were before they are overwritten.
            call.leaves = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in call.leaves]
        call.bias, call.holdable = self.bias, self.positions * math.prod(self._stream_shape)
        out = call.out = call.func(*args, **kwargs)
        results = out if isinstance(out, (tuple, list)) else (out,)
        if not any(isinstance(o, Tensor) and o.is_floating_point() for o in results):
            return out
        if call.name in {"view", "view_as"}:  # shares may lie differently in memory
            call.func = Tensor.reshape if call.name == "view" else Tensor.reshape_as
        rule = RULES.get(call.name)
        outcome = call.all_lost("") if rule is None else rule(call)
        each = outcome if isinstance(outcome, Sequence) else [outcome] * len(results)
        for tensor, shares in zip(results, each, strict=True):
            self._put(tensor, shares)
        return out

    def _put(self, tensor: Any, shares: Any) -> None:
        if not isinstance(tensor, Tensor):
            return
        if shares is None:
            self._shares.drop(tensor)
            return
        self._shares.put(tensor, shares)
        if tuple(tensor.shape) == self._stream_shape and not shares.lost:
            self.stream = shares

    def _start(self, args: Args, kwargs: Kwargs) -> None:
        """The first hidden state that is used inside the stack of layers is the embedding."""
        if not self._inside(self.stack.around):
            return
        for operand in [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]:
            floats = operand.is_floating_point() and not isinstance(operand, nn.Parameter)
            if floats and operand.ndim == 3 and sorted(operand.shape[:2]) == sorted((1, self.positions)):
                self.axis = 1 if operand.shape[1] == self.positions else 0
                self._stream_shape = tuple(operand.shape)
                self._put(operand, diagonal(operand, self.axis))
                return

    def _inside(self, path: str) -> bool:
        running = current_path(self.names)
        return running == path or running.startswith(path + ".")
