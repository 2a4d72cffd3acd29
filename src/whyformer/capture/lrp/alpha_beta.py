"""Relevance by alpha-beta rules (alpha = 1, beta = 0): what autograd calls a gradient here is a relevance.

Inside ``with rules:`` every function of the model gets a backward that shares out the relevance of its result among its
operands, by the rules of Chefer et al. (CVPR 2021). Autograd does the rest: relevances of a tensor that is used
several times add up, views and indices carry theirs back to where it belongs.

* linear layer, product with a constant: positive part only, z = W⁺x⁺ + W⁻x⁻, bias ignored;
* product of two tensors (attention with values, queries with keys, a gate): x·∂z/∂x·(R/z), half to each;
* sum of two tensors: in proportion, then rescaled side by side;
* softmax, normalisation, activation, multiplication by a constant: R passes as it is.

The rules divide by sums that come close to zero, which blows up rounding errors by orders of magnitude; so this pass
runs in double precision, whatever the precision of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.attend import attention_weights, repeat_heads
from whyformer.capture.intercept import Intercept
from whyformer.capture.lrp.alpha_beta_rules import RULES
from whyformer.capture.lrp.elementwise import Elementwise, carrying, out_of_place, plain_name
from whyformer.capture.lrp.linear_functions import LINEAR
from whyformer.capture.lrp.shares import Totals
from whyformer.capture.site import OpenSite
from whyformer.errors import AmbiguousLayout

Function = Callable[..., Any]
OPAQUE = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward", "mark_attention", "__get__"})


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
        self._handlers["scaled_dot_product_attention"] = "_written_out"

    def at_site(self, site: OpenSite) -> None:
        """Nothing to change: the base class keeps the site."""

    def _written_out(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Attention in one call, taken apart so that each of its steps meets its rule."""
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        call: dict[str, Any] = dict.fromkeys(names) | dict(zip(names, args, strict=False)) | kwargs
        query, key, value = call["query"], call["key"], call["value"]
        with self:
            if call["enable_gqa"]:
                key, value = repeat_heads(query, key), repeat_heads(query, value)
            weights = attention_weights(query, key, call["attn_mask"], bool(call["is_causal"]), call["scale"])
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

    # Precision

    def lifted(self, values: Any) -> list[Any]:
        """Floats in this pass's precision, lists and tuples opened."""
        found: list[Any] = []
        for value in values:
            if isinstance(value, Tensor) and value.is_floating_point():
                found.append(value.to(self.dtype))
            elif isinstance(value, (list, tuple)) and carrying((value,)):
                found.append(type(value)(self.lifted(value)))
            else:
                found.append(value)
        return found

    def lifted_named(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        named = dict(zip(kwargs, self.lifted(kwargs.values()), strict=True))
        dtype = named.get("dtype")
        return named | {"dtype": self.dtype} if isinstance(dtype, torch.dtype) and dtype.is_floating_point else named

    def plain(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result, without history."""
        with torch.no_grad():
            return func(*self.lifted(args), **self.lifted_named(kwargs))

    # Per input

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
