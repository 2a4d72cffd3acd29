"""Streams that are neither text nor image, and what kinds of input with several streams share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.errors import NotOffered, UnknownName
from whyformer.inputs.base import Batch, Modality, Raw
from whyformer.inputs.text import TextInput
from whyformer.types import Units

# Units of several streams laid end to end.


def joined(parts: Sequence[Units]) -> Units:
    """Units end to end. Words are numbered on; a grid, a text and its spans are kept where only one part has them."""
    texts = [p for p in parts if p.text is not None]
    grids = [p for p in parts if p.grid is not None]
    text = texts[0] if len(texts) == 1 else None
    grid = grids[0] if len(grids) == 1 else None
    word: list[int] = []
    for part in parts:
        offset = max(word, default=-1) + 1
        word += [w + offset if w >= 0 else -1 for w in part.word] if part.word else [-1] * len(part)
    spans: list[tuple[int, int]] = []
    for part in parts:
        spans += list(part.spans) if part is text and part.spans else [(0, 0)] * len(part)
    boxes: list[tuple[float, ...]] = []
    for part in parts:
        boxes += list(part.boxes) if part.boxes else [(0.0, 0.0, 0.0, 0.0)] * len(part)
    return Units(
        labels=tuple(label for p in parts for label in p.labels),
        special=tuple(s for p in parts for s in p.special),
        stream=tuple(s for p in parts for s in p.stream),
        grid=None if grid is None else grid.grid,
        image_size=None if grid is None else grid.image_size,
        picture_size=None if grid is None else grid.picture_size,
        word=tuple(word) if any(p.word for p in parts) else None,
        spans=tuple(spans) if text is not None and text.spans else None,
        text=None if text is None else text.text,
        boxes=tuple(boxes) if any(p.boxes for p in parts) else None,
    )


# Streams that are neither text nor image, and what modalities with several streams share.


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


class LearnedPositions(Modality):
    """Positions that the model brings itself (object queries, a pooling probe): shown, and flagged as special."""

    def __init__(self, model: nn.Module, main: str, stream: str = "queries", word: str = "query") -> None:
        super().__init__(model)
        self.main, self.stream, self.word = main, stream, word

    def encode(self, raw: Sequence[Raw]) -> Batch:
        raise NotOffered("these positions are the model's own and are not given.")

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        labels = tuple(f"[{self.word} {i}]" for i in range(length))
        plain = Units(labels, (True,) * length, (self.stream,) * length)
        return [replace(plain, boxes=_boxes(batch, row, length)) for row in range(batch.size)]

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        return torch.ones(batch.size, length, dtype=torch.bool, device=batch.tensors[self.main].device)

    def without_unit(self, batch: Batch, row: int, units: Units, replacement: str) -> Batch:
        return batch.select([row] * len(units))


def _boxes(batch: Batch, row: int, length: int) -> tuple[tuple[float, ...], ...] | None:
    """Where a detector's queries put what they found."""
    facts = batch.encodings[row] if batch.encodings else None
    boxes = facts.get("boxes") if isinstance(facts, dict) else None
    return boxes if boxes is not None and len(boxes) == length else None


def without_each(modality: Modality, batch: Batch, row: int, units: Units, replacement: str | int) -> Batch:
    """One input once per unit of any stream; ``replacement`` goes to the streams that have it (ids go to text)."""
    require_known(modality, replacement)
    variants: list[Batch] = []
    numbers: list[int] = []
    for stream in dict.fromkeys(units.stream):
        part, view = modality.part(stream, batch)
        members = [i for i, s in enumerate(units.stream) if s == stream]
        own, numbers = pick(units, members), [*numbers, *members]
        changed = part.without_unit(view, row, own, fitting(part, replacement))
        variants.append(batch.select([row] * changed.size).with_tensors(**changed.tensors))
    tensors = {k: torch.cat([v.tensors[k] for v in variants]) for k in batch.tensors}
    keep = [v.keep_BN for v in variants if v.keep_BN is not None]
    positions = tuple(p for v in variants for p in v.positions)
    by_stream = Batch(
        tensors, keep_BN=torch.cat(keep) if keep else None, constants=batch.constants, positions=positions
    )
    return by_stream.select(sorted(range(len(units)), key=numbers.__getitem__))


def require_known(modality: Modality, replacement: str | int) -> None:
    """At least one stream has to have the replacement; a word that none has would be passed over in silence."""
    if isinstance(replacement, str) and replacement not in modality.replacements:
        raise UnknownName("replacement", replacement, modality.replacements, "A token id (an integer) works too.")


def fitting(part: Modality, replacement: str | int) -> Any:
    """The replacement that was asked for where this stream has it, else its own first one that keeps the length."""
    offered = [r for r in part.replacements if r not in {"delete", "attention_mask"}]
    if isinstance(part, TextInput):
        if isinstance(replacement, int) or replacement in offered:
            return replacement
        return offered[0] if offered else 0  # no tokenizer, no config: the first token of the vocabulary
    return replacement if replacement in offered or not offered else offered[0]


def pick(units: Units, index: list[int]) -> Units:
    """Some of the units."""

    def of(values: Any) -> Any:
        return None if values is None else tuple(values[i] for i in index)

    return Units(
        of(units.labels), of(units.special), of(units.stream), units.grid, of(units.word), of(units.spans), units.text,
        units.image_size, of(units.boxes),
    )  # fmt: skip
