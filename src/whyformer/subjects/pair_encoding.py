"""Raw images with raw texts → the tensors of a model of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whyformer.errors import BadInput, MissingProcessor
from whyformer.photo import open_image
from whyformer.subjects.base import Raw
from whyformer.subjects.families import BOX_FEATURES

if TYPE_CHECKING:
    from whyformer.subjects.pair import PairSubject

Pairs = list[tuple[Any, str]]


def encoded_pairs(subject: PairSubject, raw: Sequence[Raw]) -> tuple[dict[str, Tensor], Pairs, list[str | None]]:
    """Tensors, the (image, text) pairs, and the answers that were given with them."""
    answered = [_answered(r) for r in raw]
    pairs = [_pair(question) for question, _ in answered]
    given = [answer for _, answer in answered]
    if subject.image in BOX_FEATURES:
        return _with_regions(subject, pairs), pairs, given
    processor = subject.processor
    if processor is None or not hasattr(processor, "image_processor"):
        raise MissingProcessor(
            "an image with a text needs the model's processor: pass processor=AutoProcessor.from_pretrained(…), "
            "or give tensors ({'input_ids': …, 'pixel_values': …}) instead."
        )
    pairs = [(open_image(image), _with_image_token(subject, text)) for image, text in pairs]
    # SigLIP was trained on texts filled up to one length, and takes no mask: padding is part of what it reads.
    masked = "attention_mask" in getattr(subject._tokenizer(), "model_input_names", ("attention_mask",))
    images, texts = [image for image, _ in pairs], [text for _, text in pairs]
    padding: Any = True if masked else "max_length"
    encoded = processor(images=images, text=texts, return_tensors="pt", padding=padding)
    return dict(encoded), pairs, given


def _with_image_token(subject: PairSubject, text: str) -> str:
    """The place of the image, in front, where the user's text has none."""
    if subject.image_token() is None:
        return text
    token = getattr(subject.processor, "image_token", None)
    return text if not isinstance(token, str) or token in text else f"{token}\n{text}"


def _with_regions(subject: PairSubject, pairs: Pairs) -> dict[str, Tensor]:
    """Vectors of image regions come as a mapping of arrays, one row per region; a detector made them."""
    regions: list[dict[str, Tensor]] = []
    for given, _ in pairs:
        if not isinstance(given, Mapping) or subject.image not in given:
            raise BadInput(
                f"{type(subject.model).__name__} reads vectors of image regions, which a detector makes: give "
                f"({{'{subject.image}': array, …}}, text) instead of an image, or tensors."
            )
        regions.append({k: torch.as_tensor(v) for k, v in given.items()})
    most = max(len(r[subject.image]) for r in regions)
    tensors = dict(subject._text.encode([text for _, text in pairs]).tensors)
    for name in regions[0]:
        tensors[name] = torch.stack([_filled(r[name], most) for r in regions])
    counts = torch.tensor([len(r[subject.image]) for r in regions])
    real = torch.arange(most) < counts[:, None]
    if "visual_attention_mask" in subject.parameters:
        tensors.setdefault("visual_attention_mask", real.long())
    if "visual_token_type_ids" in subject.parameters:
        tensors.setdefault("visual_token_type_ids", torch.ones_like(real, dtype=torch.long))
    return tensors


def _filled(rows: Tensor, length: int) -> Tensor:
    return torch.cat([rows, rows.new_zeros(length - len(rows), *rows.shape[1:])])


def _answered(raw: Raw) -> tuple[Raw, str | None]:
    """((image, question), answer), or (image, question) alone."""
    if isinstance(raw, tuple) and len(raw) == 2 and isinstance(raw[0], (tuple, list)) and isinstance(raw[1], str):
        return raw[0], raw[1]
    return raw, None


def _pair(raw: Raw) -> tuple[Any, str]:
    """(image, text) in either order; an image may be a path."""
    parts = tuple(raw) if isinstance(raw, (tuple, list)) else ()
    if len(parts) == 2:
        if isinstance(parts[1], str) and not isinstance(parts[1], Path):
            return parts[0], parts[1]
        if isinstance(parts[0], str):
            return parts[1], parts[0]
    raise BadInput(f"expected (image, text), got {type(raw).__name__}: {str(raw)[:60]!r}")
