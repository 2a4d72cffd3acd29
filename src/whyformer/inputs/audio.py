"""Sound: frames of a waveform or spectrogram, or patches of time and frequency."""

from __future__ import annotations

import inspect
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.capture.roles import first_values
from whyformer.errors import BadInput, MissingProcessor, NotOffered, reading, shown
from whyformer.files import readable_file
from whyformer.inputs.base import Mask, Modality, Place, Read
from whyformer.inputs.batch import Batch, Filling, Placed, Raw, SamplePool, required
from whyformer.inputs.checkpoint import processed
from whyformer.inputs.stream_inputs import Layout, StreamInput
from whyformer.loan.borrow import borrowed, known_about, module_names
from whyformer.results.types import Units

Grid = tuple[int, int]

# The axes of time and frequency are found by changing slices of the tensor, and by which positions change then.
MOVED = 0.1  # of the largest change: a position that changes less does not hold the slice
ALL_OF_THEM = 0.75  # a slice that changes so many positions is not a step: a band of mel reaches every frame


@dataclass(frozen=True)
class SoundLayout:
    """The axes of one input's tensor, without the batch axis."""

    time: int
    positions: int  # of the first attention
    bands: int | None = None  # the axis of frequencies, if patches divide it, too (AST)
    grid: Grid | None = None  # rows of bands by columns of steps in time, in the order of positions
    added: frozenset[int] = frozenset()  # positions of the model's own ([CLS], [DIST])

    @property
    def unplaced(self) -> bool:
        """Whether positions hold time and frequency in an unknown order."""
        return self.bands is not None and self.grid is None


def likely_time(shape: torch.Size, bands: int | None) -> int:
    """Return the axis whose length is not the number of bands; else the longest."""
    others = [axis for axis, size in enumerate(shape) if size != bands] if bands in shape else []
    return max(others or range(len(shape)), key=lambda axis: (shape[axis], axis))


def layout_of(
    sound: Tensor, values_at: Callable[[Tensor], Tensor], grid: Grid | None, bands: int | None
) -> SoundLayout:
    """Find the layout of one input's tensor (without the batch axis) in 4 passes.

    values_at: (positions, numbers) the values of the first attention. grid: of the model's patch embedding.
    """
    before = values_at(sound)
    length, other = len(before), _other(sound)
    heard = _moved(before, values_at(other), 0.0)
    added = frozenset((~heard).nonzero()[:, 0].tolist())
    axes = [axis for axis, size in enumerate(sound.shape) if size > 1]
    reached: dict[int, list[int]] = {}
    for axis in axes:
        changed = sound.clone()
        middle = sound.shape[axis] // 2
        changed.select(axis, middle).copy_(other.select(axis, middle))
        reached[axis] = _moved(before, values_at(changed), MOVED).nonzero()[:, 0].tolist()
    share = {axis: len(moved) / max(1, length - len(added)) for axis, moved in reached.items()}
    split = [axis for axis in axes if share[axis] <= ALL_OF_THEM]
    likely = likely_time(sound.shape, bands)
    if len(split) < 2 or len(axes) > 2:
        alone = min(axes, key=lambda axis: (share[axis], axis != likely), default=likely)
        return SoundLayout(alone if split else likely, length, added=added)
    bands_axis = next(axis for axis in split if axis != likely)
    # Where time runs along the rows of the grid, the positions that one step changes are in the same columns.
    if grid is None or grid[0] * grid[1] != length - len(added):
        return SoundLayout(likely, length, bands_axis, None, added)
    order = {position: i for i, position in enumerate(p for p in range(length) if p not in added)}
    columns = {order[p] % grid[1] for p in reached[likely]}
    rows = {order[p] // grid[1] for p in reached[likely]}
    along_rows = len(columns) / grid[1] < len(rows) / grid[0]
    return SoundLayout(likely, length, bands_axis, grid if along_rows else None, added)


def _other(sound: Tensor) -> Tensor:
    """Shift every number up or down at random: a constant shift would be undone where models normalise."""
    up = torch.rand(sound.shape, generator=torch.Generator().manual_seed(0)).to(sound.device) > 0.5
    return sound + torch.where(up, 1.0, -1.0).to(sound) * sound.std(correction=0).clamp_min(1e-3)


def _moved(before_KD: Tensor, after_KD: Tensor, least: float) -> Tensor:
    change_K = (after_KD - before_KD).float().norm(dim=-1)
    return change_K > least * change_K.max()


WAVE = 240  # steps of a waveform that is drawn


class AudioRead(Read):
    """One clip per input; units are frames, labelled with their time, or patches of time and frequency (AST)."""

    stream = "audio"

    def __init__(self, model: nn.Module, processor: Any = None, main: str = "input_values") -> None:
        super().__init__(model, processor)
        self.main = main

    @property
    def extractor(self) -> Any:
        return getattr(self.processor, "feature_extractor", self.processor)

    def encode(self, raw: Sequence[Raw]) -> Batch:
        if self.processor is None:
            raise MissingProcessor(
                "sound needs the model's processor: pass processor=AutoProcessor.from_pretrained(…), or give tensors "
                f"({{'{self.main}': …}}) instead."
            )
        rate = int(getattr(self.extractor, "sampling_rate", 16000))
        clips = [clip_of(r, rate) for r in raw]
        padding = inspect.signature(self.extractor.__call__).parameters.get("padding")
        pads = self.main == "input_values" or (padding is not None and padding.default is False)
        options = {"padding": True} if pads else {}
        encoded = processed(self.extractor, clips, sampling_rate=rate, return_tensors="pt", **options)
        tensors = {k: self.move(v) for k, v in encoded.items() if k in self.parameters}
        waves = tensors[self.main].ndim == 2  # spectrograms of one length (AST, Whisper) hold silence in any case
        if "attention_mask" not in tensors and len({len(c) for c in clips}) > 1 and waves:
            raise NotOffered(
                "clips of different length are padded, and this processor gives no mask: explain them one by one, or "
                "build the processor with return_attention_mask=True."
            )
        return Batch(tensors, raw=tuple(clips), warnings=((),) * len(clips))

    def adopt(self, tensors: Any) -> Batch:
        batch = super().adopt(tensors)
        required(batch, self.main)
        return batch


class AudioPlace(Place):
    """Frames, or patches of time and frequency."""

    read: AudioRead

    def _bands(self) -> int | None:
        """Return the number of frequencies of a spectrogram, from the config or the processor."""
        names = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")
        counts = [getattr(self.read.config, name, None) for name in names]
        counts += [getattr(self.read.extractor, "num_mel_bins", None)]
        return next((int(count) for count in counts if isinstance(count, int)), None)

    def settle(self, one: Batch, grid: Grid | None) -> int:
        sound = one.tensors[self.read.main]
        if sound.ndim < 3:
            return 0
        facts, key = known_about(self.read.model), self._key(one)
        if key in facts:
            return 0
        names, passes = module_names(self.read.model), 0

        def values_at(other: Tensor) -> Tensor:
            nonlocal passes
            passes += 1
            changed = one.with_tensors(**{self.read.main: other[None]})
            with borrowed(self.read.model):
                return first_values(lambda: self.read.call(changed), names)[0].transpose(0, 1).flatten(1)

        facts[key] = layout_of(sound[0], values_at, grid, self._bands())
        return passes

    def _key(self, batch: Batch) -> tuple[Any, ...]:
        return "where time lies", self.read.main, tuple(batch.tensors[self.read.main].shape[1:])

    def layout(self, batch: Batch, length: int | None = None) -> SoundLayout:
        """Return the layout that was found; without it, the likely one by the shape of the tensor."""
        layout: SoundLayout | None = known_about(self.read.model).get(self._key(batch))
        if layout is not None and length in (None, layout.positions):
            return layout
        shape = batch.tensors[self.read.main].shape[1:]
        return SoundLayout(likely_time(shape, self._bands()), shape.numel() if length is None else length)

    def length(self, batch: Batch) -> int:
        return batch.tensors[self.read.main].shape[1 + self.layout(batch).time]

    def in_steps(self, numbers: Tensor, batch: Batch, length: int) -> bool:
        layout = self.layout(batch, length)
        return numbers.ndim == 3 and layout.time == 0 and numbers.shape[1] == length and layout.bands is None

    def _seconds(self, batch: Batch) -> float | None:
        """Return the seconds of one sample, or of one step of a spectrogram."""
        rate = getattr(self.read.extractor, "sampling_rate", None)
        hop = 1 if batch.tensors[self.read.main].ndim == 2 else getattr(self.read.extractor, "hop_length", None)
        return None if rate is None or hop is None else float(hop / rate)

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        layout, result = self.layout(batch, length), []
        for row, keep in enumerate(self.keep(batch, length, front)):
            added = [position in layout.added for position in keep.nonzero()[:, 0].tolist()]
            parts = iter(self._labels(batch, row, layout, added.count(False)))
            names = iter(["[CLS]", "[DIST]", *(f"[EXTRA{i}]" for i in range(2, len(added)))])  # as AST calls them
            labels = tuple(next(names) if special else next(parts) for special in added)
            units = Units(labels, tuple(added), (self.read.stream,) * len(added))
            if layout.grid is not None:
                shape = batch.tensors[self.read.main].shape[1:]
                size = (shape[layout.bands or 0], shape[layout.time])
                units = replace(units, grid=layout.grid, image_size=size)
            elif not layout.unplaced:
                units = replace(units, **self._heard(batch, row))
            result.append(units)
        return result

    def _heard(self, batch: Batch, row: int) -> dict[str, Any]:
        """Return the length of the clip in seconds, and its loudness; what a spectrogram appends is silent."""
        seconds = self._seconds(batch)
        if seconds is None:
            return {}
        total = self.edges(batch, row, 1)[-1] * seconds
        rate = int(getattr(self.read.extractor, "sampling_rate", 0))
        if not batch.raw or not rate or not isinstance(batch.raw[row], np.ndarray):
            return {"seconds": total}
        return {"seconds": total, "wave": loudness(batch.raw[row], round(total * rate))}

    def _labels(self, batch: Batch, row: int, layout: SoundLayout, count: int) -> list[str]:
        if layout.unplaced:
            return [f"position {i}" for i in range(count)]
        seconds = self._seconds(batch)
        steps = count if layout.grid is None else layout.grid[1]
        if seconds is None:
            # A patch is named by the first frame in it, as there are more frames than patches.
            starts = range(count) if layout.grid is None else self.edges(batch, row, steps)
            times = [f"frame {start}" for start in list(starts)[:steps]]
        else:
            size = batch.tensors[self.read.main].shape[1 + layout.time]
            # How many steps there would be if padding at the end had some, too.
            in_all = steps * size / max(1, self.edges(batch, row, 1)[-1])
            times = [f"{i * size * seconds / in_all:.2f}s" for i in range(steps)]
        if layout.grid is None:
            return times
        bands = _edges(batch.tensors[self.read.main].shape[1 + (layout.bands or 0)], layout.grid[0])
        return [f"{time} mel {low}–{high - 1}" for low, high in pairwise(bands) for time in times]

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        """(B, length) frames that hold sound, where the model can convert a mask of samples."""
        keep = super().keep(batch, length, front)
        mask = batch.tensors.get("attention_mask")
        if mask is not None and mask.shape == keep.shape:
            return mask.bool()
        converters = (getattr(m, "_get_feature_vector_attention_mask", None) for m in self.read.model.modules())
        reduce: Any = next(filter(callable, converters), None)
        if mask is None or reduce is None:
            return keep
        reduced: Tensor = reduce(length, mask)
        return reduced.bool()

    def edges(self, batch: Batch, row: int, count: int) -> list[int]:
        """Return where each of ``count`` frames of one clip begins, in samples or columns, and the last one ends."""
        samples = batch.tensors[self.read.main].shape[1 + self.layout(batch).time]
        mask = batch.tensors.get("attention_mask")
        real = int(mask[row].sum()) if mask is not None and mask.shape[1] == samples else samples
        return _edges(real, count)


class AudioMask(Mask):
    """Silence, or the mean over time, stands in place of masked frames."""

    place: AudioPlace

    replacements = ("zero", "mean")

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        """Return the frame of each sample or column."""
        sound = one.tensors[self.read.main][0]
        owner = torch.full(sound.shape, -1, device=sound.device)
        for unit, region in enumerate(self.regions(one, 0, units)):
            if region is not None:
                owner[region] = unit
        return {self.read.main: owner}

    def filling(self, name: Any, units: Units, one: Batch, pool: SamplePool | None = None) -> list[Filling]:
        """Return zeros, or the clip's mean over time."""
        self.require_replacement(name)
        sound, time = one.tensors[self.read.main], self.place.layout(one).time
        mean = sound[0].narrow(time, 0, self.place.edges(one, 0, 1)[-1]).mean(time, keepdim=True)
        return [{self.read.main: (mean if name == "mean" else torch.zeros_like(mean)).expand_as(sound)}]

    def regions(self, batch: Batch, row: int, units: Units) -> list[tuple[slice, ...] | None]:
        """Return the part of one clip's tensor that each unit covers; None for the model's own tokens."""
        layout = self.place.layout(batch)
        if layout.unplaced:
            raise NotOffered(
                f"the model attends over {layout.positions} patches of time and frequency in an unknown order, so they "
                "cannot be masked."
            )
        shape = batch.tensors[self.read.main].shape[1:]
        axis = 0 if layout.bands is None else layout.bands
        rows, columns = layout.grid or (1, list(units.special).count(False))
        parts: list[tuple[slice, ...]] = []
        for low, high in pairwise(_edges(shape[axis], rows)):
            for start, end in pairwise(self.place.edges(batch, row, columns)):
                part = [slice(None)] * len(shape)
                part[axis] = slice(low, high)  # all of it, without a grid
                part[layout.time] = slice(start, end)
                parts.append(tuple(part))
        each = iter(parts)
        return [None if special else next(each) for special in units.special]

    def stream_inputs(self, stream: str, layout: Layout, placed: Placed, whole: Modality | None) -> list[StreamInput]:
        return [Frames(placed, stream, self, layout[stream])]


AudioInput = Modality.of(AudioRead, AudioPlace, AudioMask)


def loudness(clip: np.ndarray[Any, Any], samples: int) -> tuple[float, ...]:
    """Return the largest amplitude in each of WAVE even steps, as a share of the largest of all."""
    heard = np.zeros(max(1, samples), np.float32)
    part = np.abs(clip[: len(heard)])
    heard[: len(part)] = part
    steps = np.array([piece.max() for piece in np.array_split(heard, min(WAVE, len(heard)))])
    return tuple(round(float(step), 3) for step in steps / (steps.max() or 1.0))


def _edges(size: int, count: int) -> list[int]:
    return [round(i * size / count) for i in range(count + 1)]


class Frames(StreamInput):
    """Sound: the samples, or columns of a spectrogram, that each frame covers."""

    fillers = ("zero", "mean")

    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        zero = numbers.new_zeros(())
        scores = []
        for region in self.part.regions(self.placed.batch, row, self.units(row)):
            part = zero if region is None else numbers[region]
            scores.append(part.sum() if not largest else part.amax() if part.numel() else zero)
        return torch.stack(scores)

    def counted(self, row: int, numbers: Tensor) -> Tensor:
        time = self.part.place.layout(self.placed.batch).time
        last = self.part.place.edges(self.placed.batch, row, 1)[-1]
        shape = [-1 if axis == time else 1 for axis in range(numbers.ndim)]
        return (torch.arange(numbers.shape[time], device=numbers.device) < last).view(shape)


def clip_of(raw: Raw, rate: int) -> np.ndarray[Any, Any]:
    """Return mono float samples at ``rate`` of an array, (array, rate), or the path of a .wav file."""
    if isinstance(raw, (str, Path)):
        path = readable_file(raw, "sound", "clip")
        # A file that was cut off or changed ends in errors of wave, struct or numpy.
        with (
            reading(f"{str(path)!r} cannot be read as .wav", "Pass an array of samples instead."),
            wave.open(str(path)) as file,
        ):
            if file.getsampwidth() != 2:
                raise BadInput(f"{str(path)!r}: only 16-bit .wav files are read; pass an array of samples instead.")
            sound = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
            raw = sound.reshape(-1, file.getnchannels()).mean(1), file.getframerate()
    if isinstance(raw, tuple):
        if len(raw) != 2:
            raise BadInput(f"a clip with its rate is a pair, (samples, rate), and this has {len(raw)} entries.")
        samples, clip_rate = raw
        if not isinstance(clip_rate, Real) or clip_rate != rate:
            raise BadInput(f"the clip has {clip_rate} samples a second and the model needs {rate}: resample it first.")
        raw = samples
    try:
        plain = np.asarray(raw)
    except (TypeError, ValueError):  # lists of different length
        plain = np.array(None)
    if plain.dtype.kind not in "fiu":
        raise BadInput(
            f"a sound is samples, real numbers, and this is {shown(raw)}: give an array, (array, rate) or a .wav."
        )
    samples = plain.astype(np.float32)
    if samples.ndim != 1 or not len(samples):
        raise BadInput(f"expected one row of samples (mono), got an array of shape {samples.shape}.")
    if not np.isfinite(samples).all():
        raise BadInput(f"sample {int(np.argmax(~np.isfinite(samples)))} of the clip is NaN or infinite.")
    return samples
