"""Scores of patches as images: resized, coloured, laid over a picture. Numpy only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from whyformer.errors import BadInput
from whyformer.views.color import DIVERGING, HEAT, bytes_of, head_colour, ramp, rgb
from whyformer.views.pixels import resized
from whyformer.views.view import HeadColours, Heat, Picture

if TYPE_CHECKING:
    from whyformer.types import Explanation

Array = np.ndarray[Any, Any]
CANVAS = 384  # pixels of the longer side, for heat without an image


def heatmap(explanation: Explanation, size: tuple[int, int] | None = None, interpolation: str = "bilinear") -> Array:
    """Scores of the patches as an image: (rows, columns), or resized to ``size`` = (height, width).

    Special tokens (CLS, registers) have no place in the image and are left out. ``"bilinear"`` interpolates between
    the centres of patches, ``"nearest"`` repeats them.
    """
    if explanation.units.grid is None:
        raise BadInput(
            f"this explanation ({explanation.method}) has no patch grid: heatmap() is for images. Use "
            ".ranked() or .show()."
        )
    patches = [i for i in range(len(explanation.units)) if is_patch(explanation, i)]
    return resized(explanation.scores[patches].reshape(explanation.units.grid), size, interpolation)


def is_patch(explanation: Explanation, index: int) -> bool:
    units = explanation.units
    return not units.special[index] and (units.stream[index] == "image" or len(set(units.stream)) == 1)


def canvas_size(mark: Picture | Heat | HeadColours, longest: int = CANVAS) -> tuple[int, int]:
    """Height and width to draw at: in the proportions of the image, or of the area that the grid covers."""
    if mark.image is not None:
        height, width = mark.image.shape[:2]
    else:
        height, width = mark.size or (mark.values_RC if isinstance(mark, Heat) else mark.maps_RC[0]).shape
    factor = longest / max(height, width)
    return max(1, round(height * factor)), max(1, round(width * factor))


def painted(heat: Heat, size: tuple[int, int]) -> Array:
    """uint8 (height, width, 3): the heat, over the image where there is one."""
    positions = resized(heat.scale.positions(heat.values_RC), size, heat.interpolation)
    if heat.image is None:
        return ramp(DIVERGING if heat.scale.signed else HEAT, positions)
    under = _grey(resized(heat.image.astype(np.float32), size, "bilinear"))
    if heat.scale.signed:
        # White, the middle of the scale, would whiten the image: there, only the two ends lend their colour.
        strength = np.abs(positions - 0.5) * 2
        over = np.where(positions[..., None] < 0.5, rgb(DIVERGING[0]), rgb(DIVERGING[-1])).astype(float)
        under, alpha = 0.55 * under + 0.45 * 255, 0.9 * strength[..., None] ** 0.8
    else:
        # Strong scores cover the image, weak ones let it through; never so much that the shapes below are lost.
        over = ramp(HEAT, positions).astype(float)
        alpha = (0.15 + 0.6 * positions)[..., None]
    return bytes_of(under * (1 - alpha) + over * alpha)


def picture(image: Array, size: tuple[int, int]) -> Array:
    return bytes_of(resized(image.astype(np.float32), size, "bilinear"))


def _grey(pixels: Array) -> Array:
    """Half way to grey: colours of the image must not be read as heat."""
    grey = pixels @ np.array([0.299, 0.587, 0.114], np.float32)
    return 0.65 * grey[..., None] + 0.35 * pixels


def painted_heads(mark: HeadColours, size: tuple[int, int]) -> Array:
    """uint8 (height, width, 3): each map in its own colour; where several are strong their colours mix."""
    weights = []
    for values in mark.maps_RC:
        spread = float(values.max() - values.min())
        relative = (values - values.min()) / spread if spread else np.zeros_like(values)
        # Squared, so that only the places a head looks at most take its colour.
        weights.append(resized(relative.astype(np.float32), size, "bilinear") ** 2)
    stacked = np.stack(weights)
    palette = np.array([rgb(head_colour(i)) for i in mark.numbers], float)
    mixed = np.einsum("khw,kc->hwc", stacked, palette) / np.maximum(stacked.sum(0), 1e-6)[..., None]
    under = np.full((*size, 3), 245.0) if mark.image is None else _grey(resized(mark.image.astype(np.float32), size))
    alpha = np.minimum(stacked.max(0), 1)[..., None] * 0.8
    return bytes_of(under * (1 - alpha) + mixed * alpha)
