"""Input gradients of models with several streams, one input at a time: every stream's numbers are moved together.

The numbers of a stream are a float tensor of the input (pixels, vectors of regions), or what an embedding module of the
model returns; there they are put in by a hook on that module.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

Numbers = dict[str, Tensor]  # by stream, one input: (N, D) vectors, or (C, H, W) pixels


@dataclass
class Model:
    """score(**inputs) of one input; ``words``: stream -> its embedding module; ``floats``: stream -> its argument."""

    score: Callable[[dict[str, Tensor]], Tensor]
    inputs: dict[str, Tensor]
    words: dict[str, nn.Module]
    floats: dict[str, str]

    def numbers(self) -> Numbers:
        """What the streams are made of."""
        seen: Numbers = {}
        with ExitStack() as hooks:
            for stream, module in self.words.items():
                hooks.enter_context(module.register_forward_hook(lambda m, a, o, s=stream: _keep(seen, s, o)))
            with torch.no_grad():
                self.score(self.inputs)
        for stream, name in self.floats.items():
            seen[stream] = self.inputs[name][0].detach().clone()
        return seen

    def at(self, numbers: Numbers) -> Tensor:
        """The score with other numbers in every stream."""
        inputs = dict(self.inputs)
        with ExitStack() as hooks:
            for stream, module in self.words.items():
                hooks.enter_context(module.register_forward_hook(lambda m, a, o, s=stream: numbers[s][None].clone()))
            for stream, name in self.floats.items():
                inputs[name] = numbers[stream][None]
            return self.score(inputs)

    def gradients(self, numbers: Numbers) -> Numbers:
        leaves = {stream: n.clone().requires_grad_() for stream, n in numbers.items()}
        found = torch.autograd.grad(self.at(leaves), list(leaves.values()))
        return dict(zip(leaves, found, strict=True))


def integrated_gradients(model: Model, start: Numbers, steps: int) -> Numbers:
    """(x - x') Σ_k w_k ∂s/∂x(x' + t_k (x - x')), all streams at the same t."""
    numbers = model.numbers()
    total = {stream: torch.zeros_like(n) for stream, n in numbers.items()}
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    for node, weight in zip(nodes, weights, strict=True):
        t = (node + 1) / 2
        point = {stream: start[stream] + t * (n - start[stream]) for stream, n in numbers.items()}
        for stream, gradient in model.gradients(point).items():
            total[stream] += weight / 2 * gradient
    return {stream: (n - start[stream]) * total[stream] for stream, n in numbers.items()}


def over_vectors(values_ND: Tensor, reduce: Callable[[Tensor], Tensor]) -> list[float]:
    return [float(reduce(vector)) for vector in values_ND]


def over_squares(values_CHW: Tensor, side: int, reduce: Callable[[Tensor], Tensor]) -> list[float]:
    """One number per square of pixels, row by row."""
    found = []
    for top in range(0, values_CHW.shape[1], side):
        for left in range(0, values_CHW.shape[2], side):
            found.append(float(reduce(values_CHW[:, top : top + side, left : left + side])))
    return found


def _keep(seen: Numbers, stream: str, out: Tensor) -> None:
    seen.setdefault(stream, out[0].detach().clone())
