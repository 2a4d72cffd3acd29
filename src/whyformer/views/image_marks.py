"""Images and sound: heat over the picture, boxes, single pixels, and scores over time."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from whyformer.errors import BadInput, NotOffered, reading, shown
from whyformer.files import open_image, resized
from whyformer.results.types import Explanation, Units
from whyformer.shapes import Array
from whyformer.views import scales
from whyformer.views.marks import PLAIN, Frame, HeadColours, Heat, Line, Lines, MarkSettings, Picture, Scale
from whyformer.views.scales import DIVERGING, HEAT, bytes_of, head_colour, headroom, ramp, rgb, scale_of


def frames_of(explanation: Explanation) -> tuple[Frame, ...]:
    """The box that the explained query of a detector predicts, with the name of the explained class."""
    units, query = explanation.units, explanation.target.position
    boxes = units.boxes or ()
    query_boxes = [boxes[i] for i, stream in enumerate(units.stream) if boxes and stream == "queries"]
    if query is None or query >= len(query_boxes):
        return ()
    left, top, right, bottom = query_boxes[query][:4]
    return (Frame((left, top, right, bottom), str(explanation.target)),) if left < right and top < bottom else ()


def box_words(frame: Frame) -> str:
    """Describe a box: 12–40 % of the width, 20–60 % of the height, from the top left"""
    left, top, right, bottom = (round(100 * edge) for edge in frame.box)
    return f"{left}–{right} % of the width, {top}–{bottom} % of the height, from the top left"


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


def to_pixels(image: Any) -> Array:
    """A PIL image, a path, or an array (H,W), (H,W,3|4) or (3,H,W) → uint8 (H, W, 3). Photos are turned upright."""
    with reading("image cannot be read as a picture", "Give a PIL image, a path or an array of pixels."):
        if isinstance(image, (str, Path)) or hasattr(image, "convert"):  # PIL
            image = open_image(image)
        elif hasattr(image, "detach"):  # torch
            image = image.detach().float().cpu().numpy()
        pixels = np.asarray(image)
    if pixels.dtype.kind not in "biuf" or not pixels.size:
        raise BadInput(f"image is {shown(image)}, and not an array of pixels: give numbers, or a PIL image.")
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[2] not in (1, 3, 4):
        pixels = np.moveaxis(pixels, 0, 2)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4):
        raise BadInput(f"image has shape {pixels.shape}; expected height × width × colours, or a PIL image.")
    pixels = np.repeat(pixels, 3, 2) if pixels.shape[2] == 1 else pixels[..., :3]
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    pixels = pixels.astype(float)
    low, high = float(pixels.min()), float(pixels.max())
    if low < 0 or high > 255:  # normalised for a model: bring its range back
        pixels = (pixels - low) / max(high - low, 1e-12)
        high = 1.0
    return np.rint(pixels * (255 if high <= 1 else 1)).clip(0, 255).astype(np.uint8)


def shrunk(values: Array, longest: int, largest: bool = False) -> Array:
    """Return at most ``longest`` rows and columns: neighbours share a cell, by their mean or the largest of them."""
    for axis in (0, 1):
        size = values.shape[axis]
        if size <= longest:
            continue
        starts = np.array([part[0] for part in np.array_split(np.arange(size), longest)])
        if largest:  # of attention: a mean would fade single weights, and the scale would be that of means
            values = np.maximum.reduceat(values, starts, axis)
        else:
            counts = np.diff([*starts, size]).reshape([-1 if a == axis else 1 for a in range(values.ndim)])
            values = np.add.reduceat(values, starts, axis) / counts
    return values


def png(pixels: Array) -> bytes:
    """uint8 (H, W, 3) as the bytes of a PNG file."""
    height, width = pixels.shape[:2]
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], 1)  # 0: no filter

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9))
        + chunk(b"IEND", b"")
    )


def unnormalized(pixels_CHW: Array, mean: Any = None, std: Any = None) -> Array:
    """A model's input tensor back to a picture, uint8 (H, W, 3)."""
    pixels = np.moveaxis(pixels_CHW.astype(float), 0, 2)
    if mean is not None and std is not None:
        pixels = np.clip(pixels * np.asarray(std) + np.asarray(mean), 0, 1)
    return to_pixels(pixels)


CANVAS = 384  # pixels of the longer side, for heat without an image


def canvas_size(mark: Picture | Heat | HeadColours, longest: int = CANVAS) -> tuple[int, int]:
    """Height and width to draw at: in the proportions of the image, or of the area that the grid covers."""
    if mark.image is not None:
        height, width = mark.image.shape[:2]
    else:
        height, width = mark.size or (mark.values_RC if isinstance(mark, Heat) else mark.maps_RC[0]).shape
    factor = longest / max(height, width)
    if isinstance(mark, Heat) and mark.fine:
        factor = float(max(1, round(factor)))
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


def picture(mark: Picture, size: tuple[int, int]) -> Array:
    return bytes_of(resized(mark.image.astype(np.float32), size, mark.interpolation))


def _grey(pixels: Array) -> Array:
    """Move colours half way to grey, so that they are not read as heat."""
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


ROUNDING = 1.5  # pixels; some processors round to whole patches instead


def heat(explanation: Explanation, look: MarkSettings = PLAIN, interpolation: str = "bilinear") -> Heat:
    """Return the patches' scores over the image, from the lowest to the highest patch."""
    units, sound = explanation.units, of_sound(explanation.units)
    require_fit(look.image, units)
    values = explanation.heatmap() * np.float32(look.times)
    values = values[::-1] if sound else values  # as in spectrograms, low frequencies at the bottom
    alone = scales.widened(scale_of([values], explanation.signed, from_zero=False), headroom(explanation))
    frames = frames_of(explanation)
    return Heat(values, look.scale or alone, look.image, interpolation, units.image_size, frames, sound)


MOST_COLOURS = 4
ENLARGED = 4  # patches of each side
TAIL = 99.0  # per cent of the pixels that the scale is made for: a few are far above all others


def has_pixels(explanation: Explanation) -> bool:
    """Scores of single pixels, in one or several colours; other details are of embeddings."""
    detail, size = explanation.detail, explanation.units.image_size
    if detail is None or size is None or explanation.units.grid is None or of_sound(explanation.units):
        return False
    if detail.ndim == 3 and len(detail) <= MOST_COLOURS:  # larger than the picture where that was padded
        return all(has >= wanted for has, wanted in zip(detail.shape[1:], size, strict=True))
    return detail.shape == size


def pixel_map(explanation: Explanation) -> Array:
    """``detail`` of a method that scores pixels, (height, width): colours added up, or their norm without a sign."""
    if not has_pixels(explanation):
        raise NotOffered(
            f"detail=True draws scores of single pixels, and this explanation ({explanation.method}) has none: its "
            "scores are those of whole units."
        )
    height, width = explanation.units.image_size or (0, 0)
    pixels = np.atleast_3d(np.asarray(explanation.detail, float).T).T[:, :height, :width]
    if explanation.signed or explanation.options.get("magnitude"):
        return np.asarray(pixels.sum(0))
    norm, sizes = explanation.options.get("norm", "l2"), np.abs(pixels)
    return np.asarray(np.sqrt((sizes**2).sum(0)) if norm == "l2" else sizes.max(0) if norm == "max" else sizes.sum(0))


def pixel_heat(explanation: Explanation) -> Heat:
    """The map of pixels by itself: over the image its fine pattern could not be told from that of the image."""
    values = pixel_map(explanation)
    signed = explanation.signed or bool(values.min() < 0)
    reach = (float(np.percentile(np.abs(values), TAIL)) or float(np.abs(values).max())) * headroom(explanation)
    scale = Scale(-reach if signed else 0.0, reach, signed, "score of a pixel")
    return Heat(values, scale, None, "nearest", explanation.units.image_size, frames_of(explanation), fine=True)


def enlarged(mark: Heat, explanation: Explanation) -> tuple[Heat, Frame, str]:
    """Return the patches around the strongest, enlarged to single pixels, with their frame and name."""
    grid = explanation.units.grid or (1, 1)
    strongest = np.unravel_index(int(np.abs(explanation.heatmap()).argmax()), grid)
    cuts, edges, ends = [], [], []
    for at, count, pixels in zip(strongest, grid, mark.values_RC.shape, strict=True):
        first = min(max(0, int(at) - ENLARGED // 2), max(0, count - ENLARGED))
        last = min(count, first + ENLARGED)
        cuts.append(slice(round(first * pixels / count), round(last * pixels / count)))
        edges.append((first / count, last / count))
        ends.append((first + 1, last))
    values = mark.values_RC[cuts[0], cuts[1]]
    (top, bottom), (left, right) = edges
    words = f"patches {ends[0][0]},{ends[1][0]} to {ends[0][1]},{ends[1][1]}"
    close = replace(mark, values_RC=values, size=(values.shape[0], values.shape[1]), frames=())
    return close, Frame((left, top, right, bottom), "enlarged"), words


def of_sound(units: Units) -> bool:
    """A grid of bands by steps in time."""
    return units.grid is not None and set(units.stream) == {"audio"}


def fits(image: Array, units: Units) -> bool:
    """A picture has the proportions that the patches cover, but for rounding."""
    if units.grid is None and units.boxes is not None and units.image_size is not None:
        return True  # boxes are shares of any picture
    if units.grid is None or units.image_size is None or of_sound(units):
        return False
    (height, width), grid = image.shape[:2], units.grid
    for high, wide in (shape for shape in (units.image_size, units.picture_size) if shape is not None):
        by_height = abs(height * wide / width - high) <= max(high / grid[0], ROUNDING)
        if by_height or abs(width * high / height - wide) <= max(wide / grid[1], ROUNDING):
            return True
    return False


def require_fit(image: Array | None, units: Units) -> None:
    """A map over a picture of another shape than the model saw would lie in the wrong place."""
    if image is None or units.image_size is None or units.grid is None:
        return
    if of_sound(units):
        raise BadInput("image= is for pictures, and these are patches of sound: leave it out.")
    if fits(image, units):
        return
    (height, width), (high, wide) = image.shape[:2], units.image_size
    raise BadInput(
        f"the image is {height} pixels high and {width} wide, and the model saw {high} × {wide}: other proportions, so "
        "the map would not lie where it belongs. Pass the picture as the model saw it: image=processor(images=picture, "
        "return_tensors='pt')['pixel_values'][0]. Where the processor cuts nothing off and only squeezes the picture, "
        f"picture.resize(({wide}, {high})) is the same."
    )


def time_lines(explanation: Explanation, times: float = 1.0) -> Lines:
    """A step per frame at its time in seconds, the waveform behind it as high as the highest score."""
    units = explanation.units
    assert units.seconds is not None
    plain = [i for i, special in enumerate(units.special) if not special]
    scores = explanation.scores[plain].astype(float) * times
    edges = np.linspace(0.0, units.seconds, len(plain) + 1)
    x, steps = np.repeat(edges, 2)[1:-1], np.repeat(scores, 2)
    lines = [Line("score", steps)]
    if units.wave is not None:
        loud = np.asarray(units.wave) * float(np.abs(scores).max(initial=0.0))
        at = (np.arange(len(loud)) + 0.5) * units.seconds / len(loud)
        lines.append(Line("waveform", loud, quiet=True, x=at))
    return Lines(x, tuple(lines), "seconds", "score" if times == 1.0 else "share of the method's total", from_zero=True)


def boxes_drawn(pixels: Array, boxes: list[tuple[float, ...]], scores: Array, scale: Scale) -> Array:
    """Frames in the colour of their score, thicker and less see-through the more they weigh; the strongest on top."""
    canvas = pixels.astype(np.float32)
    height, width = canvas.shape[:2]
    for index in np.argsort(np.abs(scores), kind="stable"):
        left, top, right, bottom = (float(np.clip(x, 0, 1)) for x in boxes[index][:4])
        rows = sorted((round(top * (height - 1)), round(bottom * (height - 1))))
        columns = sorted((round(left * (width - 1)), round(right * (width - 1))))
        strength = abs(scale.length(float(scores[index])))
        colour = scales.colours(scale, scores[[index]])[0].astype(np.float32)
        frame = np.zeros((height, width), bool)
        frame[rows[0] : rows[1] + 1, columns[0] : columns[1] + 1] = True
        thick = 1 + round(strength * max(2, min(height, width) // 60))
        frame[rows[0] + thick : rows[1] + 1 - thick, columns[0] + thick : columns[1] + 1 - thick] = False
        alpha = 0.25 + 0.75 * strength
        canvas[frame] = canvas[frame] * (1 - alpha) + colour * alpha
    return bytes_of(canvas)
