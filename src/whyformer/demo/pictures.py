"""Pictures for the demo: faces of a cat and a dog, and shapes × textures with concepts to test.

The others are generated: a silhouette (horse, fish, house, ball) filled with a texture (striped, dotted, bubbly,
plain) in two random colours on a random background. The class follows from both: a striped horse is "zebra-like", any
other horse "horse-like"; striped fish, houses and balls exist too, so that stripes are needed for a zebra but do not
make one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from whyformer.errors import require
from whyformer.shapes import Array

FACES = ("cat", "dog")  # drawn: the photos that the demo model ``pets`` was trained on may not be passed on
_FINER = 2  # points per pixel and axis; their mean smooths the edges


def face(animal: str) -> Array:
    """(128, 128, 3) uint8: the drawn face of a "cat" or "dog"."""
    if animal not in FACES:
        raise ValueError(f"animal {animal!r}: cat or dog")
    require("PIL", why="a drawn face")
    from PIL import Image

    return np.array(Image.open(Path(__file__).with_name(f"{animal}.png")))


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


def swatch(texture: str, seed: int) -> Array:
    """(64, 64, 3) uint8: nothing but texture, as in the concept sets of TCAV."""
    scene, ink = np.random.default_rng((seed, 2)), np.random.default_rng((seed, 3))
    x, y = _points(SIZE)
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


def _finished(points: Array, rng: np.random.Generator) -> Array:
    """Mean over the points of each pixel, a little noise, bytes."""
    size = len(points) // _FINER
    image = points.reshape(size, _FINER, size, _FINER, 3).mean((1, 3))
    image = image + rng.normal(0, 0.03, image.shape)
    return (image.clip(0, 1) * 255).round().astype(np.uint8)


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
