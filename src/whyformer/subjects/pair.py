"""Image and text together: question and picture, caption and picture, image tokens in a language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whyformer.errors import BadInput, MissingProcessor, NotOffered
from whyformer.outputs import logits_of
from whyformer.subjects.base import Batch, Raw, Subject
from whyformer.subjects.families import BOX_FEATURES
from whyformer.subjects.image import ImageSubject, open_image
from whyformer.subjects.joined import joined
from whyformer.subjects.parts import OwnPositions, VectorSubject, without_each
from whyformer.subjects.text import TextSubject
from whyformer.types import Units


class PairSubject(TextSubject):
    """An image (pixels, or vectors of its regions) and a text per input; units are tokens, and patches or boxes.

    Three ways in which models bring them together: streams of their own (LXMERT, CLIP), laid end to end (VisualBERT,
    ViLT), or image tokens at marked places of the text (LLaVA).
    """

    several = True

    def __init__(self, model: nn.Module, processor: Any = None, image: str = "pixel_values") -> None:
        super().__init__(model, processor, main="input_ids")
        self.image = image
        self.compares = isinstance(getattr(model, "logit_scale", None), Tensor)
        self.generates = type(model).__name__.endswith("ForConditionalGeneration")
        self._text = TextSubject(model, processor)
        self._image: Subject = (
            VectorSubject(model, image, places=BOX_FEATURES[image])
            if image in BOX_FEATURES
            else ImageSubject(model, main=image)
        )

    # Inputs

    def encode(self, raw: Sequence[Raw]) -> Batch:
        if self.image in BOX_FEATURES:
            raise NotOffered(
                f"{type(self.model).__name__} reads vectors of image regions, which a detector makes: pass tensors "
                f"({{'input_ids': …, '{self.image}': …}}) instead of an image."
            )
        if self.processor is None or not hasattr(self.processor, "image_processor"):
            raise MissingProcessor(
                "an image with a text needs the model's processor: pass processor=AutoProcessor.from_pretrained(…), "
                "or give tensors ({'input_ids': …, 'pixel_values': …}) instead."
            )
        pairs = [_pair(r) for r in raw]
        images = [open_image(i) for i, _ in pairs]
        texts = [t for _, t in pairs]
        encoded = self.processor(images=images, text=texts, return_tensors="pt", padding=True)
        batch = self.adopt({k: v for k, v in encoded.items() if self._takes(k)})
        facts = tuple(self._facts((t,), self._tokenizer()(t)) for t in texts)
        return replace(batch, raw=tuple(zip(images, texts, strict=True)), encodings=facts, warnings=((),) * len(pairs))

    def adopt(self, tensors: Any) -> Batch:
        batch = super().adopt(tensors)
        mask = batch.tensors.get("attention_mask")  # other masks may have the text's width by chance
        keep = torch.ones_like(batch.tensors[self.main], dtype=torch.bool) if mask is None else mask.bool()
        return replace(batch, keep_BN=keep)

    def call(self, batch: Batch, **extra: Any) -> Any:
        with SortedDraws():
            return super().call(batch, **extra)

    # Outputs

    def logits(self, output: Any, batch: Batch, scalar: str) -> Tensor | None:
        similarity = getattr(output, "logits_per_image", None)
        if similarity is not None:
            if scalar == "cosine":
                pair = (output.image_embeds, output.text_embeds)
                image, text = (e / e.norm(dim=-1, keepdim=True) for e in pair)
                return (image * text).sum(-1, keepdim=True)
            return similarity.diagonal()[:, None]  # each image with its own text
        logits = logits_of(output)
        if logits.ndim == 3 and logits.shape[1] == batch.tensors[self.main].shape[1]:
            assert batch.keep_BN is not None
            width = batch.keep_BN.shape[1]
            last = torch.stack([width - 1 - row.flip(0).float().argmax() for row in batch.keep_BN])
            return logits[torch.arange(len(logits)), last.to(logits.device)]
        return None

    # Units

    def part(self, stream: str, batch: Batch) -> tuple[Subject, Batch]:
        if stream == "image":
            return self._image, batch
        if stream == "text" and self._image_token() is None:
            return self._text, batch
        if stream == "queries":
            return OwnPositions(self.model, self.main), batch
        return self, batch

    def _image_token(self) -> int | None:
        """The id that marks an image token inside the text (LLaVA and its kin)."""
        for name in ("image_token_id", "image_token_index"):
            value = getattr(self.config, name, None)
            if value is not None:
                return int(value)
        return None

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        tokens = batch.tensors[self.main].shape[1]
        texts = self._text.units(batch, tokens, 0, None)
        if length == tokens:
            return self._marked(batch, texts, grid)
        images = self._image.units(batch, length - tokens, None, grid)
        order = (images, texts) if front else (texts, images)
        return [joined(parts) for parts in zip(*order, strict=True)]

    def _marked(self, batch: Batch, texts: list[Units], grid: tuple[int, int] | None) -> list[Units]:
        """Tokens at the image's places belong to the image."""
        token, result = self._image_token(), []
        for row, units in enumerate(texts):
            ids = batch.tensors[self.main][row]
            assert batch.keep_BN is not None
            images = (ids[batch.keep_BN[row]] == token).tolist() if token is not None else [False] * len(units)
            fits = grid is not None and sum(images) == grid[0] * grid[1]
            numbers = iter(range(sum(images)))
            height, width = batch.tensors[self.image].shape[-2:]
            labels = tuple(f"image {next(numbers)}" if i else lab for i, lab in zip(images, units.labels, strict=True))
            result.append(
                replace(
                    units,
                    labels=labels,
                    special=tuple(s and not i for i, s in zip(images, units.special, strict=True)),
                    stream=tuple("image" if i else "text" for i in images),
                    grid=grid if fits else None,
                    image_size=(height, width) if fits else None,
                )
            )
        return result

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        keep_BN = batch.keep_BN
        assert keep_BN is not None
        rest = length - keep_BN.shape[1]
        if rest <= 0:
            return keep_BN[:, :length]
        image_BN = self._image.keep(batch, rest, None)
        return torch.cat([image_BN, keep_BN] if front else [keep_BN, image_BN], 1)

    @property
    def replacements(self) -> tuple[str, ...]:
        """Of the text, then of the image: each stream takes the one it has. Deleting would move the rest."""
        known = [r for r in self._text.replacements if r in {"mask", "unk", "pad"}]
        return (*known, *self._image.replacements)

    def without_unit(self, batch: Batch, row: int, units: Units, replacement: str | int) -> Batch:
        if self._image_token() is not None:
            raise NotOffered(
                "units cannot be taken away where image tokens stand inside the text. Use generic_attention."
            )
        return without_each(self, batch, row, units, replacement)


class SortedDraws(TorchFunctionMode):
    """Patches drawn at random come in order. ViLT shuffles them on every call; attention does not mind, units do."""

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        return out.sort(-1).values if func.__name__ == "multinomial" else out


def _pair(raw: Raw) -> tuple[Any, str]:
    """(image, text) in either order; an image may be a path."""
    parts = tuple(raw) if isinstance(raw, (tuple, list)) else ()
    if len(parts) == 2:
        if isinstance(parts[1], str) and not isinstance(parts[1], Path):
            return parts[0], parts[1]
        if isinstance(parts[0], str):
            return parts[1], parts[0]
    raise BadInput(f"expected (image, text), got {type(raw).__name__}: {str(raw)[:60]!r}")
