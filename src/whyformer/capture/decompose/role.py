"""Run an unmodified model with every hidden state split over the positions of the embedding, its sources."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whyformer.capture.decompose.rules import RULES
from whyformer.capture.decompose.shares import FunctionCall, Shares, diagonal, settled
from whyformer.capture.functions import WRITES, Args, Function, Kwargs, name_of, open_body
from whyformer.capture.intercept import current_path
from whyformer.capture.trail import Notes
from whyformer.errors import NotOffered


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
