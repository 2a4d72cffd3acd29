"""Videos and time series: blocks of one tensor of numbers, which become the positions of the model."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.capture.roles import first_values
from whyformer.errors import BadInput, MissingProcessor, WhyformerError
from whyformer.inputs.base import Modality, Read
from whyformer.inputs.batch import Batch, Filling, Placed, Raw, SamplePool, required
from whyformer.inputs.checkpoint import processed
from whyformer.inputs.image import ImageInput
from whyformer.inputs.stream_inputs import Layout, StreamInput
from whyformer.inputs.tensors import TensorMask, TensorPlace
from whyformer.inputs.units import Column, of_pool
from whyformer.loan.borrow import borrowed, known_about, module_names
from whyformer.results.types import Units

VIDEOS = ("pixel_values", "pixel_values_videos")  # (inputs, frames, channels, rows, columns)
SERIES = "past_values"  # (inputs, steps) or (inputs, steps, variables)
STEPS = 16  # blocks of time, where the model has none of its own
SIDE = 4  # blocks along a side of a frame, likewise


@dataclass(frozen=True)
class Blocks:
    """How one input's tensor (without the batch axis) is divided: ``counts`` along its axes, numbered in ``order``."""

    counts: tuple[int, ...]
    order: tuple[int, ...]  # axes, the slowest first
    positions: int = 0  # of the first attention; 0: the model does not attend over these blocks
    added: frozenset[int] = frozenset()  # positions of the model's own

    @property
    def total(self) -> int:
        return math.prod(self.counts)

    def index(self, shape: Sequence[int]) -> Tensor:
        """Return the number of the block that each entry belongs to."""
        index, stride = torch.zeros(tuple(shape), dtype=torch.long), self.total
        for axis in self.order:
            stride //= self.counts[axis]
            along = torch.arange(shape[axis]) * self.counts[axis] // shape[axis] * stride
            index += along.view([-1 if a == axis else 1 for a in range(len(shape))])
        return index

    def starts(self, axis: int, size: int) -> list[int]:
        """Return the first entry of each block along an axis."""
        return [-(-i * size // self.counts[axis]) for i in range(self.counts[axis])]


def blocks_of(tensor: Tensor, axes: Sequence[int], values_at: Callable[[Tensor], Tensor]) -> Blocks | None:
    """Find the blocks by changing slices of the tensor along ``axes``, and by which positions change then.

    values_at: (positions, numbers) the values of the first attention. None where positions are no even blocks.
    """
    before = values_at(tensor)

    def moved(other: Tensor) -> set[int]:
        return set((values_at(other) != before).any(1).nonzero()[:, 0].tolist())

    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor)
    noisy = sorted(moved(tensor + noise))
    counts = [1] * tensor.ndim
    slices: list[tuple[int, int, set[int]]] = []
    for axis in axes:
        size = tensor.shape[axis]
        for place in dict.fromkeys((size // 2, size - 1, 0)):  # overlapping patches show in the middle
            other = tensor.clone()
            other.select(axis, place).add_(noise.select(axis, place))
            slices.append((axis, place, moved(other)))
        reached = len(slices[-1][2])
        if not reached or len(noisy) % reached:
            return None
        counts[axis] = len(noisy) // reached
    added = frozenset(range(len(before))) - frozenset(noisy)
    blocks = Blocks(tuple(counts), tuple(axes), len(before), added)
    if blocks.total != len(noisy) or any(counts[axis] > tensor.shape[axis] for axis in axes):
        return None
    index = blocks.index(tensor.shape)
    for axis, place, changed in slices:
        if {noisy[i] for i in index.select(axis, place).unique().tolist()} != changed:
            return None
    return blocks


class BlockPlace(TensorPlace):
    """Blocks of one tensor, those that the model attends over where it does so. Abstract."""

    axes: tuple[int, ...] = (0,)  # of one input's tensor that are divided

    def settle(self, one: Batch, grid: tuple[int, int] | None) -> int:
        facts, key, passes = known_about(self.read.model), self._key(one), 0
        if key in facts:
            return 0
        names = module_names(self.read.model)

        def values_at(other: Tensor) -> Tensor:
            nonlocal passes
            passes += 1
            with borrowed(self.read.model):
                changed = one.with_tensors(**{self.read.main: other[None]})
                values_BHKD = first_values(lambda: self.read.call(changed), names)
            if len(values_BHKD) != 1:
                raise BadInput("attention inside windows")
            return values_BHKD[0].transpose(0, 1).flatten(1)

        try:
            facts[key] = blocks_of(one.tensors[self.read.main][0], self.divided_axes(one), values_at)
        except (WhyformerError, RuntimeError):  # no attention, or not over this input
            facts[key] = None
        return passes

    def _key(self, batch: Batch) -> tuple[Any, ...]:
        return "blocks", self.read.main, tuple(batch.tensors[self.read.main].shape[1:])

    def divided_axes(self, batch: Batch) -> tuple[int, ...]:
        """Return the axes that are divided, of one input's tensor."""
        return tuple(axis for axis in self.axes if axis < batch.tensors[self.read.main].ndim - 1)

    def averaged_axes(self, batch: Batch) -> tuple[int, ...]:
        """Return the axes over which a mean is taken as the baseline."""
        return self.divided_axes(batch)

    @abstractmethod
    def _own(self, batch: Batch) -> Blocks:
        """Return blocks of a plain size, for a model that does not attend over blocks."""

    def blocks(self, batch: Batch, length: int | None = None) -> Blocks | None:
        """Return the blocks that ``length`` positions stand for, None where they stand for none."""
        known: Blocks | None = known_about(self.read.model).get(self._key(batch))
        if known is not None and length in (None, known.positions, known.total):
            return known if length != known.total else replace(known, added=frozenset())
        entries = self._own(batch)
        return entries if length in (None, entries.total) else None

    def length(self, batch: Batch) -> int:
        blocks = self.blocks(batch)
        assert blocks is not None
        return blocks.total

    def seen_columns(self, batch: Batch, length: int) -> list[Column]:
        return [] if self.blocks(batch, length) is None else self.columns(batch)

    def reads_other_steps(self, one: Batch, keys: int) -> bool:
        return True  # maps cannot be read: blocks of the input are scored

    def in_steps(self, numbers: Tensor, batch: Batch, length: int) -> bool:
        return self.blocks(batch, length) is not None

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        blocks = self.blocks(batch, length)
        if blocks is None:  # positions of the model's own making
            labels = tuple(f"position {i}" for i in range(length))
            return [Units(labels, (False,) * length, (self.read.stream,) * length)] * batch.size
        names, extras = iter(self._labels(batch, blocks)), iter(["[CLS]", *(f"[EXTRA{i}]" for i in range(1, length))])
        special = tuple(position in blocks.added for position in range(length))
        labels = tuple(next(extras) if added else next(names) for added in special)
        return [self._drawn(Units(labels, special, (self.read.stream,) * length), batch, blocks)] * batch.size

    @abstractmethod
    def _labels(self, batch: Batch, blocks: Blocks) -> list[str]: ...

    def _drawn(self, units: Units, batch: Batch, blocks: Blocks) -> Units:
        return units

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        return torch.ones(batch.size, length, dtype=torch.bool, device=batch.tensors[self.read.main].device)

    def per_unit(self, detail: Tensor, placed: Placed, largest: bool = False) -> Tensor:
        blocks = self.blocks(placed.batch, placed.length)
        if blocks is None or detail.shape[1:] != placed.batch.tensors[self.read.main].shape[1:]:
            return super().per_unit(detail, placed, largest)
        index = blocks.index(detail.shape[1:]).flatten().to(detail.device)
        sums = detail.new_zeros(len(detail), blocks.total)
        reduce = "amax" if largest else "sum"
        sums = sums.scatter_reduce(1, index.expand(len(detail), -1), detail.flatten(1), reduce, include_self=False)
        scores = detail.new_zeros(len(detail), placed.length)
        scores[:, [i for i in range(placed.length) if i not in blocks.added]] = sums
        return scores


class BlockMask(TensorMask):
    """Zeros, or the mean of the input itself, stand in place of masked blocks."""

    place: BlockPlace

    replacements = ("mean", "zero")

    def stream_inputs(self, stream: str, layout: Layout, placed: Placed, whole: Modality | None) -> list[StreamInput]:
        return [BlockNumbers(placed, stream, self, layout[stream])]

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        blocks = self.place.blocks(one, len(units))
        if blocks is None:
            return super().owners(units, one)
        plain = torch.tensor([i for i, special in enumerate(units.special) if not special])
        tensor = one.tensors[self.read.main]
        return {self.read.main: plain[blocks.index(tensor.shape[1:])].to(tensor.device)}

    def filling(self, name: Any, units: Units, one: Batch, pool: SamplePool | None = None) -> list[Filling]:
        """Return zeros, or the input's own mean over the axes that are divided, per channel or variable."""
        if pool is not None:
            return of_pool(name, [self.read.main], one, pool)
        self.require_replacement(name)
        tensor = one.tensors[self.read.main]
        mean = tensor.mean([axis + 1 for axis in self.place.averaged_axes(one)], keepdim=True)
        return [{self.read.main: (mean if name == "mean" else torch.zeros_like(mean)).expand_as(tensor)}]


class BlockNumbers(StreamInput):
    """The numbers of a video or series that a learned query pools (V-JEPA 2)."""

    fillers = ("mean", "zero")

    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        units = self.units(row)
        owner = self.part.owners(units, self.one(row, numbers))[self.name]
        scores = numbers.new_zeros(len(units))
        reduce = "amax" if largest else "sum"
        return scores.scatter_reduce(0, owner.flatten(), numbers.flatten(), reduce, include_self=False)


class VideoRead(Read):
    """One video per input; units are blocks of frames, rows and columns (tubelets)."""

    stream = "video"

    def __init__(self, model: nn.Module, processor: Any = None, main: str = "pixel_values") -> None:
        super().__init__(model, processor)
        self.main = main

    def encode(self, raw: Sequence[Raw]) -> Batch:
        if self.processor is None:
            raise MissingProcessor(
                "videos need the model's processor: pass processor=AutoImageProcessor.from_pretrained(…) (or "
                f"AutoVideoProcessor), or give tensors ({{'{self.main}': …}}) instead."
            )
        clips = []
        for video in raw:
            frames = list(np.asarray(video))
            wants_videos = "videos" in self.processor.__call__.__code__.co_varnames
            passed = {"videos": [frames]} if wants_videos else {"images": frames}
            clips.append(processed(self.processor, **passed, return_tensors="pt")[self.main])
        return Batch({self.main: self.move(torch.cat(clips))}, raw=tuple(raw), warnings=((),) * len(raw))

    def adopt(self, tensors: Any) -> Batch:
        batch = super().adopt(tensors)
        shape = tuple(required(batch, self.main).shape)
        if len(shape) != 5:
            raise BadInput(f"{self.main} has shape {shape}; expected (inputs, frames, channels, rows, columns).")
        return batch


class VideoPlace(BlockPlace):
    """Blocks of frames, rows and columns."""

    axes = (0, 2, 3)

    def _own(self, batch: Batch) -> Blocks:
        frames, _, height, width = batch.tensors[self.read.main].shape[1:]
        patch, tubelet = (getattr(self.read.config, name, None) for name in ("patch_size", "tubelet_size"))
        if isinstance(tubelet, (list, tuple)):  # (frames, rows, columns)
            tubelet, *patch = tubelet
        rows, columns = patch if isinstance(patch, (list, tuple)) else (patch, patch)
        along = [(frames, tubelet or 1), (height, rows or -(-height // SIDE)), (width, columns or -(-width // SIDE))]
        time, high, wide = (max(1, size // each) for size, each in along)
        return Blocks((time, 1, high, wide), self.axes)

    def _labels(self, batch: Batch, blocks: Blocks) -> list[str]:
        time, _, rows, columns = blocks.counts
        starts = blocks.starts(0, batch.tensors[self.read.main].shape[1])
        places = [f"patch {r},{c}" for r in range(1, rows + 1) for c in range(1, columns + 1)]
        return [f"frame {starts[t] + 1}, {place}" for t in range(time) for place in places]

    def _drawn(self, units: Units, batch: Batch, blocks: Blocks) -> Units:
        time, _, rows, columns = blocks.counts
        height, width = batch.tensors[self.read.main].shape[-2:]
        return replace(units, grid=(time * rows, columns), image_size=(time * height, width))

    def picture(self, batch: Batch, row: int) -> str | None:
        """Return the first frame of each block of time, one below the other."""
        blocks, video = self.blocks(batch), batch.tensors[self.read.main][row]
        assert blocks is not None
        frames = video[blocks.starts(0, len(video))].transpose(0, 1).flatten(1, 2)
        return ImageInput(self.read.model, self.read.processor).place.picture(Batch({"pixel_values": frames[None]}), 0)


VideoInput = Modality.of(VideoRead, VideoPlace, BlockMask)


class SeriesRead(Read):
    """One series per input; units are blocks of time, of each variable where the model reads them apart."""

    stream, main = "series", SERIES

    def encode(self, raw: Sequence[Raw]) -> Batch:
        series = [torch.as_tensor(np.asarray(one, dtype=np.float32)) for one in raw]
        if any(one.ndim not in (1, 2) for one in series):
            shape = next(tuple(one.shape) for one in series if one.ndim not in (1, 2))
            raise BadInput(f"the series has shape {shape}: pass an array of (steps,) or (steps, variables).")
        if len({tuple(one.shape) for one in series}) > 1:
            raise BadInput("series of different lengths cannot be explained together: pass them one by one.")
        return Batch({self.main: self.move(torch.stack(series))}, raw=tuple(raw), warnings=((),) * len(raw))


class SeriesPlace(BlockPlace):
    """Blocks of time, of each variable where the model reads them apart."""

    axes = (0, 1)

    def averaged_axes(self, batch: Batch) -> tuple[int, ...]:
        return (0,)  # the mean of each variable over time

    def _own(self, batch: Batch) -> Blocks:
        shape = batch.tensors[self.read.main].shape[1:]
        names = ("patch_length", "patch_size", "input_patch_length")
        each = next((n for name in names if isinstance(n := getattr(self.read.config, name, None), int)), None)
        counts = (max(1, shape[0] // each) if each else min(STEPS, shape[0]), *shape[1:2])
        return Blocks(counts, tuple(reversed(range(len(counts)))))  # variable by variable

    def _labels(self, batch: Batch, blocks: Blocks) -> list[str]:
        size = batch.tensors[self.read.main].shape[1]
        ends = [*blocks.starts(0, size), size]
        times = [f"t {a}–{b - 1}" if b - a > 1 else f"t {a}" for a, b in itertools.pairwise(ends)]
        if len(blocks.counts) < 2 or blocks.counts[1] == 1:
            return times
        if blocks.order[0] == 1:
            return [f"variable {v}, {time}" for v in range(blocks.counts[1]) for time in times]
        return [f"variable {v}, {time}" for time in times for v in range(blocks.counts[1])]

    def _drawn(self, units: Units, batch: Batch, blocks: Blocks) -> Units:
        if len(blocks.counts) < 2 or blocks.counts[1] == 1 or blocks.order[0] != 1:
            return units
        return replace(units, grid=(blocks.counts[1], blocks.counts[0]))


SeriesInput = Modality.of(SeriesRead, SeriesPlace, BlockMask)
