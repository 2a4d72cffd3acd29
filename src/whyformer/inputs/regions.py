"""Regions of images as units: boxes or masks in place of the tokens that stand for their pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.errors import BadInput, NotOffered, shown
from whyformer.inputs import units as naming
from whyformer.results.types import Units

PIECE = re.compile(r"(?:(?:image|frame) (\d+) )?patch (\d+),(\d+)")  # as VisionLanguageInput names them


def with_regions(units: Units, groups: list[list[int]], joined: Units, regions: Any) -> tuple[list[list[int]], Units]:
    """Return groups in which regions of the images are in place of their tokens; others of them have no score.

    regions: boxes (left, top, right, bottom, as shares of the image) or masks (rows × columns); of several images, a
    list for each.
    """
    places: dict[int, list[tuple[int, int, int]]] = {}
    for unit, label in enumerate(units.labels):
        if units.stream[unit] == "image" and (match := PIECE.fullmatch(label)):
            number, row, column = (int(n or 1) for n in match.groups())
            places.setdefault(number, []).append((unit, row, column))
    if not places:
        raise NotOffered("units= has regions of an image, and the input has no image whose pieces are known.")
    given = regions if len(places) > 1 else [regions]
    if not isinstance(regions, (list, tuple)) or len(given) != len(places):
        raise BadInput(f"units: give a list of regions for each of the {len(places)} images.")
    found: list[list[int]] = []
    for own, tokens in zip(given, places.values(), strict=True):
        rows, columns = max(r for _, r, _ in tokens), max(c for _, _, c in tokens)
        for region in own:
            inside = _inside(region, rows, columns)
            found.append([unit for unit, row, column in tokens if inside[row - 1, column - 1]])
            if not found[-1]:
                raise BadInput(f"units: the region {shown(region)} holds no piece of the image: make it larger.")
    first = next(i for i, group in enumerate(groups) if units.stream[group[0]] == "image")
    words = [i for i, group in enumerate(groups) if units.stream[group[0]] != "image"]
    before, after = [i for i in words if i < first], [i for i in words if i > first]
    names = tuple(f"region {number}" for number in range(1, len(found) + 1))
    front, back = naming.pick(joined, before), naming.pick(joined, after)
    none = [None] * len(found)

    def between(name: str, filler: Any) -> Any:
        parts = [getattr(part, name) for part in (front, back)]
        return None if parts[0] is None else (*parts[0], *[filler for _ in none], *parts[1])

    union = [_around(units, group) for group in found]
    divided = Units(
        labels=(*front.labels, *names, *back.labels),
        special=between("special", False),
        stream=between("stream", "image"),
        word=between("word", -1),
        spans=between("spans", (0, 0)),
        text=units.text,
        image_size=units.image_size,
        boxes=(*[NOWHERE] * len(before), *union, *[NOWHERE] * len(after)),
        role=between("role", naming.IMAGE),
    )
    return [*(groups[i] for i in before), *found, *(groups[i] for i in after)], divided


NOWHERE = (0.0, 0.0, 0.0, 0.0)


def _inside(region: Any, rows: int, columns: int) -> Any:
    """(rows, columns) the pieces of an image whose larger part is in a box or mask."""
    mask = np.asarray(region)
    if mask.ndim == 2 and mask.dtype == bool and min(mask.shape) > 0:
        down, along = (np.arange(n * 8) * size // (n * 8) for n, size in zip((rows, columns), mask.shape, strict=True))
        fine = mask[down][:, along].reshape(rows, 8, columns, 8)
        return fine.mean((1, 3)) > 0.5
    if mask.shape != (4,) or not (0 <= mask[0] < mask[2] <= 1 and 0 <= mask[1] < mask[3] <= 1):
        raise BadInput(
            f"units: {shown(region)} is not a region: give (left, top, right, bottom) as shares of the image, between "
            "0 and 1, or a mask, an array of True and False."
        )
    left, top, right, bottom = (float(edge) for edge in mask)
    y, x = (np.arange(rows) + 0.5) / rows, (np.arange(columns) + 0.5) / columns
    return ((top <= y) & (y <= bottom))[:, None] & ((left <= x) & (x <= right))


def _around(units: Units, group: Sequence[int]) -> tuple[float, float, float, float]:
    """Return the box around some pieces of images, as shares of the picture."""
    if units.boxes is not None:
        boxes = [units.boxes[unit] for unit in group]
    else:
        assert units.grid is not None
        rows, columns = units.grid
        order = {unit: i for i, unit in enumerate(u for u in range(len(units)) if units.is_patch(u))}
        cells = [divmod(order[unit], columns) for unit in group]
        boxes = [(c / columns, r / rows, (c + 1) / columns, (r + 1) / rows) for r, c in cells]
    left, top, right, bottom = zip(*(box[:4] for box in boxes), strict=True)
    return min(left), min(top), max(right), max(bottom)
