"""One tensor of numbers: word embeddings, pixels or floats; or the vectors that enter the first block."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.inputs.entrance import Enter, Entrance
from whyformer.capture.inputs.leaves import LookupLeaves, as_leaf
from whyformer.errors import BadInput, NotOffered
from whyformer.patch_grid import smoothed
from whyformer.places.place import Place
from whyformer.run import Run
from whyformer.subjects.base import Batch
from whyformer.subjects.image import ImageSubject, patch_masks
from whyformer.subjects.text import TextSubject


class OnePlace(Place):
    """``entrance``: which vectors enter the first block; None: the input itself."""

    def __init__(
        self, run: Run, inputs: Tensor, entrance: Entrance | None, point_bytes: int, gradient: Tensor | None = None
    ) -> None:
        super().__init__(run, inputs, point_bytes, gradient)
        self.entrance = entrance

    # Passes

    def logits(self, batch: Batch, points: Tensor) -> Tensor:
        if self.entrance is not None:
            return self._entered(batch, points)[0]
        if isinstance(self.run.subject, TextSubject):
            with self.run.swapped(batch, lambda _: points):
                return self.run.head.logits(batch)
        return self.run.head.logits(batch.with_tensors(**{self.run.subject.main: points}))

    def seen(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The numbers at this place and the explained values when the model reads ``batch`` instead."""
        numbers: list[Tensor] = []
        if self.entrance is not None:
            logits, vectors = self._entered(batch, None)
            numbers.append(vectors)
        elif isinstance(self.run.subject, TextSubject):
            with torch.no_grad(), self.run.swapped(batch, partial(_kept, numbers)):
                logits = self.run.head.logits(batch)
        else:
            numbers.append(batch.tensors[self.run.subject.main])
            with torch.no_grad():
                logits = self.run.head.logits(batch)
        self.run.forwards_B += 1
        return numbers[0].detach(), self.values_of(logits)

    def _entered(self, batch: Batch, points: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits, and the vectors that would have entered, with ``points`` in their place."""
        assert self.entrance is not None
        enter = Enter(self.entrance, batch.size, self.inputs.shape[1], points)
        graph = torch.enable_grad()  # descendants of the input are known by their requiring a gradient
        if isinstance(self.run.subject, TextSubject):
            with graph, self.run.swapped(batch, as_leaf), enter:
                logits = self.run.head.logits(batch)
        else:
            floats = {k: as_leaf(v) for k, v in batch.tensors.items() if v.is_floating_point()}
            with graph, LookupLeaves(as_leaf, batch.tensors), enter:
                logits = self.run.head.logits(batch.with_tensors(**floats))
        if enter.seen is None:
            raise NotOffered("the vectors that enter the first block were not met again. Use at='input'.")
        return logits, enter.seen

    # Units

    def per_unit(self, detail: Tensor, largest: bool = False) -> Tensor:
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

    def kept(self, row: int) -> Tensor:
        """Everything, where positions are no tokens."""
        numbers = self.inputs[row]
        if isinstance(self.run.subject, ImageSubject) and self.entrance is None:
            return torch.ones_like(numbers, dtype=torch.bool)
        keep_BN = self.run.batch.keep_BN if self.entrance is None else self.run.keep_BN
        if keep_BN is None and numbers.ndim == 2 and len(numbers) == self.run.length:  # steps of floats, with a mask
            keep_BN = self.run.keep_BN
        return torch.ones_like(numbers, dtype=torch.bool) if keep_BN is None else keep_BN[row]

    def spread(self, row: int) -> Tensor:
        numbers = self.inputs[row].double()
        own = numbers[self.kept(row)]
        return (own.std(correction=0) if numbers.ndim == 2 else own.max() - own.min()).cpu()

    def smoothed(self, detail: Tensor, patch_smoothing: float) -> Tensor:
        self.check_smoothing(patch_smoothing)
        grid = self.run.units[0].grid
        if not patch_smoothing or grid is None:
            return detail
        height, width = detail.shape[-2:]
        return smoothed(detail, (patch_smoothing * height / grid[0], patch_smoothing * width / grid[1]))

    def check_smoothing(self, patch_smoothing: float) -> None:
        if patch_smoothing < 0:
            raise BadInput(f"patch_smoothing={patch_smoothing!r}: a width in patches, at least 0.")
        if patch_smoothing and (self.entrance is not None or not isinstance(self.run.subject, ImageSubject)):
            raise NotOffered("patch_smoothing is for gradients at the pixels of an image: leave it at 0 here.")

    def detail(self, numbers: Tensor) -> list[np.ndarray[Any, Any]] | None:
        return [n.cpu().numpy() for n in numbers.float()]


def _kept(numbers: list[Tensor], embedding: Tensor) -> Tensor:
    numbers.append(embedding)
    return embedding
