"""Image tokens inside a text (LLaVA, Qwen2-VL): the pixels of each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from whyformer.errors import BadInput, NotOffered
from whyformer.inputs.batch import Batch, Placed
from whyformer.inputs.image import ImageInput, patch_index, pooled
from whyformer.inputs.stream_inputs import StreamInput, at_units
from whyformer.results.types import Units

# Images packed end to end (Qwen2-VL and its kin):
PATCHES, SIZES = "pixel_values", "image_grid_thw"  # (patches of all images, D); (images, 3) time, rows, columns


def are_packed(tensors: Any) -> bool:
    """Return whether the images are packed into one row of patches, with a table of their sizes."""
    return isinstance(tensors, Mapping) and isinstance(tensors.get(SIZES), Tensor) and PATCHES in tensors


def unpacked(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """(images, most patches, D), the shorter ones padded with zeros; one image per input."""
    sizes, patches = tensors[SIZES], tensors[PATCHES]
    inputs = len(tensors["input_ids"]) if "input_ids" in tensors else len(sizes)
    counts = sizes.prod(1).tolist()
    if len(sizes) != inputs:
        raise BadInput(f"{len(sizes)} images for {inputs} inputs: explain inputs with one image each.")
    if patches.ndim != 2 or len(patches) != sum(counts):
        raise BadInput(
            f"{PATCHES} has shape {tuple(patches.shape)}, and {SIZES} speaks of {sum(counts)} patches: pass both as "
            "the processor gives them."
        )
    rows = torch.nn.utils.rnn.pad_sequence(list(patches.split(counts)), batch_first=True)
    return {**tensors, PATCHES: rows}


def packed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Pack the images again, as the model takes them."""
    counts = tensors[SIZES].prod(1).tolist()
    rows = [patches[:count] for patches, count in zip(tensors[PATCHES], counts, strict=True)]
    return tensors | {PATCHES: torch.cat(rows)}


def token_grid(config: Any, size: Tensor) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows and columns of one image's tokens, and of its pixels."""
    merged, patch, _ = _sides(config)
    rows, columns = int(size[1]), int(size[2])
    return (rows // merged, columns // merged), (rows * patch, columns * patch)


def frames_of(config: Any, patches_PD: Tensor, size: Tensor) -> Tensor:
    """(frames, channels, height, width) of one image; a still one is held as several equal frames."""
    merged, patch, deep = _sides(config)
    time, rows, columns = (int(n) for n in size)
    real = patches_PD[: time * rows * columns]
    split = real.view(time, rows // merged, columns // merged, merged, merged, -1, deep, patch, patch)
    return split.permute(0, 6, 5, 1, 3, 7, 2, 4, 8).reshape(time * deep, -1, rows * patch, columns * patch)


def patches_of(config: Any, frames_TCHW: Tensor) -> Tensor:
    """(patches, D) back again, neighbours that become one token one after the other."""
    merged, patch, deep = _sides(config)
    count, channels, height, width = frames_TCHW.shape
    high, wide = height // patch // merged, width // patch // merged
    split = frames_TCHW.reshape(count // deep, deep, channels, high, merged, patch, wide, merged, patch)
    return split.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, channels * deep * patch * patch)


def _sides(config: Any) -> tuple[int, int, int]:
    """Patches along the side of a token, pixels along the side of a patch, frames in a patch."""
    vision = getattr(config, "vision_config", config)
    return (
        int(getattr(vision, "spatial_merge_size", 1)),
        int(getattr(vision, "patch_size", 14)),
        int(getattr(vision, "temporal_patch_size", 1)),
    )


def is_image(units: Units) -> list[bool]:
    """Units that stand for pixels: image tokens, or patches of a stream of their own (BLIP-2)."""
    return [stream == "image" and not special for stream, special in zip(units.stream, units.special, strict=True)]


def require_pixels(units: Units, of_pixels: bool, what: str) -> None:
    """Every image token has to stand for a piece of the picture of its own."""
    if any(is_image(units)) and (units.grid is None or not of_pixels):
        raise NotOffered(
            f"the {sum(is_image(units))} image tokens in this text are no grid of pieces of the picture (several views "
            f"of it, or summaries of all of it), so {what}."
        )


def owners_of_pixels(config: Any, units: Units, one: Batch) -> Tensor:
    """Return the unit of each number of a single image, in the shape that the batch holds it in; -1: none."""
    frames_TCHW = pixels_of(config, one)
    images = [i for i, image in enumerate(is_image(units)) if image]
    owner_HW = torch.full(frames_TCHW.shape[-2:], -1)
    if images:
        assert units.grid is not None
        owner_HW = torch.tensor(images)[patch_index(units.grid, *frames_TCHW.shape[-2:])]
    owner = owner_HW.to(frames_TCHW.device).expand_as(frames_TCHW)
    nobody = torch.full_like(one.tensors["pixel_values"], -1, dtype=torch.long)
    return numbers_of(config, one.with_tensors(pixel_values=nobody), owner[None])[0]


def owners_of_words(units: Units, tokens: list[int], keep_N: Tensor) -> Tensor:
    """(N,) the unit of each token, for those of the text; -1 for image tokens and padding. tokens: units of the row."""
    words = [unit if units.stream[unit] in {"text", "target"} else -1 for unit in tokens]
    owner_N = torch.full_like(keep_N, -1, dtype=torch.long)
    owner_N[keep_N] = torch.tensor(words, device=keep_N.device)
    return owner_N


def pixels_of(config: Any, one: Batch) -> Tensor:
    """(frames, channels, height, width) of a single input."""
    pixels = one.tensors["pixel_values"][0]
    return frames_of(config, pixels, one.tensors[SIZES][0]) if SIZES in one.tensors else pixels[None]


def numbers_of(config: Any, batch: Batch, pixels: Tensor) -> Tensor:
    """(B, …) as the batch holds them, from (B, frames, channels, height, width) of inputs of one size."""
    if SIZES not in batch.tensors:
        return pixels[:, 0]
    held = batch.tensors["pixel_values"].clone()
    for row, frames in enumerate(pixels):
        patches = patches_of(config, frames)
        held[row, : len(patches)] = patches
    return held


class TokenPixels(StreamInput):
    """An image whose pieces became tokens inside a text."""

    def __init__(self, placed: Placed, part: ImageInput, positions: slice) -> None:
        super().__init__(placed, "image", part, positions)
        self.config = part.config

    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        units = self.units(row)
        frames = pixels_of(self.config, self._one(row, numbers))  # (frames, channels, height, width)
        return at_units(is_image(units), pooled(frames.flatten(0, 1), units, largest))

    def kept(self, row: int, numbers: Tensor) -> Tensor:
        if SIZES not in self.placed.batch.tensors:
            return torch.ones_like(numbers, dtype=torch.bool)
        count = int(self.placed.batch.tensors[SIZES][row].prod())
        return (torch.arange(len(numbers), device=numbers.device) < count)[:, None]

    @property
    def fillers(self) -> tuple[str, ...]:
        # A patch of zeros is no input to Qwen: without bias or position, the first norm has nothing to scale.
        return ("mean", "zero", "blur") if SIZES in self.placed.batch.tensors else ("zero", "mean", "blur")

    def filled(self, row: int, numbers: Tensor, filler: str | int) -> Tensor:
        one = self._one(row, numbers)
        background = self.part.background(pixels_of(self.config, one), str(filler))
        return numbers_of(self.config, one, background[None])[0]

    def _one(self, row: int, numbers: Tensor) -> Batch:
        return self.placed.batch.select([row]).with_tensors(**{self.name: numbers[None]})
