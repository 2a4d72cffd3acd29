"""Frames on a picture: where a detector put the object whose explanation is shown."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.types import Explanation
from whyformer.views.view import Frame

Array = np.ndarray[Any, Any]


def frames_of(explanation: Explanation) -> tuple[Frame, ...]:
    """The box that the explained query of a detector predicts, with the name of the explained class."""
    units, query = explanation.units, explanation.target.position
    boxes = units.boxes or ()
    own = [boxes[i] for i, stream in enumerate(units.stream) if boxes and stream == "queries"]
    if query is None or query >= len(own):
        return ()
    left, top, right, bottom = own[query][:4]
    return (Frame((left, top, right, bottom), str(explanation.target)),) if left < right and top < bottom else ()


def place_of(frame: Frame) -> str:
    """In words: 12–40 % across, 20–60 % down"""
    left, top, right, bottom = (round(100 * edge) for edge in frame.box)
    return f"{left}–{right} % across, {top}–{bottom} % down"


def framed(pixels: Array, frames: tuple[Frame, ...]) -> Array:
    """uint8 (height, width, 3) with the frames in it: white, with a dark line inside. For backends that draw pixels."""
    drawn = pixels.copy()
    height, width = drawn.shape[:2]
    for frame in frames:
        left, right = (round(edge * (width - 1)) for edge in frame.box[::2])
        top, bottom = (round(edge * (height - 1)) for edge in frame.box[1::2])
        for inset, shade in ((1, 0), (0, 255)):
            rows, columns = (top + inset, bottom - inset), (left + inset, right - inset)
            if rows[0] > rows[1] or columns[0] > columns[1]:
                continue
            for row in rows:
                drawn[row, columns[0] : columns[1] + 1] = shade
            for column in columns:
                drawn[rows[0] : rows[1] + 1, column] = shade
    return drawn
