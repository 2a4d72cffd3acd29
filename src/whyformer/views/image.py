"""Images: heat over the picture, smooth or as the grid of patches."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.types import Explanation
from whyformer.views.frames import frames_of
from whyformer.views.heat import heatmap
from whyformer.views.scale import scale_of
from whyformer.views.view import Heat, Scale

Array = np.ndarray[Any, Any]


def heat(
    explanation: Explanation,
    *,
    image: Array | None = None,
    interpolation: str = "bilinear",
    scale: Scale | None = None,
    times: float = 1.0,
) -> Heat:
    """The patches' scores over the image, from the lowest to the highest patch."""
    values = heatmap(explanation) * np.float32(times)
    scale = scale or scale_of([values], explanation.signed, from_zero=False)
    return Heat(values, scale, image, interpolation, explanation.units.image_size, frames_of(explanation))
