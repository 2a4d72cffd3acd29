"""What people marked: words of a text (rationales), or where the object is in an image (masks, boxes)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.errors import BadInput, reading
from whyformer.types import Units

Array = np.ndarray[Any, Any]


def rationale_of(marked: Any, units: Units, parts: Array) -> Array:
    """(P,) the marked parts, from one number or boolean per part, unit or word, or from character ranges."""
    with reading("a rationale cannot be read", "Give one number per token or word, or ranges [(start, end), …]."):
        values = list(marked)
        if values and isinstance(values[0], (tuple, list)):
            return _from_spans(values, units, parts)
        flags = np.asarray(values, dtype=float) > 0.5
    if len(flags) == len(parts):
        return flags
    if len(flags) == len(units):
        return flags[parts]
    words = 0 if units.word is None else max(units.word, default=-1) + 1
    if len(flags) == words:
        assert units.word is not None
        return np.array([units.word[p] >= 0 and bool(flags[units.word[p]]) for p in parts], dtype=bool)
    raise BadInput(
        f"a rationale of {len(flags)} entries for an input of {len(parts)} tokens ({words} words, {len(units)} with "
        "special tokens): give one entry per token or per word, or character ranges [(start, end), …]."
    )


def _from_spans(spans: Sequence[tuple[int, int]], units: Units, parts: Array) -> Array:
    if units.spans is None:
        raise BadInput("character ranges need a text and a fast tokenizer: give one entry per token instead.")
    where = [units.spans[p] for p in parts]
    return np.array([any(a < end and start < b for start, end in spans) for a, b in where], dtype=bool)


def region_of(marked: Any, units: Units) -> Array:
    """(height, width) of the model's own view of the image, from a mask of any size or from boxes.

    Boxes are (left, top, right, bottom), in pixels of the model's view or as shares of it (all at most 1).
    """
    if units.image_size is None:
        raise BadInput("masks and boxes are for images: this input has no patches.")
    with reading("a mask cannot be read", "Give an array, height × width, or boxes (left, top, right, bottom)."):
        return _region(marked, *units.image_size)


def _region(marked: Any, height: int, width: int) -> Array:
    from whyformer.files.image_file import resized

    if _are_boxes(marked):
        region = np.zeros((height, width), dtype=bool)
        for left, top, right, bottom in np.asarray(marked, dtype=float):
            share = max(left, top, right, bottom) <= 1
            scale = np.array([width, height, width, height]) if share else np.ones(4)
            a, b, c, d = np.round(np.array([left, top, right, bottom]) * scale).astype(int)
            region[b:d, a:c] = True
        return region
    mask = np.asarray(marked)
    if mask.ndim != 2:
        raise BadInput(f"a mask has shape {mask.shape}: expected height × width, or a list of boxes.")
    return resized(mask.astype(float), (height, width), "nearest") > 0


def _are_boxes(marked: Any) -> bool:
    return isinstance(marked, (list, tuple)) and all(isinstance(b, (list, tuple)) and len(b) == 4 for b in marked)
