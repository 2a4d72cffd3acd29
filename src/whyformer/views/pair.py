"""Image and text together where the image is given as boxes: the boxes drawn by their weight, the words beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.errors import BadInput
from whyformer.parameters import Count, checked
from whyformer.results.types import Explanation
from whyformer.shapes import Array
from whyformer.views.header import answer, details, doubts
from whyformer.views.image_marks import to_pixels
from whyformer.views.marks import Picture, Scale
from whyformer.views.scales import colours, scale_of
from whyformer.views.text_marks import ranking, token_run
from whyformer.views.view import Panel, View

CANVAS = 256  # side of the empty canvas, where no image is given


@checked
def boxes_view(explanation: Explanation, image: Any = None, *, most: Count | None = None) -> View:
    """Weighted boxes on the image, token bars beside it. Without an image they are drawn on an empty canvas."""
    units = explanation.units
    if units.boxes is None:
        raise BadInput("this explanation has no boxes: boxes_view is for models that read regions of an image.")
    regions = [i for i, stream in enumerate(units.stream) if stream == "image"]
    words = [i for i, stream in enumerate(units.stream) if stream != "image"]
    pixels = np.full((CANVAS, CANVAS, 3), 255, np.uint8) if image is None else to_pixels(image)
    scale = scale_of([explanation.scores[regions]], explanation.signed)
    panels = [Panel((Picture(boxes_on(explanation, regions, pixels, scale)),), "boxes (image)")]
    if words:
        panels.append(Panel((token_run(explanation, members=words),), "text"))
    panels.append(Panel((ranking(explanation, most=most),), "highest scores"))
    return View(
        f"{explanation.method}: {explanation.target}",
        tuple(panels),
        (answer(explanation),),
        doubts(explanation),
        "Boxes are coloured by their score; the strongest is drawn last.",
        columns=2,
        legend=scale,
        details=details(explanation),
    )


def boxes_on(
    explanation: Explanation, members: Sequence[int], pixels: Array, scale: Scale | None = None, times: float = 1.0
) -> Array:
    """The picture with the boxes of some units; ``times``: a factor of the scores, for a scale of shares."""
    scores = explanation.scores[list(members)] * np.float32(times)
    boxes = explanation.units.boxes or ()
    return boxes_drawn(pixels, [boxes[i] for i in members], scores, scale or scale_of([scores], explanation.signed))


def boxes_drawn(pixels: Array, boxes: list[tuple[float, ...]], scores: Array, scale: Scale) -> Array:
    """Frames in the colour of their score, thicker and less see-through the more they weigh; the strongest on top."""
    canvas = pixels.astype(np.float32)
    height, width = canvas.shape[:2]
    for index in np.argsort(np.abs(scores), kind="stable"):
        left, top, right, bottom = (float(np.clip(x, 0, 1)) for x in boxes[index][:4])
        rows = sorted((round(top * (height - 1)), round(bottom * (height - 1))))
        columns = sorted((round(left * (width - 1)), round(right * (width - 1))))
        strength = abs(scale.length(float(scores[index])))
        colour = colours(scale, scores[[index]])[0].astype(np.float32)
        frame = np.zeros((height, width), bool)
        frame[rows[0] : rows[1] + 1, columns[0] : columns[1] + 1] = True
        thick = 1 + round(strength * max(2, min(height, width) // 60))
        frame[rows[0] + thick : rows[1] + 1 - thick, columns[0] + thick : columns[1] + 1 - thick] = False
        alpha = 0.25 + 0.75 * strength
        canvas[frame] = canvas[frame] * (1 - alpha) + colour * alpha
    return np.rint(canvas).clip(0, 255).astype(np.uint8)
