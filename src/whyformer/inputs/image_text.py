"""Image and text together: question and picture, caption and picture, image tokens in a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.overrides import TorchFunctionMode

from whyformer.errors import BadInput
from whyformer.files import jpeg_uri, open_image
from whyformer.inputs.base import LearnedPositions, Modality, Place
from whyformer.inputs.batch import Batch, Filling, Placed, Raw, SamplePool
from whyformer.inputs.checkpoint import processed
from whyformer.inputs.families import BOX_FEATURES, LOGITS_INSIDE, task_of
from whyformer.inputs.image import (
    SIZES,
    ImageInput,
    ImageMask,
    TokenPixels,
    are_packed,
    packed,
    require_both,
    require_pixels,
    unpacked,
)
from whyformer.inputs.multi_input import Answer, StreamsMask, VectorInput, fitting, require_known
from whyformer.inputs.stream_inputs import Layout, StreamInput
from whyformer.inputs.text import TextInput, TextMask, TextMean, TextPlace, TextRead
from whyformer.inputs.tokens import bare, last_real
from whyformer.inputs.units import joined
from whyformer.results.types import Units
from whyformer.targets import logits_of

Pairs = list[tuple[Any, str]]


class ImageTextRead(TextRead):
    """An image (pixels, or vectors of its regions) and a text per input; units are tokens, and patches or boxes.

    Models combine them in three ways: as streams of their own (LXMERT, CLIP, BLIP), concatenated (VisualBERT, ViLT), or
    with image tokens at marked places of the text (LLaVA, Qwen2-VL). A model that generates an answer with a decoder
    (BLIP) is explained at each token of it.
    """

    joint, kind = True, "streams"

    def __init__(self, model: nn.Module, processor: Any = None, image: str = "pixel_values") -> None:
        super().__init__(model, processor, main="input_ids")
        self.image = image
        # BLIP-2 takes decoder ids for those of its language models that have a decoder beside an encoder.
        continues = getattr(self.config, "use_decoder_only_language_model", False)
        decoder = "decoder_input_ids" in self.parameters and not continues
        answers = decoder and callable(getattr(model, "generate", None))
        self.answer = Answer(model, processor) if answers else None
        self.generates = answers or type(model).__name__.endswith("ForConditionalGeneration")
        self.text = TextInput(model, processor)
        self.images: Modality = (
            VectorInput(model, image, boxes=BOX_FEATURES[image])
            if image in BOX_FEATURES
            else VectorInput(model, image, word="patch")
            if "spatial_shapes" in self.parameters  # SigLIP 2 takes patches that were cut out before
            else ImageInput(model, processor, main=image)
        )

    @property
    def pixels(self) -> ImageMask:
        """How the image of a model that reads pixels is masked, and read."""
        assert isinstance(self.images.mask, ImageMask)
        return self.images.mask

    def encode(self, raw: Sequence[Raw]) -> Batch:
        tensors, pairs, answers = encoded_pairs(self, raw)
        batch = self.adopt({k: v for k, v in tensors.items() if self.takes(k)})
        tokenizer = self.tokenizer
        facts = tuple(self.facts((text,), processed(tokenizer, text)) for _, text in pairs)
        batch = replace(
            batch, raw=tuple(pairs), encodings=facts, warnings=tuple(self.unknown_words(f["ids"]) for f in facts)
        )
        return batch if self.answer is None else self.answer.with_answers(batch, answers)

    def adopt(self, tensors: Any) -> Batch:
        batch = super().adopt(unpacked(tensors) if are_packed(tensors) else tensors)
        mask = batch.tensors.get("attention_mask")  # other masks may have the text's width by chance
        keep = torch.ones_like(batch.tensors[self.main], dtype=torch.bool) if mask is None else mask.bool()
        return replace(batch, keep_BN=keep)

    def call(self, batch: Batch, **extra: Any) -> Any:
        if SIZES in batch.tensors:
            batch = replace(batch, tensors=packed(batch.tensors))
        inside = LOGITS_INSIDE.get(task_of(self.model))
        with SortedDraws():
            if inside is None:
                return super().call(batch, **extra)
            outputs: list[Any] = []
            hook = self.model.get_submodule(inside).register_forward_hook(lambda _, args, out: outputs.append(out))
            try:
                super().call(batch, **extra)
            finally:
                hook.remove()
            return outputs[-1]

    def one_by_one(self, batch: Batch) -> bool:
        padded = self.answer is not None and not bool(batch.real_BN.all())
        return padded or SIZES in batch.tensors or len(set(self.forms(batch))) > 1

    def alone(self, one: Batch) -> Batch:
        # NOTE[DIFF] transformers' BLIP hands no mask to the decoder's cross-attention, so it would read padding.
        return one if self.answer is None else bare(one)

    def forms(self, batch: Batch) -> list[tuple[int, ...]]:
        """Per input, the size of its image where that may differ: ViLT's padded images, Qwen's packed ones."""
        if SIZES in batch.tensors:
            return [tuple(size) for size in batch.tensors[SIZES].tolist()]
        mask = batch.tensors.get("pixel_mask")
        if mask is None or mask.ndim != 3:
            return []
        return [(int(m.any(1).sum()), int(m.any(0).sum())) for m in mask]

    def image_token(self) -> int | None:
        """The id that marks an image token inside the text (LLaVA and its kin)."""
        ids = (getattr(self.config, name, None) for name in ("image_token_id", "image_token_index"))
        return next((int(i) for i in ids if i is not None), None)

    def covered(self, batch: Batch) -> Tensor | None:
        token = self.image_token()
        return None if token is None else batch.tensors[self.main] == token


class ImageTextPlace(TextPlace):
    """Tokens of the text; patches or boxes beside them, or at their places."""

    read: ImageTextRead

    def form(self, batch: Batch) -> tuple[Any, ...]:
        """The number of patches of an image decides the number of positions."""
        shape = tuple(batch.tensors[self.read.image].shape[1:]) if SIZES not in batch.tensors else ()
        return (shape, *sorted(set(self.read.forms(batch))))

    def picture(self, batch: Batch, row: int) -> str | None:
        """Return what the model saw; for packed patches (Qwen2-VL) the picture as given. Boxes have none."""
        if isinstance(self.read.images.mask, ImageMask) and SIZES not in batch.tensors:
            return self.read.images.place.picture(batch, row)
        image = batch.raw[row][0]
        return jpeg_uri(np.asarray(image)) if hasattr(image, "convert") else None

    def part(self, stream: str, batch: Batch) -> tuple[Modality | None, Batch]:
        if stream == "image":
            return self.read.images, batch
        if stream == "target" and self.read.answer is not None:
            return self.read.answer.part(batch)
        if stream == "text" and self.read.image_token() is None:
            return self.read.text, batch
        if stream == "queries":
            return LearnedPositions(self.read.model, self.read.main), batch
        return None, batch

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        tokens = batch.tensors[self.read.main].shape[1]
        texts = self.read.text.place.units(batch, tokens, 0, None)
        if length == tokens:
            return self._marked(batch, texts, grid)
        mask, sizes = batch.tensors.get("pixel_mask"), self.read.forms(batch)
        if grid is not None and mask is not None and mask.ndim == 3:
            # ViLT leaves out patches of padding: these rows and columns hold a picture.
            small = nn.functional.interpolate(mask[None].float(), size=grid).bool()[0, 0]
            grid = int(small.any(1).sum()), int(small.any(0).sum())
        images = self.read.images.place.units(batch, length - tokens, None, grid)
        if sizes:
            images = [replace(u, image_size=(high, wide)) for u, (high, wide) in zip(images, sizes, strict=True)]
        order = (images, texts) if front else (texts, images)
        return [joined(parts) for parts in zip(*order, strict=True)]

    def _marked(self, batch: Batch, texts: list[Units], grid: tuple[int, int] | None) -> list[Units]:
        """Tokens at the image's places belong to the image, or to the queries that read it."""
        token, result = self.read.image_token(), []
        # BLIP-2 puts the outputs of its own queries at these places; the patches that they read are another stream.
        asks = getattr(self.read.config, "num_query_tokens", None) is not None
        stream, label = ("queries", "[query {}]") if asks else ("image", "image {}")
        for row, units in enumerate(texts):
            ids = batch.tensors[self.read.main][row]
            images = (ids[batch.real_BN[row]] == token).tolist() if token is not None else [False] * len(units)
            size = tuple(batch.tensors[self.read.image].shape[-2:])
            if SIZES in batch.tensors:
                grid, size = self.read.pixels.read.token_grid(batch.tensors[SIZES][row])
            fits = grid is not None and sum(images) == grid[0] * grid[1] and stream == "image"
            numbers = iter(range(sum(images)))
            named = zip(images, units.labels, strict=True)
            labels = tuple(label.format(next(numbers)) if i else text for i, text in named)
            result.append(
                replace(
                    units,
                    labels=labels,
                    special=tuple(stream == "queries" if i else s for i, s in zip(images, units.special, strict=True)),
                    stream=tuple(stream if i else "text" for i in images),
                    grid=grid if fits else None,
                    image_size=(size[0], size[1]) if fits else None,
                )
            )
        return result

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        keep_BN = batch.real_BN
        rest = length - keep_BN.shape[1]
        if rest <= 0:
            return keep_BN[:, :length]
        image_BN = self.read.images.place.keep(batch, rest, None)
        return torch.cat([image_BN, keep_BN] if front else [keep_BN, image_BN], 1)


class ImageTextMask(StreamsMask, TextMask):
    """Other tokens and other pixels stand in place of masked ones."""

    read: ImageTextRead

    def stream_inputs(self, stream: str, layout: Layout, placed: Placed, whole: Modality | None) -> list[StreamInput]:
        stream_inputs = super().stream_inputs(stream, layout, placed, whole)
        if self.read.image_token() is None or "image" in layout:
            return stream_inputs
        for units in placed.units:
            of_pixels = isinstance(self.read.images.mask, ImageMask)
            require_pixels(units, of_pixels, "gradients at pixels cannot be assigned to them")
        return [*stream_inputs, TokenPixels(placed, "image", self.read.pixels, layout[stream])]

    @property
    def replacements(self) -> tuple[str, ...]:
        """Of the text, then of the image: each stream takes the one it has. Deleting would move the rest."""
        known = [r for r in self.read.text.mask.replacements if r in {"mask", "unk", "pad"}]
        return (*known, *self.read.images.mask.replacements)

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        if self.read.image_token() is None:
            return super().owners(units, one)
        require_pixels(units, isinstance(self.read.images.mask, ImageMask), "they cannot be masked one by one")
        # Patches that are a stream of their own (BLIP-2) come first.
        tokens = [i for i, s in enumerate(units.stream) if s != "target"][-int(one.real_BN.sum()) :]
        owners = {self.read.main: owners_of_words(units, tokens, one.real_BN[0])}
        owners[self.read.image] = self.read.pixels.owners_of_pixels(units, one)
        answer = [i for i, s in enumerate(units.stream) if s == "target"]
        if answer:
            part, view = self.place.part("target", one)
            assert part is not None
            owners[part.main] = owners_of_words(units, answer, view.real_BN[0])
        return owners

    def filling(self, name: Any, units: Units, one: Batch, pool: SamplePool | None = None) -> list[Filling]:
        """Return another word for tokens of the text, other pixels for those of the image."""
        if self.read.image_token() is None:
            return super().filling(name, units, one, pool)
        require_known(self, name)
        words, pixels = self.read.text.mask, self.read.pixels
        assert isinstance(words, TextMask)
        word = words.replacement_id(fitting(words, name))
        if word == self.read.image_token():
            raise BadInput(f"replace={name!r} is the token that holds the place of an image: choose another.")
        background = pixels.background(pixels.read.pixels_of(one), fitting(pixels, name))
        filling = {self.read.main: torch.full_like(one.tensors[self.read.main], word)}
        filling[self.read.image] = pixels.read.numbers_of(one, background[None])
        if "target" in units.stream:
            part, view = self.place.part("target", one)
            assert part is not None
            filling[part.main] = torch.full_like(view.tensors[part.main], word)
        return [filling]


class ImageTextMean(TextMean):
    """Classes, tokens of an answer, or the similarity of image and text."""

    read: ImageTextRead

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        if isinstance(getattr(self.read.model, "logit_scale", None), Tensor):
            self.outcome = "similarity"

    def expanded(self, batch: Batch, target: Any) -> tuple[Batch, Any]:
        # BLIP's own generate reads the padding of its question, so questions are answered one by one.
        return (batch, target) if self.read.answer is None else self.read.answer.expanded(batch, target, apart=True)

    def logits(self, output: Any, batch: Batch, scalar: str) -> Tensor | None:
        if self.read.answer is not None:
            return self.read.answer.next_logits(output, batch)
        similarity = getattr(output, "logits_per_image", None)
        if similarity is not None:
            if scalar == "cosine":
                pair = (output.image_embeds, output.text_embeds)
                image, text = (e / e.norm(dim=-1, keepdim=True) for e in pair)
                return (image * text).sum(-1, keepdim=True)
            return similarity.diagonal()[:, None]  # each image with its own text
        logits = logits_of(output)
        if logits.ndim == 3 and logits.shape[1] == batch.tensors[self.read.main].shape[1]:
            return logits[torch.arange(len(logits)), last_real(batch.real_BN).to(logits.device)]
        return None


ImageTextInput = Modality.of(ImageTextRead, ImageTextPlace, ImageTextMask, ImageTextMean)


def owners_of_words(units: Units, tokens: list[int], keep_N: Tensor) -> Tensor:
    """(N,) the unit of each token, for those of the text; -1 for image tokens and padding. tokens: units of the row."""
    words = [unit if units.stream[unit] in {"text", "target"} else -1 for unit in tokens]
    owner_N = torch.full_like(keep_N, -1, dtype=torch.long)
    owner_N[keep_N] = torch.tensor(words, device=keep_N.device)
    return owner_N


def encoded_pairs(read: ImageTextRead, raw: Sequence[Raw]) -> tuple[dict[str, Tensor], Pairs, list[str | None]]:
    """Tensors, the (image, text) pairs, and the answers that were given with them."""
    pairs: Pairs = []
    answers: list[str | None] = []
    for one in raw:  # (image, text), or ((image, text), answer)
        several = isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], (tuple, list))
        answered = several and isinstance(one[1], str)
        pairs.append(_pair(one[0] if answered else one))
        answers.append(one[1] if answered else None)
    if read.image in BOX_FEATURES:
        return _with_regions(read, pairs), pairs, answers
    processor = require_both(read.processor)
    token = None if read.image_token() is None else getattr(processor, "image_token", None)
    if not isinstance(token, str):
        token = ""  # which every text holds
    # The image goes in front where the user's text does not mark its place.
    pairs = [(open_image(image), text if token in text else f"{token}\n{text}") for image, text in pairs]
    # SigLIP was trained on texts filled up to one length, and takes no mask: padding is part of what it reads.
    masked = "attention_mask" in getattr(read.tokenizer, "model_input_names", ("attention_mask",))
    images, texts = [image for image, _ in pairs], [text for _, text in pairs]
    padding: Any = True if masked else "max_length"
    encoded = processed(processor, images=images, text=texts, return_tensors="pt", padding=padding)
    return dict(encoded), pairs, answers


def _with_regions(read: ImageTextRead, pairs: Pairs) -> dict[str, Tensor]:
    """Vectors of image regions come as a mapping of arrays, one row per region; a detector made them."""
    regions: list[dict[str, Tensor]] = []
    for vectors, _ in pairs:
        if not isinstance(vectors, Mapping) or read.image not in vectors:
            raise BadInput(
                f"{type(read.model).__name__} reads vectors of image regions, which a detector makes: give "
                f"({{'{read.image}': array, …}}, text) instead of an image, or tensors."
            )
        regions.append({k: torch.as_tensor(v) for k, v in vectors.items()})
    tensors = dict(read.text.read.encode([text for _, text in pairs]).tensors)
    for name in regions[0]:
        tensors[name] = pad_sequence([r[name] for r in regions], batch_first=True)
    counts = torch.tensor([len(r[read.image]) for r in regions])
    real = torch.arange(int(counts.max())) < counts[:, None]
    if "visual_attention_mask" in read.parameters:
        tensors.setdefault("visual_attention_mask", real.long())
    if "visual_token_type_ids" in read.parameters:
        tensors.setdefault("visual_token_type_ids", torch.ones_like(real, dtype=torch.long))
    return tensors


def _pair(raw: Raw) -> tuple[Any, str]:
    """Return (image, text), given in either order; an image may be a path."""
    parts = tuple(raw) if isinstance(raw, (tuple, list)) else ()
    if len(parts) == 2:
        if isinstance(parts[1], str) and not isinstance(parts[1], Path):
            return parts[0], parts[1]
        if isinstance(parts[0], str):
            return parts[1], parts[0]
    raise BadInput(f"expected (image, text), got {type(raw).__name__}: {str(raw)[:60]!r}")


class SortedDraws(TorchFunctionMode):
    """Sort patches drawn at random: ViLT shuffles them on every call, and units need one order."""

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        return out.sort(-1).values if func.__name__ == "multinomial" else out
