"""Where the gradient of a score is taken: at the input's own numbers, or at the vectors that enter the first block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import BaseTorchFunctionMode

from whyformer.capture.inputs.embedding import SwapEmbedding
from whyformer.capture.inputs.entrance import Enter, Entrance
from whyformer.capture.inputs.leaves import LookupLeaves, as_leaf
from whyformer.capture.inputs.saved import SavedBytes
from whyformer.errors import BadInput, NotOffered, one_of
from whyformer.outputs import scalar_of
from whyformer.patch_grid import smoothed
from whyformer.run import Run
from whyformer.subjects.base import Batch
from whyformer.subjects.image import ImageSubject, patch_masks
from whyformer.subjects.table import TableSubject
from whyformer.subjects.text import TextSubject

PLACES = (None, "input", "word_embeddings", "embeddings", "tokens")
SAME = {"word_embeddings": "input", "tokens": "embeddings"}  # other names of the same places
NORMS = ("l2", "l1", "sum", "max")


@dataclass
class Place:
    """One place of a batch: its numbers there, their gradient, and what the model makes of other numbers."""

    run: Run
    inputs: Tensor  # (B, …)
    entrance: Entrance | None  # None: the input itself
    point_bytes: int  # what the graph of one point keeps for its backward pass
    gradient: Tensor | None = None  # (B, …) of the explained values at ``inputs``

    # Passes

    def logits(self, batch: Batch, points: Tensor) -> Tensor:
        """(B, C) with other numbers at this place."""
        if self.entrance is None:
            return self.run.logits_at(batch, points)
        logits, _ = self._entered(batch, points)
        return logits

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

    def seen(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The numbers at this place and the explained values when the model reads ``batch`` instead."""
        numbers: list[Tensor] = []
        if self.entrance is not None:
            logits, vectors = self._entered(batch, None)
            numbers.append(vectors)
        elif isinstance(self.run.subject, TextSubject):
            with torch.no_grad(), self._swapped(batch, partial(_kept, numbers)):
                logits = self.run.head.logits(batch)
        else:
            numbers.append(batch.tensors[self.run.subject.main])
            with torch.no_grad():
                logits = self.run.head.logits(batch)
        self.run.forwards_B += 1
        return numbers[0].detach(), self._values(logits)

    def values(self, points: Tensor) -> Tensor:
        """(B,) explained values with other numbers at this place."""
        with torch.no_grad():
            logits = self.logits(self.run.batch, points)
        self.run.forwards_B += 1
        return self._values(logits)

    def _values(self, logits: Tensor) -> Tensor:
        return scalar_of(logits.detach().float(), self.run.targets, self.run.scalar)

    def _entered(self, batch: Batch, points: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits, and the vectors that would have entered, with ``points`` in their place."""
        assert self.entrance is not None
        enter = Enter(self.entrance, batch.size, self.inputs.shape[1], points)
        graph = torch.enable_grad()  # descendants of the input are known by their requiring a gradient
        if isinstance(self.run.subject, TextSubject):
            with graph, self._swapped(batch, as_leaf), enter:
                logits = self.run.head.logits(batch)
        else:
            floats = {k: as_leaf(v) for k, v in batch.tensors.items() if v.is_floating_point()}
            with graph, LookupLeaves(as_leaf), enter:
                logits = self.run.head.logits(batch.with_tensors(**floats))
        if enter.seen is None:
            raise NotOffered("the vectors that enter the first block were not met again. Use at='input'.")
        return logits, enter.seen

    def _swapped(self, batch: Batch, replace: Callable[[Tensor], Tensor]) -> SwapEmbedding:
        assert isinstance(self.run.subject, TextSubject)
        return SwapEmbedding(batch.tensors[self.run.subject.main], self.run.subject.table(), replace)

    def in_batches(self, points: Sequence[Any], label: str, memory_mb: float) -> Iterator[Sequence[Any]]:
        """Points in batches whose graphs stay within the budget."""
        if memory_mb <= 0:
            raise BadInput(f"memory_mb={memory_mb!r}: megabytes for the graphs of a batch, more than 0.")
        size = max(1, min(self.run.batch_size, int(memory_mb * 2**20 / self.point_bytes)))
        yield from self.run.track([points[i : i + size] for i in range(0, len(points), size)], label)

    # Units

    def per_unit(self, detail: Tensor, largest: bool = False) -> Tensor:
        """(B, N) the sum (or the largest entry) of a (B, …) tensor over each unit."""
        if self.entrance is not None:
            scores = detail.amax(2) if largest else detail.sum(2)
        elif not largest:
            scores = self.run.per_unit(detail)
        elif isinstance(self.run.subject, ImageSubject):
            inside = [patch_masks(units, detail[:1]) for units in self.run.units]
            flat = detail.amax(1)
            scores = torch.stack([torch.where(m, p, 0.0).amax((1, 2)) for m, p in zip(inside, flat, strict=True)])
        else:
            scores = self.run.per_unit(detail.flatten(2).amax(2, keepdim=True) if detail.ndim > 2 else detail)
        return scores * self.run.keep_BN

    def smoothed(self, detail: Tensor, patch_smoothing: float) -> Tensor:
        """A map of pixels without the patch grid: a Gaussian of that many patches; 0 leaves it as it is."""
        self.check_smoothing(patch_smoothing)
        grid = self.run.units[0].grid
        if not patch_smoothing or grid is None:
            return detail
        height, width = detail.shape[-2:]
        return smoothed(detail, (patch_smoothing * height / grid[0], patch_smoothing * width / grid[1]))

    def check_smoothing(self, patch_smoothing: float) -> None:
        """Asked before long work."""
        if patch_smoothing < 0:
            raise BadInput(f"patch_smoothing={patch_smoothing!r}: a width in patches, at least 0.")
        if patch_smoothing and (self.entrance is not None or not isinstance(self.run.subject, ImageSubject)):
            raise NotOffered("patch_smoothing is for gradients at the pixels of an image: leave it at 0 here.")

    def norm(self, gradient: Tensor, norm: str) -> Tensor:
        """(B, N) one number per unit from a gradient: "l2", "l1", "max" (of absolute values) or "sum" (signed)."""
        one_of("norm", norm, NORMS)
        if norm == "l2":
            return self.per_unit(gradient**2).sqrt()
        if norm == "sum":
            return self.per_unit(gradient)
        return self.per_unit(gradient.abs(), largest=norm == "max")


def place_of(run: Run, at: str | None, gradient: bool = False) -> Place:
    """The place ``at`` names, by one forward pass; ``gradient``: and one backward pass.

    "input": the word embeddings of a text, the pixels of an image, the floats of a table. "embeddings": the vectors
    that enter the first block, positions and types included. None: the input where that is one tensor, else
    embeddings (tables with categories, audio, text among other tokens).
    """
    one_of("at", at, PLACES)
    if run.several:
        run.require_one_input()
    with SavedBytes(run.subject.model) as saved:
        trace = run.traced(BaseTorchFunctionMode())
    chosen = SAME.get(at, at) if at else "embeddings" if _has_several_inputs(run, trace.leaves) else "input"
    text = isinstance(run.subject, TextSubject)
    if chosen == "input" and not text and len(trace.leaves) > 1:
        raise NotOffered(
            "at='input' needs one tensor of floats or one of token ids; this input has categorical columns. Use "
            "at='embeddings'."
        )
    given = 0 if text else sum(t.ndim == 3 and t.is_floating_point() for t in run.batch.tensors.values())
    entrance = Entrance.of(trace, given) if chosen == "embeddings" else None
    inputs = trace.leaves[0] if entrance is None else trace.tokens()
    found = run.differentiated(trace, [inputs])[0] if gradient else None
    if entrance is not None:
        inputs, found = trace.batch_first(inputs), None if found is None else trace.batch_first(found)
    point_bytes = max(1, saved.total // run.batch.size)
    return Place(run, inputs.detach(), entrance, point_bytes, None if found is None else _lifted(found))


def _has_several_inputs(run: Run, leaves: list[Tensor]) -> bool:
    """The input is no single tensor, or its entries are not the units (raw audio)."""
    if isinstance(run.subject, TextSubject):
        return run.study.extra > 0
    if isinstance(run.subject, ImageSubject):
        return False
    if isinstance(run.subject, TableSubject) and run.subject.table.categorical:
        return True
    return len(leaves) > 1 or leaves[0].ndim < 2 or leaves[0].shape[1] > run.length


def _lifted(tensor: Tensor) -> Tensor:
    """Half precision is lifted to float32."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _kept(numbers: list[Tensor], embedding: Tensor) -> Tensor:
    numbers.append(embedding)
    return embedding
