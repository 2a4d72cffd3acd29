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
    vision = getattr(config, "vision_config", config)
    merged = int(getattr(vision, "spatial_merge_size", 1))
    patch = int(getattr(vision, "patch_size", 14))
    rows, columns = int(size[1]), int(size[2])
    return (rows // merged, columns // merged), (rows * patch, columns * patch)
