"""The similarity of two texts, and what modalities of several streams share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch, Filling, Placed, Raw, SamplePool
from whyformer.inputs.families import SIDES
from whyformer.inputs.stream_inputs import Layout, StreamInput, Vectors
from whyformer.inputs.text import TextInput
from whyformer.inputs.units import pick
from whyformer.results.types import Units


class VectorInput(Modality):
    """Vectors of regions of an image, given as a (B, N, D) tensor. boxes: the argument with their coordinates."""

    stream = "image"

    def __init__(self, model: nn.Module, main: str, word: str = "box", boxes: str | None = None) -> None:
        super().__init__(model)
        self.main, self.word, self.boxes = main, word, boxes

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

    def filling(self, name: Any, units: Units, one: Batch, pool: SamplePool | None = None) -> list[Filling]:
        if name != "mean":
            return super().filling(name, units, one, pool)
        vectors = one.tensors[self.main][0]
        return [{self.main: vectors[self.keep(one, len(vectors), None)[0]].mean(0).expand(1, *vectors.shape)}]

    def stream_inputs(self, stream: str, layout: Layout, placed: Placed, whole: Modality) -> list[StreamInput]:
        return [Vectors(placed, stream, self, layout[stream])]


class StreamsInput(Modality):
    """Several streams, each of them masked by its own modality. Abstract, a mixin."""

    multi_input = True

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        return owners_by_stream(self, units, one)

    def filling(self, name: Any, units: Units, one: Batch, pool: SamplePool | None = None) -> list[Filling]:
        if pool is not None:
            return super().filling(name, units, one, pool)
        return filling_by_stream(self, name, units, one)


def _streams(modality: Modality, units: Units, one: Batch) -> Iterator[tuple[Modality, Batch, list[int], Units]]:
    """Yield the modality of each stream, the input as it reads it, and the numbers and names of its units."""
    for stream in dict.fromkeys(units.stream):
        members = [i for i, s in enumerate(units.stream) if s == stream]
        yield *modality.part(stream, one), members, pick(units, members)


def owners_by_stream(modality: Modality, units: Units, one: Batch) -> dict[str, Tensor]:
    """Return the unit of each entry, of all streams."""
    owners = {}
    for part, view, members, own in _streams(modality, units, one):
        for name, owner in part.owners(own, view).items():
            owners[name] = torch.tensor([*members, -1], device=owner.device)[owner]  # -1 stays
    return owners


def filling_by_stream(modality: Modality, name: str | int, units: Units, one: Batch) -> list[Filling]:
    """Return the baseline of all streams; ``name`` goes to those that have it (ids go to text)."""
    require_known(modality, name)
    filling: Filling = {}
    for part, view, _, own in _streams(modality, units, one):
        filling |= part.filling(fitting(part, name), own, view)[0]
    return [filling]


def require_known(modality: Modality, replacement: str | int) -> None:
    """Raise if no stream has the replacement: it would be ignored."""
    if isinstance(replacement, str) and replacement not in modality.replacements:
        raise UnknownName("replacement", replacement, modality.replacements, "A token id (an integer) works too.")


def fitting(part: Modality, replacement: str | int) -> Any:
    """Return the replacement that was asked for if this stream has it, else its first one that keeps the length."""
    offered = [r for r in part.replacements if r not in {"delete", "attention_mask"}]
    if part.embeds:
        if isinstance(replacement, int) or replacement in offered:
            return replacement
        return offered[0] if offered else 0  # no tokenizer, no config: the first token of the vocabulary
    return replacement if replacement in offered or not offered else offered[0]


class SimilarityInput(StreamsInput, TextInput):
    """A pair of texts per input; units are the tokens of both, and the cosine of their two vectors is explained.

    The vector of a text is the model's own (``sentence_embedding``, ``text_embeds``), else the mean of its last hidden
    states over real tokens. Tensors are named ``a_input_ids``, ``b_input_ids``, and so on.
    """

    compares = True
    stream = "a"

    def __init__(self, model: nn.Module, processor: Any = None) -> None:
        processor = processor if processor is not None else getattr(model, "tokenizer", None)
        super().__init__(model, processor, main="a_input_ids")
        self._sides = {side: TextInput(model, processor, main=f"{side}_input_ids") for side in SIDES}
        self._plain = TextInput(model, processor)

    def scalar(self, scalar: str) -> str:
        if scalar not in {"logit", "cosine"}:
            raise BadInput(f"scalar={scalar!r}: the similarity of two texts is explained as scalar='cosine'.")
        return "cosine"

    # Inputs

    def encode(self, raw: Sequence[Raw]) -> Batch:
        for pair in raw:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise BadInput(f"expected a pair of texts, got {type(pair).__name__}: {str(pair)[:60]!r}")
        encoded = {side: self._plain.encode([pair[i] for pair in raw]) for i, side in enumerate(SIDES)}
        tensors = {f"{side}_{k}": v for side, batch in encoded.items() for k, v in batch.tensors.items()}
        for side, batch in encoded.items():
            tensors.setdefault(f"{side}_attention_mask", batch.real_BN.long())
        facts = zip(*(batch.encodings for batch in encoded.values()), strict=True)
        warnings = zip(*(batch.warnings for batch in encoded.values()), strict=True)
        return Batch(
            tensors,
            raw=tuple(tuple(p) for p in raw),
            warnings=tuple((*a, *b) for a, b in warnings),
            encodings=tuple({"a": a, "b": b} for a, b in facts),
        )

    def adopt(self, tensors: Any) -> Batch:
        named = {k: self.move(v) for k, v in dict(tensors).items()}
        missing = [f"{side}_input_ids" for side in SIDES if f"{side}_input_ids" not in named]
        if missing:
            raise BadInput(f"two texts are given as a_input_ids and b_input_ids (with masks); missing: {missing}.")
        for side in SIDES:
            named.setdefault(f"{side}_attention_mask", torch.ones_like(named[f"{side}_input_ids"]))
        return Batch(named)

    def inputs(self, batch: Batch) -> list[tuple[Tensor, str]]:
        return [(batch.tensors[f"{side}_input_ids"], side) for side in SIDES]

    # Outputs

    def call(self, batch: Batch, **extra: Any) -> Any:
        return tuple(self._read(batch, side, **extra) for side in SIDES)

    def _read(self, batch: Batch, side: str, **extra: Any) -> tuple[Tensor, Tensor | None]:
        """(B, D) the text's vector, and (B, N, D) shares of its tokens where it is their mean."""
        tensors = {k.removeprefix(f"{side}_"): v for k, v in batch.tensors.items() if k.startswith(f"{side}_")}
        if "input_ids" in self.parameters:
            output = self.run_model(batch, **tensors, **extra)
        else:
            output = self.run_model(batch, dict(tensors))
        known = [output[k] for k in ("sentence_embedding", "text_embeds") if k in output]
        mask = tensors["attention_mask"]
        hidden = next((output[k] for k in ("last_hidden_state", "token_embeddings") if k in output), None)
        if hidden is None and not known:
            raise NotOffered("the model returns neither token vectors nor a vector of the text: it cannot be compared.")
        shares = None
        if hidden is not None:
            weights = mask.to(hidden.dtype) / mask.sum(1, keepdim=True)
            shares = hidden * weights[..., None]
        if known:
            fits = shares is not None and shares.shape[-1] == known[0].shape[-1]
            return known[0], shares if fits and _aligned(shares, known[0]) else None
        assert shares is not None
        return shares.sum(1), shares

    def logits(self, output: Any, batch: Batch, scalar: str) -> Tensor | None:
        (a, _), (b, _) = output
        return nn.functional.cosine_similarity(a, b, dim=-1)[:, None]

    @torch.no_grad()
    def pairs(self, output: Any) -> Tensor | None:
        """(B, N_a, N_b) what each pair of tokens adds to the cosine (exact for mean pooling), else None."""
        (_, a_shares), (_, b_shares) = output
        if a_shares is None or b_shares is None:
            return None
        a_shares, b_shares = a_shares.float(), b_shares.float()
        scale = (a_shares.sum(1).norm(dim=-1) * b_shares.sum(1).norm(dim=-1))[:, None, None]
        return torch.einsum("bnd,bmd->bnm", a_shares, b_shares) / scale

    # Units

    def part(self, stream: str, batch: Batch) -> tuple[Modality, Batch]:
        tensors = {k: v for k, v in batch.tensors.items() if k.startswith(f"{stream}_")}
        facts = tuple(e[stream] for e in batch.encodings)
        keep = batch.tensors[f"{stream}_attention_mask"].bool()
        return self._sides[stream], replace(batch, tensors=tensors, keep_BN=keep, encodings=facts)

    @property
    def replacements(self) -> tuple[str, ...]:
        return tuple(r for r in self._plain.replacements if r in {"mask", "unk", "pad"}) or ("unk",)


def _aligned(shares_BND: Tensor | None, vector_BD: Tensor) -> bool:
    """Return whether the text's vector is the mean of its tokens', up to a factor (many models normalise it)."""
    assert shares_BND is not None
    cosine = nn.functional.cosine_similarity(shares_BND.sum(1).float(), vector_BD.float(), dim=-1)
    return bool((cosine > 1 - 1e-5).all())
