"""Drawn faces of a cat and a dog, for the demo model ``pets``: its photos may not be passed on, these may.

The model was trained on photos; what it says about a drawing shows how an explanation looks, not how good it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SIZE = 128
_FINER = 2  # points per pixel and axis; their mean smooths the edges


def face(animal: str, seed: int = 0, size: int = SIZE) -> Array:
    """(size, size, 3) uint8: "cat" or "dog", from the front. The seed chooses fur, light and background."""
    if animal not in ("cat", "dog"):
        raise ValueError(f"animal {animal!r}: cat or dog")
    rng = np.random.default_rng((seed, ("cat", "dog").index(animal)))
    line = (np.arange(size * _FINER) + 0.5) / (size * _FINER) * 2 - 1
    x, y = np.meshgrid(line, line)
    canvas = _Canvas(x, y, rng)
    (_cat if animal == "cat" else _dog)(canvas, rng)
    points = canvas.image.reshape(size, _FINER, size, _FINER, 3).mean((1, 3))
    points = points + rng.normal(0, 0.015, points.shape)
    return (points.clip(0, 1) * 255).round().astype(np.uint8)


class _Canvas:
    """A picture that shapes are laid on, each with fur and a soft edge."""

    def __init__(self, x: Array, y: Array, rng: np.random.Generator) -> None:
        self.x, self.y = x, y
        self.fur = _fur(len(x), rng)
        light = 0.5 + 0.12 * x - 0.15 * y
        self.image: Array = light[..., None] * rng.uniform(0.6, 1.1, 3)

    def lay(self, distance: Array, colour: Any, soft: float = 0.02, fur: float = 0.0, shade: float = 0.0) -> None:
        """``distance``: below 0 inside the shape. ``shade`` darkens towards its edge."""
        cover = np.clip(0.5 - (distance + fur * 0.1 * self.fur) / soft, 0, 1)[..., None]
        tone = 1 + fur * self.fur - shade * np.clip(1 + distance * 3, 0, 1) - 0.12 * self.y
        self.image = self.image * (1 - cover) + cover * (np.asarray(colour) * tone[..., None])

    def ellipse(self, at: tuple[float, float], radius: tuple[float, float], turn: float = 0.0) -> Array:
        cos, sin = np.cos(turn), np.sin(turn)
        u, v = self.x - at[0], self.y - at[1]
        u, v = cos * u + sin * v, -sin * u + cos * v
        return (np.hypot(u / radius[0], v / radius[1]) - 1) * min(radius)

    def triangle(self, *corners: tuple[float, float]) -> Array:
        """Corners clockwise, y downwards."""
        sides = []
        for (ax, ay), (bx, by) in zip(corners, [*corners[1:], corners[0]], strict=True):
            length = np.hypot(bx - ax, by - ay)
            sides.append(((by - ay) * (self.x - ax) - (bx - ax) * (self.y - ay)) / length)
        return np.max(sides, axis=0)

    def line(self, start: tuple[float, float], end: tuple[float, float], width: float) -> Array:
        du, dv = end[0] - start[0], end[1] - start[1]
        along = np.clip(((self.x - start[0]) * du + (self.y - start[1]) * dv) / (du**2 + dv**2), 0, 1)
        return np.hypot(self.x - start[0] - along * du, self.y - start[1] - along * dv) - width


def _fur(points: int, rng: np.random.Generator) -> Array:
    """Noise in strokes that run downwards, between about -1 and 1."""
    noise = rng.normal(size=(points, points))
    frequency_y, frequency_x = np.fft.fftfreq(points)[:, None], np.fft.fftfreq(points)[None]
    gain = np.exp(-((frequency_y / 0.04) ** 2) - (frequency_x / 0.12) ** 2)
    strokes = np.fft.ifft2(np.fft.fft2(noise) * gain).real
    return strokes / np.abs(strokes).max()


def _cat(canvas: _Canvas, rng: np.random.Generator) -> None:
    coat = np.array([0.62, 0.5, 0.38]) * rng.uniform(0.8, 1.15)
    dark, pale = coat * 0.45, np.array([0.93, 0.89, 0.84])
    canvas.lay(canvas.ellipse((0, 1.1), (0.75, 0.65)), coat, 0.06, 0.35, 0.3)
    for side in (-1, 1):
        ear = [(side * 0.16, -0.42), (side * 0.56, -0.9), (side * 0.64, -0.12)]
        inner = [(side * 0.29, -0.46), (side * 0.52, -0.76), (side * 0.55, -0.3)]
        canvas.lay(canvas.triangle(*(ear if side > 0 else ear[::-1])), coat, 0.04, 0.3)
        canvas.lay(canvas.triangle(*(inner if side > 0 else inner[::-1])), [0.8, 0.6, 0.55], 0.08, 0.25)
    canvas.lay(canvas.ellipse((0, 0.08), (0.68, 0.58)), coat, 0.05, 0.4, 0.35)
    for start, end in (((-0.14, -0.44), (-0.1, -0.22)), ((0, -0.48), (0, -0.2)), ((0.14, -0.44), (0.1, -0.22))):
        canvas.lay(canvas.line(start, end, 0.03), dark, 0.05, 0.3)
    for side in (-1, 1):
        for height in (0.0, 0.14, 0.28):
            canvas.lay(canvas.line((side * 0.66, height), (side * 0.46, height + 0.05), 0.025), dark, 0.05, 0.3)
        canvas.lay(canvas.ellipse((side * 0.27, -0.02), (0.16, 0.125), side * -0.25), [0.1, 0.08, 0.07], 0.03)
        canvas.lay(canvas.ellipse((side * 0.27, -0.02), (0.135, 0.105), side * -0.25), [0.66, 0.72, 0.28], 0.03)
        canvas.lay(canvas.ellipse((side * 0.27, -0.02), (0.045, 0.1)), [0.03, 0.03, 0.03], 0.02)
        canvas.lay(canvas.ellipse((side * 0.27 + 0.04, -0.06), (0.025, 0.025)), [1, 1, 1], 0.02)
        canvas.lay(canvas.ellipse((side * 0.13, 0.38), (0.17, 0.13)), pale, 0.08, 0.2, 0.1)
    canvas.lay(canvas.ellipse((0, 0.53), (0.13, 0.08)), pale, 0.06, 0.2)
    canvas.lay(canvas.triangle((-0.085, 0.21), (0.085, 0.21), (0, 0.31)), [0.8, 0.45, 0.45], 0.04)
    for side in (-1, 1):
        canvas.lay(canvas.line((0, 0.31), (side * 0.1, 0.43), 0.01), dark * 0.6, 0.02)
        for rise in (-0.1, 0.0, 0.1):
            canvas.lay(canvas.line((side * 0.2, 0.38 + rise / 3), (side * 0.85, 0.34 + rise), 0.004), [1, 1, 1], 0.012)


def _dog(canvas: _Canvas, rng: np.random.Generator) -> None:
    coat = np.array([0.72, 0.5, 0.26]) * rng.uniform(0.85, 1.15)
    dark = coat * 0.55
    canvas.lay(canvas.ellipse((0, 1.15), (0.7, 0.7)), coat, 0.06, 0.35, 0.3)
    canvas.lay(canvas.ellipse((0, -0.08), (0.52, 0.6)), coat, 0.05, 0.35, 0.3)
    for side in (-1, 1):
        canvas.lay(canvas.ellipse((side * 0.52, -0.02), (0.2, 0.5), side * -0.18), dark, 0.05, 0.35, 0.25)
        canvas.lay(canvas.ellipse((side * 0.22, -0.17), (0.095, 0.085)), [0.2, 0.12, 0.06], 0.04)
        canvas.lay(canvas.ellipse((side * 0.22, -0.17), (0.065, 0.065)), [0.03, 0.02, 0.02], 0.03)
        canvas.lay(canvas.ellipse((side * 0.22 + 0.025, -0.195), (0.02, 0.02)), [1, 1, 1], 0.02)
    canvas.lay(canvas.ellipse((0, 0.3), (0.36, 0.34)), np.minimum(coat * 1.3, 0.95), 0.08, 0.25, 0.2)
    canvas.lay(canvas.ellipse((0, 0.7), (0.13, 0.2)), [0.85, 0.42, 0.45], 0.04)
    canvas.lay(canvas.line((0, 0.3), (0, 0.5), 0.012), dark * 0.4, 0.03)
    for side in (-1, 1):
        canvas.lay(canvas.line((0, 0.5), (side * 0.22, 0.52), 0.015), dark * 0.4, 0.03)
    canvas.lay(canvas.ellipse((0, 0.17), (0.17, 0.125)), [0.06, 0.05, 0.05], 0.04)
    canvas.lay(canvas.ellipse((-0.04, 0.12), (0.05, 0.025)), [0.5, 0.5, 0.52], 0.04)
