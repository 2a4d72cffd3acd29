"""Pixels: reading a picture, resizing it, writing it as PNG. Numpy only, but for reading files (Pillow)."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from whyformer.errors import BadInput, UnknownName
from whyformer.photo import open_image

Array = np.ndarray[Any, Any]
INTERPOLATIONS = ("bilinear", "nearest")


def to_pixels(image: Any) -> Array:
    """A PIL image, a path, or an array (H,W), (H,W,3|4) or (3,H,W) → uint8 (H, W, 3). Photos are turned upright."""
    if isinstance(image, (str, Path)) or hasattr(image, "convert"):  # PIL
        image = open_image(image)
    elif hasattr(image, "detach"):  # torch
        image = image.detach().float().cpu().numpy()
    pixels = np.asarray(image)
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


def resized(values_RC: Array, size: tuple[int, int] | None, interpolation: str = "bilinear") -> Array:
    """(R, C) or (R, C, channels) → (height, width, …)."""
    if interpolation not in INTERPOLATIONS:
        raise UnknownName("interpolation", interpolation, INTERPOLATIONS)
    if size is None:
        return values_RC
    if len(size) != 2 or min(size) < 1:
        raise BadInput(f"size={size!r}: two whole numbers of at least 1, height and width.")
    for axis in (0, 1):
        values_RC = _resized_axis(values_RC, axis, size[axis], interpolation)
    return values_RC


def _resized_axis(values: Array, axis: int, length: int, interpolation: str) -> Array:
    count = values.shape[axis]
    # Centres of the new cells in units of the old ones; beyond the outer centres the border value holds.
    centres = (np.arange(length) + 0.5) * count / length - 0.5
    if interpolation == "nearest":
        nearest: Array = np.take(values, np.clip(np.floor(centres + 0.5), 0, count - 1).astype(int), axis)
        return nearest
    low = np.clip(np.floor(centres), 0, count - 1).astype(int)
    high = np.minimum(low + 1, count - 1)
    shape = [1] * values.ndim
    shape[axis] = length
    part = np.clip(centres - low, 0, 1).reshape(shape).astype(np.float32)
    result: Array = np.take(values, low, axis) * (1 - part) + np.take(values, high, axis) * part
    return result


def shrunk(values: Array, longest: int) -> Array:
    """Averaged down to at most ``longest`` rows and columns; never enlarged."""
    for axis in (0, 1):
        if values.shape[axis] > longest:
            parts = np.array_split(values, longest, axis)
            values = np.concatenate([p.mean(axis, keepdims=True) for p in parts], axis)
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
