"""Sound: frames of a waveform or spectrogram."""

from __future__ import annotations

import wave
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, MissingProcessor, NotOffered, UnknownName
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch, Placed, Raw
from whyformer.inputs.stream_inputs import StreamInput
from whyformer.inputs.units import assemble
from whyformer.paths import readable_file
from whyformer.types import Units


class AudioInput(Modality):
    """One clip per input; units are the frames the model attends over, labelled with their time where it is known."""

    stream = "audio"

    def __init__(self, model: nn.Module, processor: Any = None, main: str = "input_values") -> None:
        super().__init__(model, processor)
        self.main = main

    @property
    def _extractor(self) -> Any:
        return getattr(self.processor, "feature_extractor", self.processor)

    def encode(self, raw: Sequence[Raw]) -> Batch:
        if self.processor is None:
            raise MissingProcessor(
                "sound needs the model's processor: pass processor=AutoProcessor.from_pretrained(…), or give tensors "
                f"({{'{self.main}': …}}) instead."
            )
        rate = int(getattr(self._extractor, "sampling_rate", 16000))
        clips = [clip_of(r, rate) for r in raw]
        options = {"padding": True} if self.main == "input_values" else {}
        encoded = self._extractor(clips, sampling_rate=rate, return_tensors="pt", **options)
        tensors = {k: self.move(v) for k, v in encoded.items() if k in self.parameters}
        if "attention_mask" not in tensors and len({len(c) for c in clips}) > 1 and self.main == "input_values":
            raise NotOffered(
                "clips of different length are padded, and this processor gives no mask: explain them one by one, or "
                "build the processor with return_attention_mask=True."
            )
        return Batch(tensors, raw=tuple(clips), warnings=((),) * len(clips))

    def adopt(self, tensors: Any) -> Batch:
        batch = super().adopt(tensors)
        if self.main not in batch.tensors:
            raise UnknownName("tensor name", ", ".join(batch.tensors), [self.main], f"{self.main} is missing.")
        return batch

    def _seconds(self, batch: Batch, length: int) -> float | None:
        """Seconds per frame: the clip's length over the number of frames."""
        rate = getattr(self._extractor, "sampling_rate", None)
        if rate is None:
            return None
        samples = batch.tensors[self.main].shape[-1]
        if self.main == "input_features":
            samples *= getattr(self._extractor, "hop_length", 160)
        return float(samples / rate / length)

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        step = self._seconds(batch, length)
        result = []
        for keep in self.keep(batch, length, front):
            count = int(keep.sum())
            labels = [f"frame {i}" if step is None else f"{i * step:.2f}s" for i in range(count)]
            result.append(assemble(labels, [False] * count, self.stream, 0, front))
        return result

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        """(B, length) frames that hold sound, where the model knows how samples become frames."""
        keep = torch.ones(batch.size, length, dtype=torch.bool, device=batch.tensors[self.main].device)
        mask = batch.tensors.get("attention_mask")
        reduce = next(
            (m._get_feature_vector_attention_mask for m in self.model.modules()
             if callable(getattr(m, "_get_feature_vector_attention_mask", None))),
            None,
        )  # fmt: skip
        if mask is None or reduce is None:
            return keep
        reduced: Tensor = reduce(length, mask)  # type: ignore[operator]
        return reduced.bool()

    @property
    def replacements(self) -> tuple[str, ...]:
        return ("zero", "mean")

    def without_unit(self, batch: Batch, row: int, units: Units, replacement: str) -> Batch:
        """Silence, one frame at a time: the samples (or columns) that a frame covers."""
        if replacement not in self.replacements:
            raise UnknownName("replacement", replacement, self.replacements)
        sound, edges = batch.tensors[self.main][row], self.edges(batch, row, len(units))
        changed = sound.repeat(len(units), *[1] * sound.ndim)
        filler = 0.0 if replacement == "zero" else sound[..., : edges[-1]].mean(-1, keepdim=True)
        for i in range(len(units)):
            changed[i, ..., edges[i] : edges[i + 1]] = filler
        return batch.select([row] * len(units)).with_tensors(**{self.main: changed})

    def stream_inputs(
        self, stream: str, layout: Mapping[str, slice], placed: Placed, whole: Modality
    ) -> list[StreamInput]:
        return [Frames(placed, stream, self, layout[stream])]

    def edges(self, batch: Batch, row: int, count: int) -> list[int]:
        """Where each of ``count`` frames of one clip begins, in samples or columns, and where the last one ends."""
        samples = batch.tensors[self.main].shape[-1]
        mask = batch.tensors.get("attention_mask")
        real = int(mask[row].sum()) if mask is not None and mask.shape[1] == samples else samples
        return [round(i * real / count) for i in range(count + 1)]


class Frames(StreamInput):
    """Sound: the samples, or columns of a spectrogram, that each frame covers."""

    def __init__(self, placed: Placed, stream: str, part: AudioInput, positions: slice) -> None:
        super().__init__(placed, stream, part.main, positions)
        self.part = part

    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        edges = self.part.edges(self.placed.batch, row, len(self.units(row)))
        flat = numbers.flatten(0, -2) if numbers.ndim > 1 else numbers[None]
        spans = [flat[:, start:end] for start, end in pairwise(edges)]
        zero = flat.new_zeros(())
        return torch.stack([s.sum() if not largest else s.amax() if s.numel() else zero for s in spans])

    def kept(self, row: int, numbers: Tensor) -> Tensor:
        last = self.part.edges(self.placed.batch, row, 1)[-1]
        return torch.arange(numbers.shape[-1], device=numbers.device) < last

    @property
    def fillers(self) -> tuple[str, ...]:
        return ("zero", "mean")

    def filled(self, row: int, numbers: Tensor, filler: str | int) -> Tensor:
        last = self.part.edges(self.placed.batch, row, 1)[-1]
        mean = numbers[..., :last].mean(-1, keepdim=True)
        return (mean if filler == "mean" else torch.zeros_like(mean)).expand_as(numbers)


def clip_of(raw: Raw, rate: int) -> np.ndarray[Any, Any]:
    """Mono float samples at ``rate``: an array, (array, rate), or the path of a .wav file."""
    if isinstance(raw, (str, Path)):
        raw = _wav(readable_file(raw, "sound", "clip"))
    if isinstance(raw, tuple):
        samples, clip_rate = raw
        if int(clip_rate) != rate:
            raise BadInput(f"the clip has {clip_rate} samples a second and the model wants {rate}: resample it first.")
        raw = samples
    samples = np.asarray(raw, np.float32)
    if samples.ndim != 1 or not len(samples):
        raise BadInput(f"expected one row of samples (mono), got an array of shape {samples.shape}.")
    return samples


def _wav(path: Path) -> tuple[np.ndarray[Any, Any], int]:
    try:
        with wave.open(str(path)) as file:
            if file.getsampwidth() != 2:
                raise BadInput(f"{str(path)!r}: only 16-bit .wav files are read; pass an array of samples instead.")
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
            return samples.reshape(-1, file.getnchannels()).mean(1), file.getframerate()
    except BadInput:
        raise
    except Exception as error:  # a file that was cut off or changed ends in errors of wave, struct or numpy
        raise BadInput(f"{str(path)!r} cannot be read as .wav ({error}): pass an array of samples instead.") from error
