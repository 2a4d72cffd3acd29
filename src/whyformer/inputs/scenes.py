"""Prompts with images and videos, from what a user may give: pairs, dicts, chat messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from whyformer.errors import BadInput, shown
from whyformer.files import is_file, names_picture, open_image, path_of
from whyformer.inputs.batch import Raw


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
        if isinstance(second, str) and (isinstance(first, Mapping) or _is_scene(first)):
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


def _is_scene(raw: Any) -> bool:
    return isinstance(raw, (tuple, list)) and any(isinstance(part, str) and not is_image(part) for part in raw)


def _listed(given: Any) -> tuple[Any, ...]:
    return () if given is None else tuple(given) if isinstance(given, (list, tuple)) else (given,)


def without_media(part: Mapping[str, Any], found: dict[str, list[Any]]) -> dict[str, Any]:
    """Return a part of a message with its image or video taken out, which is added to what was found."""
    kind = str(part.get("type", "")).removesuffix("_url")
    if kind not in found:
        return dict(part)
    given = part.get(kind, part.get("url", part.get("path")))
    if given is None or (isinstance(given, str) and "://" in given):
        raise BadInput(
            f"a message has a part of type {part['type']!r} without the {kind} itself: give "
            f'{{"type": "{kind}", "{kind}": …}}, a Pillow image, an array or a path. Nothing is downloaded.'
        )
    found[kind].append(given)
    return {"type": kind}
