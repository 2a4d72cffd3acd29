"""Entries that the batch holds as floats: pixels, vectors of regions, frames of sound."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from whyformer.places.entry import Entry
from whyformer.run import Run
from whyformer.subjects.audio import AudioSubject
from whyformer.subjects.base import Batch
from whyformer.subjects.image import ImageSubject, pooled
from whyformer.subjects.image_tokens import is_image, numbers_of, pixels_of
from whyformer.subjects.packed import SIZES
from whyformer.subjects.parts import VectorSubject


class Pixels(Entry):
    """An image whose patches are the units."""

    def __init__(self, run: Run, stream: str, part: ImageSubject, positions: slice) -> None:
        super().__init__(run, stream, part.main, positions)
        self.part = part

    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        units = self.units(row)
        return _at([not special for special in units.special], pooled(numbers, units, largest))

    def kept(self, row: int, numbers: Tensor) -> Tensor:
        high, wide = self.units(row).image_size or numbers.shape[-2:]
        inside = torch.zeros(numbers.shape[-2:], dtype=torch.bool, device=numbers.device)
        inside[:high, :wide] = True
        return inside

    @property
    def fillers(self) -> tuple[str, ...]:
        return ("zero", "mean", "blur")

    def filled(self, row: int, numbers: Tensor, filler: str | int) -> Tensor:
        high, wide = self.units(row).image_size or numbers.shape[-2:]
        filled = numbers.clone()
        filled[:, :high, :wide] = self.part.background(numbers[None, :, :high, :wide], str(filler))[0]
        return filled


class TokenPixels(Entry):
    """An image whose pieces became tokens inside a text."""

    def __init__(self, run: Run, part: ImageSubject, positions: slice) -> None:
        super().__init__(run, "image", part.main, positions)
        self.part, self.config = part, run.subject.model.config

    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        units = self.units(row)
        frames = pixels_of(self.config, self._one(row, numbers))  # (frames, channels, height, width)
        return _at(is_image(units), pooled(frames.flatten(0, 1), units, largest))

    def kept(self, row: int, numbers: Tensor) -> Tensor:
        if SIZES not in self.run.batch.tensors:
            return torch.ones_like(numbers, dtype=torch.bool)
        count = int(self.run.batch.tensors[SIZES][row].prod())
        return (torch.arange(len(numbers), device=numbers.device) < count)[:, None]

    @property
    def fillers(self) -> tuple[str, ...]:
        # A patch of zeros is no input to Qwen: without bias or position, the first norm has nothing to scale.
        return ("mean", "zero", "blur") if SIZES in self.run.batch.tensors else ("zero", "mean", "blur")

    def filled(self, row: int, numbers: Tensor, filler: str | int) -> Tensor:
        one = self._one(row, numbers)
        background = self.part.background(pixels_of(self.config, one), str(filler))
        return numbers_of(self.config, one, background[None])[0]

    def _one(self, row: int, numbers: Tensor) -> Batch:
        return self.run.batch.select([row]).with_tensors(**{self.name: numbers[None]})


class Vectors(Entry):
    """One vector per unit: regions of an image. Where they lie stays what it is."""

    vectors = True

    def __init__(self, run: Run, stream: str, part: VectorSubject, positions: slice) -> None:
        super().__init__(run, stream, part.main, positions)
        self.part = part

    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        own = numbers[self._real(row, numbers)]
        return own.amax(1) if largest else own.sum(1)

    def _real(self, row: int, numbers: Tensor) -> Tensor:
        return self.part.keep(self.run.batch, len(numbers), None)[row]

    def kept(self, row: int, numbers: Tensor) -> Tensor:
        return self._real(row, numbers)[:, None]

    @property
    def fillers(self) -> tuple[str, ...]:
        return ("zero", "mean")

    def filled(self, row: int, numbers: Tensor, filler: str | int) -> Tensor:
        mean = numbers[self._real(row, numbers)].mean(0)
        return (mean if filler == "mean" else torch.zeros_like(mean)).expand_as(numbers)


class Frames(Entry):
    """Sound: the samples, or columns of a spectrogram, that each frame covers."""

    def __init__(self, run: Run, stream: str, part: AudioSubject, positions: slice) -> None:
        super().__init__(run, stream, part.main, positions)
        self.part = part

    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        edges = self.part.edges(self.run.batch, row, len(self.units(row)))
        flat = numbers.flatten(0, -2) if numbers.ndim > 1 else numbers[None]
        spans = [flat[:, start:end] for start, end in pairwise(edges)]
        zero = flat.new_zeros(())
        return torch.stack([s.sum() if not largest else s.amax() if s.numel() else zero for s in spans])

    def kept(self, row: int, numbers: Tensor) -> Tensor:
        last = self.part.edges(self.run.batch, row, 1)[-1]
        return torch.arange(numbers.shape[-1], device=numbers.device) < last

    @property
    def fillers(self) -> tuple[str, ...]:
        return ("zero", "mean")

    def filled(self, row: int, numbers: Tensor, filler: str | int) -> Tensor:
        last = self.part.edges(self.run.batch, row, 1)[-1]
        mean = numbers[..., :last].mean(-1, keepdim=True)
        return (mean if filler == "mean" else torch.zeros_like(mean)).expand_as(numbers)


def _at(own: Sequence[bool], values: Tensor) -> Tensor:
    """(U,) the values, in order, at the units that are theirs; zero at the others."""
    scores = values.new_zeros(len(own))
    scores[torch.tensor(own, dtype=torch.bool, device=values.device)] = values
    return scores
