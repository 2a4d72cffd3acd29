"""Images: heat over the picture, smooth or as the grid of patches."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.errors import BadInput
from whyformer.types import Explanation, Units
from whyformer.views.frames import frames_of
from whyformer.views.heat import heatmap
from whyformer.views.scale import scale_of
from whyformer.views.view import Heat, Scale

Array = np.ndarray[Any, Any]
ROUNDING = 1.5  # pixels; some processors round to whole patches instead


def heat(
    explanation: Explanation,
    *,
    image: Array | None = None,
    interpolation: str = "bilinear",
    scale: Scale | None = None,
    times: float = 1.0,
) -> Heat:
    """The patches' scores over the image, from the lowest to the highest patch."""
    require_fit(image, explanation.units)
    values = heatmap(explanation) * np.float32(times)
    scale = scale or scale_of([values], explanation.signed, from_zero=False)
    return Heat(values, scale, image, interpolation, explanation.units.image_size, frames_of(explanation))


def require_fit(image: Array | None, units: Units) -> None:
    """A map over a picture of another shape than the model saw would lie in the wrong place."""
    if image is None or units.image_size is None or units.grid is None:
        return
    (height, width), (high, wide) = image.shape[:2], units.image_size
    if any(_alike((height, width), shape, units.grid) for shape in (units.image_size, units.picture_size) if shape):
        return
    raise BadInput(
        f"the image is {height} pixels high and {width} wide, and the model saw {high} × {wide}: other proportions, so "
        "the map would not lie where it belongs. Pass the picture as the model saw it: image=processor(images=picture, "
        "return_tensors='pt')['pixel_values'][0]. Where the processor cuts nothing off and only squeezes the picture, "
        f"picture.resize(({wide}, {high})) is the same."
    )


def _alike(size: tuple[int, int], other: tuple[int, int], grid: tuple[int, int]) -> bool:
    """The same proportions, but for rounding."""
    (height, width), (high, wide) = size, other
    by_height = abs(height * wide / width - high) <= max(high / grid[0], ROUNDING)
    return by_height or abs(width * high / height - wide) <= max(wide / grid[1], ROUNDING)
