"""What every place can do: take gradients there, put other numbers in, and turn numbers into scores of units."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import BadInput, one_of
from whyformer.outputs import scalar_of
from whyformer.run import Run
from whyformer.subjects.base import Batch

NORMS = ("l2", "l1", "sum", "max")


class Place(ABC):
    """One place of a batch: its numbers there, their gradient, and what the model makes of other numbers.

    inputs: (B, …) the numbers. point_bytes: what the graph of one point keeps for its backward pass. gradient: (B, …)
    of the explained values at ``inputs``, where it was asked for.
    """

    def __init__(self, run: Run, inputs: Tensor, point_bytes: int, gradient: Tensor | None = None) -> None:
        self.run, self.inputs, self.point_bytes, self.gradient = run, inputs, point_bytes, gradient

    @abstractmethod
    def logits(self, batch: Batch, points: Tensor) -> Tensor:
        """(B, C) with other numbers at this place."""

    @abstractmethod
    def per_unit(self, detail: Tensor, largest: bool = False) -> Tensor:
        """(B, N) the sum (or the largest entry) of a (B, …) tensor over each unit."""

    @abstractmethod
    def kept(self, row: int) -> Tensor:
        """True at the real numbers of one input, in the shape of its first axes."""

    @abstractmethod
    def spread(self, row: int) -> Tensor:
        """How far the kept numbers of one input lie apart: the range of pixels or of a row of floats, the standard
        deviation of vectors."""

    @abstractmethod
    def smoothed(self, detail: Tensor, patch_smoothing: float) -> Tensor:
        """A map of pixels without the patch grid: a Gaussian of that many patches; 0 leaves it as it is."""

    @abstractmethod
    def check_smoothing(self, patch_smoothing: float) -> None:
        """Asked before long work."""

    @abstractmethod
    def detail(self, numbers: Tensor) -> list[np.ndarray[Any, Any]] | None:
        """Per input, what a result keeps beside its scores."""

    # Passes

    def gradient_at(self, points: Tensor, rows: Sequence[int]) -> Tensor:
        """Gradient of the explained value at ``points``, one per entry of ``rows``, the inputs they stand for."""
        if self.run.batch.company:
            return torch.cat([self._beside_others(p, row) for p, row in zip(points, rows, strict=True)])
        run, leaf = self.run, points.detach().requires_grad_()
        batch = run.batch.select(list(rows))
        with torch.enable_grad():
            values = scalar_of(self.logits(batch, leaf), [run.targets[r] for r in rows], run.scalar)
            (gradient,) = torch.autograd.grad(values.sum(), leaf, allow_unused=True)
        np.add.at(run.forwards_B, list(rows), 1)
        np.add.at(run.backwards_B, list(rows), 1)
        return torch.zeros_like(leaf) if gradient is None else gradient.detach()

    def _beside_others(self, point: Tensor, row: int) -> Tensor:
        """(1, …) the gradient at one point, while the other rows of the batch stay what they are."""
        run, leaf = self.run, point.detach()[None].requires_grad_()
        with torch.enable_grad():
            points = torch.cat([self.inputs[:row], leaf, self.inputs[row + 1 :]])
            values = scalar_of(self.logits(run.batch, points), run.targets, run.scalar)
            (gradient,) = torch.autograd.grad(values[row], leaf, allow_unused=True)
        run.forwards_B[row] += 1
        run.backwards_B[row] += 1
        return torch.zeros_like(leaf) if gradient is None else gradient.detach()

    def values(self, points: Tensor) -> Tensor:
        """(B,) explained values with other numbers at this place."""
        with torch.no_grad():
            logits = self.logits(self.run.batch, points)
        self.run.forwards_B += 1
        return self.values_of(logits)

    def values_of(self, logits: Tensor) -> Tensor:
        return scalar_of(logits.detach().float(), self.run.targets, self.run.scalar)

    def in_batches(self, points: Sequence[Any], label: str, memory_mb: float) -> Iterator[Sequence[Any]]:
        """Points in batches whose graphs stay within the budget."""
        if memory_mb <= 0:
            raise BadInput(f"memory_mb={memory_mb!r}: megabytes for the graphs of a batch, more than 0.")
        size = max(1, min(self.run.batch_size, int(memory_mb * 2**20 / self.point_bytes)))
        yield from self.run.track([points[i : i + size] for i in range(0, len(points), size)], label)

    # Units

    def norm(self, gradient: Tensor, norm: str) -> Tensor:
        """(B, N) one number per unit from a gradient: "l2", "l1", "max" (of absolute values) or "sum" (signed)."""
        one_of("norm", norm, NORMS)
        if norm == "l2":
            return self.per_unit(gradient**2).sqrt()
        if norm == "sum":
            return self.per_unit(gradient)
        return self.per_unit(gradient.abs(), largest=norm == "max")


def lifted(tensor: Tensor) -> Tensor:
    """Half precision is lifted to float32."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
