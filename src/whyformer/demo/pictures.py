"""Generate pictures for the demo: faces of cats and dogs, and shapes × textures with concepts to test.

Every picture is a silhouette (horse, fish, house, ball) filled with a texture (striped, dotted, bubbly, plain) in two
random colours on a random background. The class follows from both: a striped horse is "zebra-like", any other horse
"horse-like"; striped fish, houses and balls exist too, so that stripes are needed for a zebra but do not make one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.shapes import Array

# Drawn faces of a cat and a dog, for the demo model ``pets``: its photos may not be passed on, these may.
#
# The model was trained on photos; what it says about a drawing shows how an explanation looks, not how good it is.

FACE_SIZE = 128
_FINER = 2  # points per pixel and axis; their mean smooths the edges


def face(animal: str, seed: int = 0, size: int = FACE_SIZE) -> Array:
    """(size, size, 3) uint8: "cat" or "dog", from the front. The seed chooses fur, light and background."""
    if animal not in ("cat", "dog"):
        raise ValueError(f"animal {animal!r}: cat or dog")
    rng = np.random.default_rng((seed, ("cat", "dog").index(animal)))
    canvas = _Canvas(*_points(size), rng)
    (_cat if animal == "cat" else _dog)(canvas, rng)
    return _finished(canvas.image, rng, noise=0.015)


class _Canvas:
    """A picture that shapes are laid on, each with fur and a soft edge."""

    def __init__(self, x: Array, y: Array, rng: np.random.Generator) -> None:
        self.x, self.y = x, y
        # Noise in strokes that run downwards, between about -1 and 1.
        frequency_y, frequency_x = np.fft.fftfreq(len(x))[:, None], np.fft.fftfreq(len(x))[None]
        gain = np.exp(-((frequency_y / 0.04) ** 2) - (frequency_x / 0.12) ** 2)
        strokes = np.fft.ifft2(np.fft.fft2(rng.normal(size=x.shape)) * gain).real
        self.fur = strokes / np.abs(strokes).max()
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


SHAPES = ("horse", "fish", "house", "ball")
TEXTURES = ("striped", "dotted", "bubbly", "plain")
CLASSES = ("zebra-like", "horse-like", "fish-like", "house-like", "ball-like")
SIZE = 64


def picture(shape: str, texture: str, seed: int, size: int = SIZE) -> Array:
    """(size, size, 3) uint8. Equal seeds give the same scene, whatever the texture."""
    scene, ink = np.random.default_rng((seed, 0)), np.random.default_rng((seed, 1))
    x, y = _points(size)
    angle, grown = scene.uniform(-0.35, 0.35), scene.uniform(0.9, 1.3)
    mirrored = -1 if scene.random() < 0.5 else 1
    dx, dy = scene.uniform(-0.15, 0.15, 2)
    u, v = _turned(x - dx, y - dy, angle)
    inside = _silhouette(shape, mirrored * u * grown, v * grown)
    ground, body, marks = _colours(scene)
    slope = scene.uniform(-0.12, 0.12, 2)
    image = ground + (slope[0] * x + slope[1] * y)[..., None]
    filled = np.where(_texture(texture, x, y, ink)[..., None], marks, body)
    return _finished(np.where(inside[..., None], filled, image), scene)


def swatch(texture: str, seed: int, size: int = SIZE) -> Array:
    """(size, size, 3) uint8: nothing but texture, as in the concept sets of TCAV."""
    scene, ink = np.random.default_rng((seed, 2)), np.random.default_rng((seed, 3))
    x, y = _points(size)
    _, body, marks = _colours(scene)
    return _finished(np.where(_texture(texture, x, y, ink)[..., None], marks, body), scene)


def _points(size: int) -> tuple[Array, Array]:
    """Coordinates of the points in [-1, 1], y downwards."""
    line = (np.arange(size * _FINER) + 0.5) / (size * _FINER) * 2 - 1
    x, y = np.meshgrid(line, line)
    return x, y


def _turned(x: Array, y: Array, angle: float) -> tuple[Array, Array]:
    cos, sin = np.cos(angle), np.sin(angle)
    return cos * x + sin * y, -sin * x + cos * y


def _colours(rng: np.random.Generator) -> Array:
    """Background, body and marks: three colours that differ clearly from each other."""
    while True:
        colours: Array = rng.uniform(0.05, 0.95, (3, 3))
        gaps = [np.abs(colours[i] - colours[j]).max() for i, j in ((0, 1), (0, 2), (1, 2))]
        brightness = colours.mean(1)
        if min(gaps) > 0.3 and abs(brightness[1] - brightness[2]) > 0.3:
            return colours


def _finished(points: Array, rng: np.random.Generator, noise: float = 0.03) -> Array:
    """Mean over the points of each pixel, a little noise, bytes."""
    size = len(points) // _FINER
    image = points.reshape(size, _FINER, size, _FINER, 3).mean((1, 3))
    image = image + rng.normal(0, noise, image.shape)
    return (image.clip(0, 1) * 255).round().astype(np.uint8)


# Silhouettes


def _silhouette(shape: str, u: Array, v: Array) -> Array:
    if shape == "ball":
        return u**2 + v**2 < 0.62**2
    if shape == "house":
        walls = (np.abs(u) < 0.5) & (v > -0.15) & (v < 0.65)
        roof = (v <= -0.1) & (v > -0.75) & (np.abs(u) < (v + 0.75) * 1.05)
        return walls | roof
    if shape == "fish":
        body = _ellipse(u - 0.12, v, 0.62, 0.36)
        tail = (u < -0.3) & (u > -0.85) & (np.abs(v) < (-0.25 - u) * 0.75)
        return body | tail
    if shape != "horse":
        raise ValueError(f"shape {shape!r}: one of {', '.join(SHAPES)}")
    body = _ellipse(u, v, 0.58, 0.3)
    neck = _bar(u, v, (0.38, -0.08), (0.62, -0.55), 0.13)
    head = _bar(u, v, (0.6, -0.55), (0.85, -0.42), 0.11)
    leaning = ((-0.42, -0.06), (-0.22, 0.02), (0.22, -0.02), (0.42, 0.05))
    legs = [_bar(u, v, (at, 0.1), (at + lean, 0.75), 0.075) for at, lean in leaning]
    tail = _bar(u, v, (-0.52, -0.05), (-0.75, 0.3), 0.05)
    return np.logical_or.reduce([body, neck, head, tail, *legs])


def _ellipse(u: Array, v: Array, width: float, height: float) -> Array:
    return (u / width) ** 2 + (v / height) ** 2 < 1


def _bar(u: Array, v: Array, start: tuple[float, float], end: tuple[float, float], radius: float) -> Array:
    """Points within ``radius`` of a line."""
    du, dv = end[0] - start[0], end[1] - start[1]
    along = np.clip(((u - start[0]) * du + (v - start[1]) * dv) / (du**2 + dv**2), 0, 1)
    return (u - start[0] - along * du) ** 2 + (v - start[1] - along * dv) ** 2 < radius**2


# Textures: where the marks are


def _texture(texture: str, x: Array, y: Array, rng: np.random.Generator) -> Array:
    if texture == "plain":
        return np.zeros(x.shape, bool)
    if texture == "striped":
        u, v = _turned(x, y, rng.uniform(0, np.pi))
        bend = rng.uniform(0, 0.06) * np.sin(rng.uniform(2, 5) * v + rng.uniform(0, 6))
        waves: Array = np.sin(2 * np.pi * rng.uniform(3, 4.5) * (u + bend) + rng.uniform(0, 6)) > 0
        return waves
    if texture == "dotted":
        step = rng.uniform(0.22, 0.3)
        u, v = _turned(x + rng.uniform(0, 1), y + rng.uniform(0, 1), rng.uniform(0, np.pi))
        u = u + step / 2 * (np.floor(v / step) % 2)  # every other row moves half a step
        radius = step * rng.uniform(0.28, 0.36)
        dots: Array = (u % step - step / 2) ** 2 + (v % step - step / 2) ** 2 < radius**2
        return dots
    if texture != "bubbly":
        raise ValueError(f"texture {texture!r}: one of {', '.join(TEXTURES)}")
    marks = np.zeros(x.shape, bool)
    for at_x, at_y, radius in zip(*rng.uniform(-1, 1, (2, 80)), rng.uniform(0.07, 0.17, 80), strict=True):
        left, right = np.searchsorted(x[0], [at_x - radius, at_x + radius])
        top, bottom = np.searchsorted(y[:, 0], [at_y - radius, at_y + radius])
        near = slice(top, bottom), slice(left, right)  # elsewhere nothing changes
        far = np.hypot(x[near] - at_x, y[near] - at_y)
        marks[near] &= far > radius  # a bubble covers those behind it
        marks[near] |= (far <= radius) & (far > radius - 0.045)
    return marks
