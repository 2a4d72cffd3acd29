"""The space in which input gradients are taken: word embeddings, pixels, floats, or what enters the first block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.leaves import Enter, Entrance, as_leaf, require_dependent, slopes
from whyformer.engines.gradient.feature_maps import smoothed
from whyformer.errors import NotOffered, one_of
from whyformer.inputs.batch import Batch
from whyformer.parameters import OneOf
from whyformer.run import Run, positions_in
from whyformer.study.interference import require_apart
from whyformer.targets import scalar_of

NORMS = ("l2", "l1", "sum", "max")
Norm = Annotated[str, OneOf(*NORMS)]


class InputSpace(ABC):
    """One place of a batch: its numbers there, their gradient, and what the model makes of other numbers.

    inputs: (B, …) the numbers. point_bytes: what the graph of one point keeps for its backward pass, where other points
    follow. gradient: (B, …) of the explained values at ``inputs``, where it was asked for.
    """

    smooths: bool  # holds pixels of patches

    def __init__(self, run: Run, inputs: Tensor, point_bytes: int, gradient: Tensor | None = None) -> None:
        self.run, self.inputs, self.point_bytes, self.gradient = run, inputs, point_bytes, gradient

    @abstractmethod
    def logits(self, batch: Batch, points: Tensor) -> Tensor:
        """(B, C) with other numbers at this place."""

    @abstractmethod
    def per_unit(self, detail: Tensor, largest: bool = False) -> Tensor:
        """(B, N) the sum (or the largest entry) of a (B, …) tensor over each unit."""

    @abstractmethod
    def real(self, row: int) -> Tensor:
        """True at the real numbers of one input, in the shape of its first axes."""

    @abstractmethod
    def spread(self, row: int) -> Tensor:
        """How far the kept numbers of one input lie apart: the range of pixels or of a row of floats, the standard
        deviation of vectors."""

    @abstractmethod
    def smoothed(self, detail: Tensor, patch_smoothing: float) -> Tensor:
        """A map of pixels without the patch grid: a Gaussian of that many patches; 0 leaves it as it is."""

    def check_smoothing(self, patch_smoothing: float) -> None:
        """Raise if there are no pixels to smooth; called before long work."""
        if patch_smoothing and not self.smooths:
            raise NotOffered("patch_smoothing is for gradients at the pixels of an image: leave it at 0 here.")

    def detail(self, numbers: Tensor) -> Tensor | None:
        """Per input, what a result keeps beside its scores: nothing of several tensors, of different shapes."""
        return None

    # Passes

    def gradient_at(self, points: Tensor, rows: Sequence[int]) -> Tensor:
        """Gradient of the explained value at ``points``, one per entry of ``rows``, the inputs they stand for."""
        if self.run.batch.reference_rows:
            return torch.cat([self._beside_others(p, row) for p, row in zip(points, rows, strict=True)])
        run, leaf = self.run, points.detach().requires_grad_()
        batch = run.batch.select(list(rows))
        with torch.enable_grad():
            logits = self.logits(batch, leaf)
            values = scalar_of(logits, [run.targets[r] for r in rows], run.reading)
            require_dependent(values)
            (gradient,) = slopes(values.sum(), [leaf])
        if not run.modality.read.mixes_rows:
            part = lambda some: self.logits(batch.select(some), points[some])  # noqa: E731
            run.setup_forwards += require_apart(run.modality.model, logits, part, positions_in(run, batch))
        np.add.at(run.forwards_B, list(rows), 1)
        np.add.at(run.backwards_B, list(rows), 1)
        return gradient.detach()

    def require_slopes(self, gradient: Tensor) -> None:
        """Refuse a gradient at the inputs that is not the slope of the explained values (study/interference.py)."""
        run = self.run
        if run.batch.reference_rows:
            return
        batch = run.batch.select(range(run.batch.size))  # another one: what is kept of outputs is of the model as it is

        def scored(others: Tensor) -> Tensor:
            return scalar_of(self.logits(batch, others).float(), run.targets, run.reading)

        run.compare_slopes(self.inputs, gradient, run.value_B, scored)

    def _beside_others(self, point: Tensor, row: int) -> Tensor:
        """(1, …) the gradient at one point, while the other rows of the batch stay what they are."""
        run, leaf = self.run, point.detach()[None].requires_grad_()
        with torch.enable_grad():
            points = torch.cat([self.inputs[:row], leaf, self.inputs[row + 1 :]])
            values = scalar_of(self.logits(run.batch, points), run.targets, run.reading)
            require_dependent(values)
            (gradient,) = slopes(values[row], [leaf])
        run.forwards_B[row] += 1
        run.backwards_B[row] += 1
        return gradient.detach()

    def values(self, points: Tensor) -> Tensor:
        """(B,) explained values with other numbers at this place."""
        with torch.no_grad():
            logits = self.logits(self.run.batch, points)
        self.run.forwards_B += 1
        return self.values_of(logits)

    def values_of(self, logits: Tensor) -> Tensor:
        return scalar_of(logits.detach().float(), self.run.targets, self.run.reading)

    def in_batches(self, points: Sequence[Any], label: str, memory_mb: float) -> Iterator[Sequence[Any]]:
        """Points in batches whose graphs stay within the budget."""
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


# One tensor of numbers: word embeddings, pixels or floats; or the vectors that enter the first block.


class SingleInput(InputSpace):
    """``entrance``: which vectors enter the first block; None: the input itself."""

    def __init__(
        self, run: Run, inputs: Tensor, entrance: Entrance | None, point_bytes: int, gradient: Tensor | None = None
    ) -> None:
        super().__init__(run, inputs, point_bytes, gradient)
        self.entrance = entrance
        self.smooths = entrance is None and run.modality.place.pixels

    # Passes

    def logits(self, batch: Batch, points: Tensor) -> Tensor:
        if self.entrance is not None:
            return self._entered(batch, points)[0]
        if self.run.modality.read.embeds:
            with self.run.modality.read.looked_up(batch, lambda _: points):
                return self.run.output.logits(batch)
        return self.run.output.logits(batch.with_tensors(**{self.run.modality.main: points}))

    def seen(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The numbers at this place and the explained values when the model reads ``batch`` instead."""
        numbers: list[Tensor] = []
        if self.entrance is not None:
            logits, vectors = self._entered(batch, None)
            numbers.append(vectors)
        elif self.run.modality.read.embeds:

            def noted(embedding: Tensor) -> Tensor:
                numbers.append(embedding)
                return embedding

            with torch.no_grad(), self.run.modality.read.looked_up(batch, noted):
                logits = self.run.output.logits(batch)
        else:
            numbers.append(batch.tensors[self.run.modality.main])
            with torch.no_grad():
                logits = self.run.output.logits(batch)
        self.run.forwards_B += 1
        return numbers[0].detach(), self.values_of(logits)

    def _entered(self, batch: Batch, points: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits, and the vectors that would have entered, with ``points`` in their place."""
        assert self.entrance is not None
        enter = Enter(self.entrance, batch.size, self.inputs.shape[1], points)
        graph = torch.enable_grad()  # descendants of the input are known by their requiring a gradient
        # The same as in the traced pass: with a mask among them, descendants of the mask would be counted, too.
        floats = {k: v for k, v in batch.tensors.items() if v.is_floating_point() and "mask" not in k}
        floats = {k: v if v.requires_grad else as_leaf(v) for k, v in floats.items()}
        read = batch if self.run.modality.read.embeds else batch.with_tensors(**floats)
        with graph, self.run.modality.read.looked_up(batch, as_leaf), enter:
            logits = self.run.output.logits(read)
        if enter.seen is None:
            raise NotOffered("the vectors that enter the first block were not met again. Use at='input'.")
        return logits, enter.seen

    # Units

    def per_unit(self, detail: Tensor, largest: bool = False) -> Tensor:
        if self.entrance is not None:
            scores = detail.amax(2) if largest else detail.sum(2)
        else:
            scores = self.run.modality.place.per_unit(detail, self.run, largest)
        return scores * self.run.keep_BN

    def real(self, row: int) -> Tensor:
        """Everything, where positions are no tokens."""
        numbers = self.inputs[row]
        if self.run.modality.place.pixels and self.entrance is None:
            return torch.ones_like(numbers, dtype=torch.bool)
        keep_BN = self.run.batch.keep_BN if self.entrance is None else self.run.keep_BN
        if keep_BN is None and numbers.ndim == 2 and self.run.length - len(numbers) in {0, 1}:
            # Steps of floats, with a mask; the model may have added a token of its own.
            keep_BN = self.run.modality.place.keep(self.run.batch, len(numbers), self.run.front)
        return torch.ones_like(numbers, dtype=torch.bool) if keep_BN is None else keep_BN[row]

    def spread(self, row: int) -> Tensor:
        numbers = self.inputs[row].double()
        real = numbers[self.real(row)]
        return (real.std(correction=0) if numbers.ndim == 2 else real.max() - real.min()).cpu()

    def smoothed(self, detail: Tensor, patch_smoothing: float) -> Tensor:
        self.check_smoothing(patch_smoothing)
        grid = self.run.units[0].grid
        if not patch_smoothing or grid is None:
            return detail
        height, width = detail.shape[-2:]
        return smoothed(detail, (patch_smoothing * height / grid[0], patch_smoothing * width / grid[1]))

    def detail(self, numbers: Tensor) -> Tensor | None:
        return numbers.float()


def entering(run: Run) -> set[str]:
    """The units of the argument whose vectors enter the first block; of a table, all of them."""
    labels, main = run.units[0].labels, run.modality.main
    if run.modality.stream == "table" or main not in run.batch.tensors:
        return set(labels)
    owner = run.modality.mask.owners(run.units[0], run.batch.select([0])).get(main)
    return set(labels) if owner is None else {labels[int(unit)] for unit in owner.unique() if unit >= 0}


def over_columns(run: Run, of_tokens_BN: Tensor, floats: Mapping[str, Tensor], largest: bool = False) -> Tensor:
    """(B, N) what each unit of a table has: of its token where it has one, else of the numbers of its column."""
    assert run.attended is not None
    labels, owners = run.attended.units[0].labels, run.modality.mask.owners(run.units[0], run.batch.select([0]))
    tokens = entering(run) & set(labels)
    scores = of_tokens_BN.new_zeros(run.keep_BN.shape)
    for unit, label in enumerate(run.units[0].labels):
        if label in tokens:
            scores[:, unit] = of_tokens_BN[:, labels.index(label)]
            continue
        flat = ((n, owners[n].expand(floats[n].shape[1:]).flatten() == unit) for n in floats.keys() & owners.keys())
        entries = [floats[name].flatten(1)[:, here] for name, here in flat if here.any()]
        if not entries:
            raise NotOffered(
                f"{label!r} is looked up, or true or false, and no position of the model's attention holds it alone, "
                "so its gradient is not known."
            )
        scores[:, unit] = entries[0].amax(1) if largest else entries[0].sum(1)
    return scores


class TokensAndColumns(SingleInput):
    """The vectors that enter the first block, and the numbers of columns that go around it; ``inputs`` is (B, F)."""

    def __init__(self, run: Run, tokens: SingleInput) -> None:
        self.tokens = tokens
        self.names = [k for k, v in run.batch.tensors.items() if v.is_floating_point() and "mask" not in k]
        self.shapes = [tokens.inputs.shape[1:], *(run.batch.tensors[name].shape[1:] for name in self.names)]
        super().__init__(run, self._joined(run.batch, tokens.inputs), tokens.entrance, tokens.point_bytes)

    def logits(self, batch: Batch, points: Tensor) -> Tensor:
        tokens, floats = self._split(points)
        return self.tokens.logits(batch.with_tensors(**floats), tokens)

    def seen(self, batch: Batch) -> tuple[Tensor, Tensor]:
        tokens, values_B = self.tokens.seen(batch)
        return self._joined(batch, tokens), values_B

    def per_unit(self, detail: Tensor, largest: bool = False) -> Tensor:
        tokens, floats = self._split(detail)
        return over_columns(self.run, self.tokens.per_unit(tokens, largest), floats, largest)

    def real(self, row: int) -> Tensor:
        return torch.ones_like(self.inputs[row], dtype=torch.bool)

    def _joined(self, batch: Batch, tokens: Tensor) -> Tensor:
        return torch.cat([tokens.flatten(1), *(batch.tensors[name].flatten(1) for name in self.names)], 1)

    def _split(self, points: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        parts = points.split([shape.numel() for shape in self.shapes], 1)
        tokens, *floats = (part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes, strict=True))
        return tokens, dict(zip(self.names, floats, strict=True))
