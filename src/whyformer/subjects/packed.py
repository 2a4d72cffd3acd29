"""Images packed end to end into one row of patches, with a table of their sizes (Qwen2-VL and its kin).

Inside the library every tensor has one row per input: patches are unpacked on the way in, and packed again for the
model. Neighbouring patches become one token; tokens come row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from whyformer.errors import BadInput

PATCHES, SIZES = "pixel_values", "image_grid_thw"  # (patches of all images, D); (images, 3) time, rows, columns


def are_packed(tensors: Any) -> bool:
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
    """As the model takes them."""
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
    own = patches_PD[: time * rows * columns]
    split = own.view(time, rows // merged, columns // merged, merged, merged, -1, deep, patch, patch)
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
