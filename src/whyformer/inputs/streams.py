"""Streams that are neither text nor image, and what kinds of input with several streams share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.errors import NotOffered, UnknownName
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch, Placed, Raw
from whyformer.inputs.stream_inputs import StreamInput
from whyformer.inputs.units import pick
from whyformer.types import Units


class VectorInput(Modality):
    """One vector per unit, given as a (B, N, D) tensor: regions of an image (boxes), or any sequence of features."""

    def __init__(
        self, model: nn.Module, main: str, stream: str = "image", word: str = "box", boxes: str | None = None
    ) -> None:
        super().__init__(model)
        self.main, self.stream, self.word, self.boxes = main, stream, word, boxes

    def encode(self, raw: Sequence[Raw]) -> Batch:
        raise NotOffered(f"{self.main} holds vectors that another model made: pass them as a tensor.")

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        keep_BN = self.keep(batch, length, front)
        places = None if self.boxes is None else batch.tensors.get(self.boxes)
        result = []
        for row in range(batch.size):
            real = keep_BN[row].nonzero()[:, 0].tolist()
            boxes = None
            if places is not None and places.ndim == 3 and places.shape[2] >= 4:
                boxes = tuple(tuple(float(x) for x in places[row, i, :4]) for i in real)
            labels = tuple(f"{self.word} {i}" for i in real)
            result.append(Units(labels, (False,) * len(real), (self.stream,) * len(real), boxes=boxes))
        return result

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        keep = torch.ones(batch.size, length, dtype=torch.bool, device=batch.tensors[self.main].device)
        for name, mask in batch.tensors.items():
            if name.startswith(("visual", "pixel")) and "mask" in name and mask.shape == keep.shape:
                return mask.bool()
        return keep

    @property
    def replacements(self) -> tuple[str, ...]:
        return ("zero", "mean")

    def without_unit(self, batch: Batch, row: int, units: Units, replacement: str) -> Batch:
        vectors = batch.tensors[self.main][row]
        real = self.keep(batch, len(vectors), None)[row].nonzero()[:, 0].tolist()
        if replacement not in self.replacements:
            raise UnknownName("replacement", replacement, self.replacements)
        filler = torch.zeros_like(vectors[0]) if replacement == "zero" else vectors[real].mean(0)
        changed = vectors.repeat(len(real), 1, 1)
        changed[range(len(real)), real] = filler
        return batch.select([row] * len(real)).with_tensors(**{self.main: changed})

    def stream_inputs(
        self, stream: str, layout: Mapping[str, slice], placed: Placed, whole: Modality
    ) -> list[StreamInput]:
        return [Vectors(placed, stream, self, layout[stream])]


class Vectors(StreamInput):
    """One vector per unit: regions of an image. Where they lie stays what it is."""

    vectors = True

    def __init__(self, placed: Placed, stream: str, part: VectorInput, positions: slice) -> None:
        super().__init__(placed, stream, part.main, positions)
        self.part = part

    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        real = numbers[self._real(row, numbers)]
        return real.amax(1) if largest else real.sum(1)

    def _real(self, row: int, numbers: Tensor) -> Tensor:
        return self.part.keep(self.placed.batch, len(numbers), None)[row]

    def kept(self, row: int, numbers: Tensor) -> Tensor:
        return self._real(row, numbers)[:, None]

    @property
    def fillers(self) -> tuple[str, ...]:
        return ("zero", "mean")

    def filled(self, row: int, numbers: Tensor, filler: str | int) -> Tensor:
        mean = numbers[self._real(row, numbers)].mean(0)
        return (mean if filler == "mean" else torch.zeros_like(mean)).expand_as(numbers)


def without_each(modality: Modality, batch: Batch, row: int, units: Units, replacement: str | int) -> Batch:
    """One input once per unit of any stream; ``replacement`` goes to the streams that have it (ids go to text)."""
    require_known(modality, replacement)
    variants: list[Batch] = []
    numbers: list[int] = []
    for stream in dict.fromkeys(units.stream):
        part, view = modality.part(stream, batch)
        members = [i for i, s in enumerate(units.stream) if s == stream]
        stream_units, numbers = pick(units, members), [*numbers, *members]
        changed = part.without_unit(view, row, stream_units, fitting(part, replacement))
        variants.append(batch.select([row] * changed.size).with_tensors(**changed.tensors))
    tensors = {k: torch.cat([v.tensors[k] for v in variants]) for k in batch.tensors}
    keep = [v.keep_BN for v in variants if v.keep_BN is not None]
    positions = tuple(p for v in variants for p in v.positions)
    by_stream = Batch(
        tensors,
        keep_BN=torch.cat(keep) if keep else None,
        constants=batch.constants,
        positions=positions,
        encodings=tuple(e for v in variants for e in v.encodings) if modality.objects else (),
    )
    return by_stream.select(sorted(range(len(units)), key=numbers.__getitem__))


def require_known(modality: Modality, replacement: str | int) -> None:
    """At least one stream has to have the replacement; a word that none has would be passed over in silence."""
    if isinstance(replacement, str) and replacement not in modality.replacements:
        raise UnknownName("replacement", replacement, modality.replacements, "A token id (an integer) works too.")


def fitting(part: Modality, replacement: str | int) -> Any:
    """The replacement that was asked for where this stream has it, else its own first one that keeps the length."""
    offered = [r for r in part.replacements if r not in {"delete", "attention_mask"}]
    if part.embeds:
        if isinstance(replacement, int) or replacement in offered:
            return replacement
        return offered[0] if offered else 0  # no tokenizer, no config: the first token of the vocabulary
    return replacement if replacement in offered or not offered else offered[0]
