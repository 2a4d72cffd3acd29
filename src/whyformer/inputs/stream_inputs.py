"""Where the numbers of one stream enter a model: word embeddings, or floats that are given as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.lookups import SwapEmbedding
from whyformer.errors import BadInput, UnknownName, reading
from whyformer.inputs.batch import Batch, Placed
from whyformer.inputs.units import pick
from whyformer.results.types import Units
from whyformer.targets import require_dense

Baseline = str | int | float | Tensor | np.ndarray[Any, Any] | None
Numbers = Tensor | Mapping[str, Tensor]  # that stand for masked ones: of one argument, or by argument
Layout = Mapping[str, slice]  # where each stream lies among all positions of the run


class StreamInput(ABC):
    """The entry of one stream. part: how it is masked. positions: where it lies among all positions of the run."""

    vectors = False  # one vector per unit: spread is their standard deviation, not their range
    smooths = False  # a map of pixels, from which the grid of the patches can be smoothed away
    weight: Tensor | None = None  # the table that the model looked the numbers up in, once it did

    def __init__(self, placed: Placed, stream: str, part: Any, positions: slice, name: str | None = None) -> None:
        self.placed, self.stream, self.part, self.positions = placed, stream, part, positions
        self.name: str = part.read.main if name is None else name

    def floats(self, batch: Batch) -> Tensor | None:
        """(B, …) the numbers of the batch; None where the model looks them up."""
        return batch.tensors[self.name]

    def swap(self, batch: Batch, replace: Callable[[Tensor], Tensor]) -> SwapEmbedding | None:
        """A mode that puts other vectors in place of those that the model looks up; None where the batch holds them."""
        return None

    def open(self, row: int, keep_special: bool | Sequence[int]) -> Tensor | bool:
        """Return True at the numbers of one input that need not be kept."""
        return True

    @abstractmethod
    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        """(U,) the sum (or the largest) of one input's numbers over each unit of the stream."""

    def counted(self, row: int, numbers: Tensor) -> Tensor:
        """Return True at the numbers of one input that are not padding, in a shape that expands to theirs."""
        return torch.ones_like(numbers, dtype=torch.bool)

    @property
    @abstractmethod
    def fillers(self) -> tuple[str, ...]:
        """The names of baselines; the first is the default."""

    def filled(self, row: int, numbers: Tensor, filler: str | int) -> Tensor:
        """Return one input's numbers, all replaced by the baseline."""
        filling: Tensor = self.part.filling(filler, self.units(row), self.one(row, numbers))[0][self.name][0]
        return filling

    def one(self, row: int, numbers: Tensor) -> Batch:
        """Return one input with these numbers."""
        return self.placed.batch.select([row]).with_tensors(**{self.name: numbers[None]})

    def takes(self, filler: object) -> bool:
        return filler in self.fillers

    def start(self, numbers_B: Tensor, baseline: Baseline, keep_special: bool | Sequence[int]) -> Tensor:
        """(B, …) where a path to ``numbers_B`` starts; padding, and what is to be kept, stays."""
        rows = []
        for row, numbers in enumerate(numbers_B):
            if isinstance(baseline, (Tensor, np.ndarray, float)):
                filled = fitted(baseline, numbers, f"baseline of {self.stream!r}")
            else:
                filled = self.filled(row, numbers, self.fillers[0] if baseline is None else baseline)
            rows.append(torch.where(self.counted(row, numbers) & self.open(row, keep_special), filled, numbers))
        return torch.stack(rows)

    def units(self, row: int) -> Units:
        """Return the units of the stream."""
        real = self.placed.keep_BN[row].nonzero()[:, 0].tolist()
        inside = range(*self.positions.indices(self.placed.length))
        return pick(self.placed.units[row], [i for i, position in enumerate(real) if position in inside])


class Vectors(StreamInput):
    """One vector per unit: regions of an image. Their coordinates are unchanged."""

    vectors = True

    def real(self, row: int, numbers: Tensor) -> Tensor:
        """(N,) the vectors of one input that are not padding."""
        real: Tensor = self.part.place.keep(self.placed.batch, len(numbers), None)[row]
        return real

    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        real = numbers[self.real(row, numbers)]
        return real.amax(1) if largest else real.sum(1)

    def counted(self, row: int, numbers: Tensor) -> Tensor:
        return self.real(row, numbers)[:, None]

    @property
    def fillers(self) -> tuple[str, ...]:
        return ("zero", "mean")


class Columns(StreamInput):
    """The columns or steps of one tensor of floats, or the tensor as a whole."""

    fillers = ("zero",)

    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        of_units = numbers.reshape(self.positions.stop - self.positions.start, -1)
        return of_units.amax(1) if largest else of_units.sum(1)

    def filled(self, row: int, numbers: Tensor, filler: str | int) -> Tensor:
        return torch.zeros_like(numbers)


class WordEmbeddings(Vectors):
    """Word embeddings, looked up by the model itself. whole: the modality of all streams."""

    def __init__(self, placed: Placed, stream: str, part: Any, positions: slice, whole: Any) -> None:
        super().__init__(placed, stream, part, positions)
        self.whole = whole

    def view(self, batch: Batch) -> Batch:
        """Return the batch as the stream reads it."""
        view: Batch = self.whole.part(self.stream, batch)[1]
        return view

    def floats(self, batch: Batch) -> Tensor | None:
        return None

    def swap(self, batch: Batch, replace: Callable[[Tensor], Tensor]) -> SwapEmbedding:
        # A decoder may have a table of its own, which get_input_embeddings does not name: it is known by its ids.
        table = None if self.stream == "target" else self.part.read.embedding
        covered = self.whole.read.covered(batch) if self.name == self.whole.main else None
        return SwapEmbedding(self.view(batch).tensors[self.name], table, replace, covered)

    def real(self, row: int, numbers: Tensor) -> Tensor:
        return self.view(self.placed.batch).real_BN[row]

    def counted(self, row: int, numbers: Tensor) -> Tensor:
        real_N = self.real(row, numbers)
        # Where the model puts image tokens over what it looked up.
        places_BN = self.whole.read.covered(self.placed.batch) if self.name == self.whole.main else None
        return (real_N if places_BN is None else real_N & ~places_BN[row])[:, None]

    def open(self, row: int, keep_special: bool | Sequence[int]) -> Tensor:
        """(N, 1) tokens that need not be kept."""
        open_BN: Tensor = self.part.open_tokens(self.view(self.placed.batch), keep_special)
        return open_BN[row][:, None]

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
        assert self.weight is not None
        if not 0 <= other < len(self.weight):
            raise BadInput(f"baseline={filler!r}: the model knows the token ids 0 to {len(self.weight) - 1}.")
        return self.weight[other].to(numbers).expand_as(numbers)


def require_taken(stream_inputs: Sequence[StreamInput], baseline: object) -> None:
    """Raise if no stream has the baseline; those that do not have it take their own default."""
    if not any(stream_input.takes(baseline) for stream_input in stream_inputs):
        known = dict.fromkeys(name for stream_input in stream_inputs for name in stream_input.fillers)
        streams = ", ".join(f"'{stream_input.stream}': …" for stream_input in stream_inputs)
        raise UnknownName(
            "baseline", baseline, (*known, "a token id"), f"Tensors are given by stream: baseline={{{streams}}}."
        )


def fitted(baseline: Tensor | np.ndarray[Any, Any] | float, numbers: Tensor, name: str) -> Tensor:
    """Return a baseline in the shape of one input's numbers; a leading axis of one is dropped, as captum has it."""
    with reading(f"{name} is no tensor of numbers", "Give a tensor or an array of them."):
        tensor = torch.as_tensor(baseline)
    require_dense(name, tensor, "give it{}.")
    tensor = tensor.to(numbers)
    if not bool(torch.isfinite(tensor).all()):
        raise BadInput(f"{name} holds NaN or infinity, and scores are differences from it: give finite numbers.")
    try:
        single = tensor.ndim == numbers.ndim + 1 and len(tensor) == 1
        return (tensor[0] if single else tensor).expand_as(numbers)
    except RuntimeError:
        raise BadInput(
            f"{name} has shape {tuple(tensor.shape)}; what it replaces has {tuple(numbers.shape)}. Give one of that "
            "shape, or one that expands to it."
        ) from None


def at_units(mask: Sequence[bool], values: Tensor) -> Tensor:
    """(U,) the values, in order, at the units that are theirs; zero at the others."""
    scores = values.new_zeros(len(mask))
    scores[torch.tensor(mask, dtype=torch.bool, device=values.device)] = values
    return scores
