"""Relevance by changed gradients: AttnLRP and CP-LRP as rules that touch only the backward pass.

The forward pass is the model's own, value by value. What changes is what autograd sees, so that input × gradient is
the layer-wise relevance of Achtibat et al. 2024 (ε → 0), in the form of Arras et al. 2025:

* an activation f passes f(x)/x in place of f'(x);
* what normalises (1/std, a norm, a denominator) is a constant;
* a product of two tensors that depend on the input gives half to each: so V gets 1/2, and Q and K, which meet in two
  products, 1/4. CP-LRP takes attention and gates as constants instead, and nothing is halved.

Everything else that is linear keeps its gradient. Functions that are neither are named in ``unruled``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from whyformer.capture.lrp.elementwise import Elementwise, carrying, out_of_place, plain_name
from whyformer.capture.lrp.gradient_rules import RULES, Rule
from whyformer.capture.lrp.linear_functions import LINEAR

Function = Callable[..., Any]


class GradientRules(TorchFunctionMode):
    """Run a model inside ``with rules:`` and differentiate: input × gradient is AttnLRP, or CP-LRP.

    ``attention_is_constant``: CP-LRP. Only tensors that require a gradient carry relevance, so the parameters must be
    frozen and the input must be a leaf.
    """

    def __init__(self, attention_is_constant: bool) -> None:
        super().__init__()
        self.attention_is_constant = attention_is_constant
        self.unruled: set[str] = set()
        self.elementwise = Elementwise()

    def __torch_function__(
        self, func: Function, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name, in_place = plain_name(func.__name__)
        operands = carrying((*args, *kwargs.values()))
        if not operands:
            return func(*args, **kwargs)
        rule = RULES.get(name)
        if rule is None:
            out = func(*args, **kwargs)
            if name not in LINEAR and carrying((out,)):
                self.unruled.add(name)
        elif in_place or kwargs.get("inplace"):
            out = self._in_place(rule, out_of_place(name) if in_place else func, args, kwargs)
        else:
            out = rule(self, func, args, kwargs)
        if isinstance(out, Tensor):
            self.elementwise.follow(name, operands, out)
        return out

    def _in_place(self, rule: Rule, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The rule on a copy, whose result is then written where the model expects it."""
        before = args[0].clone()
        self.elementwise.follow("clone", [args[0]], before)
        out: Tensor = rule(self, func, (before, *args[1:]), {k: v for k, v in kwargs.items() if k != "inplace"})
        return args[0].copy_(out)
