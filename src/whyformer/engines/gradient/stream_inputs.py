"""Where the numbers of one stream enter a model: embeddings of words, or floats that are given as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.embeddings import SwapEmbedding
from whyformer.errors import BadInput, UnknownName
from whyformer.inputs.audio import AudioInput
from whyformer.inputs.base import Batch
from whyformer.inputs.image import ImageInput, pooled
from whyformer.inputs.image_tokens import SIZES, is_image, numbers_of, pixels_of
from whyformer.inputs.streams import VectorInput, pick
from whyformer.inputs.text import TextInput
from whyformer.run import Run
from whyformer.types import Units

Baseline = str | int | float | Tensor | np.ndarray[Any, Any] | None


class StreamInput(ABC):
    """One stream's entry. ``positions``: where the stream lies among all positions of the run."""

    vectors = False  # one vector per unit: spread is their standard deviation, not their range

    def __init__(self, run: Run, stream: str, name: str, positions: slice) -> None:
        self.run, self.stream, self.name, self.positions = run, stream, name, positions

    def given(self, batch: Batch) -> Tensor | None:
        """(B, …) the numbers, where the batch holds them; None where the model looks them up."""
        return batch.tensors[self.name]

    @abstractmethod
    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        """(U,) the sum (or the largest) of one input's numbers over each unit of the stream."""

    @abstractmethod
    def kept(self, row: int, numbers: Tensor) -> Tensor:
        """True at the numbers of one input that are no padding, in a shape that expands to theirs."""

    @property
    @abstractmethod
    def fillers(self) -> tuple[str, ...]:
        """Names of what can stand where nothing should be; the first is the default."""

    @abstractmethod
    def filled(self, row: int, numbers: Tensor, filler: str | int) -> Tensor:
        """One input's numbers, all replaced."""

    def takes(self, filler: object) -> bool:
        return filler in self.fillers

    def start(self, numbers_B: Tensor, baseline: Baseline, free: Callable[[int], Tensor | bool]) -> Tensor:
        """(B, …) where a path to ``numbers_B`` starts; padding, and what is not free, stays."""
        rows = []
        for row, numbers in enumerate(numbers_B):
            if isinstance(baseline, (Tensor, np.ndarray, float)):
                filled = _own(baseline, numbers, self.stream)
            else:
                filled = self.filled(row, numbers, self.fillers[0] if baseline is None else baseline)
            rows.append(torch.where(self.kept(row, numbers) & free(row), filled, numbers))
        return torch.stack(rows)

    def units(self, row: int) -> Units:
        """Those of the stream."""
        real = self.run.keep_BN[row].nonzero()[:, 0].tolist()
        inside = range(*self.positions.indices(self.run.length))
        return pick(self.run.units[row], [i for i, position in enumerate(real) if position in inside])


class Words(StreamInput):
    """Word embeddings, looked up by the model itself. Positions and types stay what they are."""

    vectors = True

    def __init__(self, run: Run, stream: str, part: TextInput, positions: slice) -> None:
        super().__init__(run, stream, part.main, positions)
        self.part, self.weight = part, torch.empty(0)

    def given(self, batch: Batch) -> Tensor | None:
        return None

    def swap(self, batch: Batch, replace: Callable[[Tensor], Tensor]) -> SwapEmbedding:
        # A decoder may have a table of its own, which get_input_embeddings does not name: it is known by its ids.
        table = None if self.stream == "target" else self.part.embedding()
        return SwapEmbedding(self.view(batch).tensors[self.name], table, replace)

    def view(self, batch: Batch) -> Batch:
        return self.run.modality.part(self.stream, batch)[1]

    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        own = numbers[self._real(row)]
        return own.amax(1) if largest else own.sum(1)

    def kept(self, row: int, numbers: Tensor) -> Tensor:
        return (self._real(row) & ~self.image_places(row))[:, None]

    def _real(self, row: int) -> Tensor:
        keep_BN = self.view(self.run.batch).keep_BN
        assert keep_BN is not None
        return keep_BN[row]

    def image_places(self, row: int) -> Tensor:
        """(N,) where the model puts image tokens over what it looked up."""
        ids_N = self.view(self.run.batch).tensors[self.name][row]
        places_BN = self.run.modality.places(self.run.batch) if self.name == self.run.modality.main else None
        return torch.zeros_like(ids_N, dtype=torch.bool) if places_BN is None else places_BN[row]

    def open(self, row: int, keep_special: bool | Sequence[int]) -> Tensor:
        """(N, 1) tokens that need not be kept."""
        ids_N = self.view(self.run.batch).tensors[self.name][row]
        listed = self.part.special_ids() if keep_special is True else keep_special or ()
        return ~torch.isin(ids_N, torch.tensor(sorted(listed), dtype=ids_N.dtype, device=ids_N.device))[:, None]

    @property
    def fillers(self) -> tuple[str, ...]:
        known = [name for name in ("pad", "mask", "unk") if name in self.part.replacements]
        return (*known, "zero")

    def takes(self, filler: object) -> bool:
        return isinstance(filler, int) or filler in self.fillers

    def filled(self, row: int, numbers: Tensor, filler: str | int) -> Tensor:
        if filler == "zero":
            return torch.zeros_like(numbers)
        other = self.part.replacement_id(filler)
        if not 0 <= other < len(self.weight):
            raise BadInput(f"baseline={filler!r}: the model knows the token ids 0 to {len(self.weight) - 1}.")
        return self.weight[other].to(numbers).expand_as(numbers)


def require_taken(stream_inputs: Sequence[StreamInput], baseline: object) -> None:
    """At least one stream has to have the baseline; the others take their own default."""
    if not any(stream_input.takes(baseline) for stream_input in stream_inputs):
        known = dict.fromkeys(name for stream_input in stream_inputs for name in stream_input.fillers)
        streams = ", ".join(f"'{stream_input.stream}': …" for stream_input in stream_inputs)
        raise UnknownName(
            "baseline", baseline, (*known, "a token id"), f"Tensors are given by stream: baseline={{{streams}}}."
        )


def _own(baseline: Tensor | np.ndarray[Any, Any] | float, numbers: Tensor, stream: str) -> Tensor:
    tensor = torch.as_tensor(baseline).to(numbers)
    try:
        return tensor.expand_as(numbers)
    except RuntimeError:
        raise BadInput(
            f"baseline of {stream!r} has shape {tuple(tensor.shape)}; what it replaces has {tuple(numbers.shape)}. "
            "Give one of that shape, or one that expands to it."
        ) from None


# Entries that the batch holds as floats: pixels, vectors of regions, frames of sound.


class Pixels(StreamInput):
    """An image whose patches are the units."""

    def __init__(self, run: Run, stream: str, part: ImageInput, positions: slice) -> None:
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


class TokenPixels(StreamInput):
    """An image whose pieces became tokens inside a text."""

    def __init__(self, run: Run, part: ImageInput, positions: slice) -> None:
        super().__init__(run, "image", part.main, positions)
        self.part, self.config = part, run.modality.model.config

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


class Vectors(StreamInput):
    """One vector per unit: regions of an image. Where they lie stays what it is."""

    vectors = True

    def __init__(self, run: Run, stream: str, part: VectorInput, positions: slice) -> None:
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


class Frames(StreamInput):
    """Sound: the samples, or columns of a spectrogram, that each frame covers."""

    def __init__(self, run: Run, stream: str, part: AudioInput, positions: slice) -> None:
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
