"""Prompts with images and videos, from what a user may give: pairs, dicts, chat messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from whyformer.errors import BadInput, NotOffered, shown
from whyformer.files import is_file, names_picture, open_image, path_of
from whyformer.inputs import units as naming
from whyformer.inputs.batch import Raw
from whyformer.results.types import Units


@dataclass(frozen=True)
class Scene:
    """A prompt with its images and videos, and the answer that is explained, if one was given."""

    text: str
    images: tuple[Any, ...] = ()
    videos: tuple[Any, ...] = ()
    answer: str | None = None


def is_image(raw: Any) -> bool:
    """Return whether a raw object is an image: of Pillow, an array of pixels, or the path of a file."""
    return hasattr(raw, "convert") or (hasattr(raw, "dtype") and getattr(raw, "ndim", 0) >= 2) or (
        isinstance(raw, Path) or names_picture(raw)
    )  # fmt: skip


def scene_of(raw: Raw) -> Scene:
    """Return a prompt with images from what a user may give; the answer may come with it."""
    if isinstance(raw, Scene):
        return raw
    if isinstance(raw, Mapping) and isinstance(raw.get("text"), str):
        known = {"text", "image", "images", "video", "videos", "answer"}
        if unknown := sorted(set(raw) - known):
            raise BadInput(f"the input has the key {unknown[0]!r}, and takes {', '.join(sorted(known))}.")
        images, videos = (raw.get(f"{kind}s", raw.get(kind)) for kind in ("image", "video"))
        videos = [videos] if _is_frames(videos) else videos
        return Scene(raw["text"], _listed(images), _listed(videos), raw.get("answer"))
    if isinstance(raw, (tuple, list)) and len(raw) == 2:
        first, second = raw
        parts = first if isinstance(first, (tuple, list)) else ()
        asked = isinstance(first, Mapping) or any(isinstance(part, str) and not is_image(part) for part in parts)
        if isinstance(second, str) and asked:
            return replace(scene_of(first), answer=second)
        for image, text in ((first, second), (second, first)):
            if (isinstance(text, str) and not isinstance(image, str | None)) or is_image(image):
                return Scene(text, _listed(image))
    raise BadInput(
        f"the input is {shown(raw)}. A vision-language model takes a text, (image, text), ((image, text), answer), "
        '{"text": …, "images": […]} or chat messages whose content has {"type": "image", "image": …}.'
    )


def _is_frames(raw: Any) -> bool:
    """Return whether a list holds the frames of one video, each an image."""
    return isinstance(raw, (list, tuple)) and bool(raw) and all(
        hasattr(frame, "convert") or getattr(frame, "ndim", 0) in (2, 3) or names_picture(frame) for frame in raw
    )  # fmt: skip


def open_video(raw: Any) -> Any:
    """Return a video as processors take it: (frames, rows, columns, 3), or the path of a file that exists."""
    if isinstance(raw, (str, Path)):
        path = path_of(raw, "video")
        if not is_file(path):
            raise BadInput(f"there is no video file at {str(path)!r}. Nothing is downloaded.")
        return str(path)
    if _is_frames(raw):
        frames = [np.asarray(open_image(frame)) for frame in raw]
        if len({frame.shape for frame in frames}) > 1:
            raise BadInput("the frames of the video have several sizes: resize them to one.")
        return np.stack(frames)
    if getattr(raw, "ndim", 0) == 4:
        return raw
    raise BadInput(
        f"the video is {shown(raw)}: give a list of its frames (images), an array (frames, rows, columns, 3) or the "
        "path of a file."
    )


def _listed(value: Any) -> tuple[Any, ...]:
    return () if value is None else tuple(value) if isinstance(value, (list, tuple)) else (value,)


def without_media(part: Mapping[str, Any], collected: dict[str, list[Any]]) -> dict[str, Any]:
    """Return a part of a message with its image or video taken out, which is added to what was found."""
    kind = str(part.get("type", "")).removesuffix("_url")
    if kind not in collected:
        return dict(part)
    source = part.get(kind, part.get("url", part.get("path")))
    if source is None or (isinstance(source, str) and "://" in source):
        raise BadInput(
            f"a message has a part of type {part['type']!r} without the {kind} itself: give "
            f'{{"type": "{kind}", "{kind}": …}}, a Pillow image, an array or a path. Nothing is downloaded.'
        )
    collected[kind].append(source)
    return {"type": kind}


# Regions of images as units: boxes or masks in place of the tokens that stand for their pieces.


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
    per_place = regions if len(places) > 1 else [regions]
    if not isinstance(regions, (list, tuple)) or len(per_place) != len(places):
        raise BadInput(f"units: give a list of regions for each of the {len(places)} images.")
    covered: list[list[int]] = []
    for one, tokens in zip(per_place, places.values(), strict=True):
        rows, columns = max(r for _, r, _ in tokens), max(c for _, _, c in tokens)
        for region in one:
            inside = _inside(region, rows, columns)
            covered.append([unit for unit, row, column in tokens if inside[row - 1, column - 1]])
            if not covered[-1]:
                raise BadInput(f"units: the region {shown(region)} holds no piece of the image: make it larger.")
    first = next(i for i, group in enumerate(groups) if units.stream[group[0]] == "image")
    words = [i for i, group in enumerate(groups) if units.stream[group[0]] != "image"]
    before, after = [i for i in words if i < first], [i for i in words if i > first]
    names = tuple(f"region {number}" for number in range(1, len(covered) + 1))
    front, back = naming.pick(joined, before), naming.pick(joined, after)
    none = [None] * len(covered)

    def between(name: str, filler: Any) -> Any:
        parts = [getattr(part, name) for part in (front, back)]
        return None if parts[0] is None else (*parts[0], *[filler for _ in none], *parts[1])

    union = [_around(units, group) for group in covered]
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
    return [*(groups[i] for i in before), *covered, *(groups[i] for i in after)], divided


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
