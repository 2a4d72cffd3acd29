"""What stamps are planted on: textured noise, or photos from a folder or tar file."""

from __future__ import annotations

import io
import tarfile
from functools import cache
from pathlib import Path

import numpy as np

from bench.known_truth.task import Array

SIDE, PATCH = 64, 8
NOISES = 768
PHOTOS = 1500
HELD_OUT = 0.25  # share of the backgrounds that training never sees


@cache
def backgrounds(photos: str | None) -> Array:
    """(K, SIDE, SIDE, 3) float32 in 0…1."""
    return noises() if photos is None else photos_in(Path(photos))


def noises() -> Array:
    """Coloured noise of several grains, each picture with a mixture and a tint of its own."""
    rng = np.random.default_rng(0)
    result = np.zeros((NOISES, SIDE, SIDE, 3), np.float32)
    for grain in (1, 2, 4, 8, 16):
        small = rng.standard_normal((NOISES, SIDE // grain, SIDE // grain, 3))
        strength = rng.random((NOISES, 1, 1, 1))
        result += strength * small.repeat(grain, 1).repeat(grain, 2)
    result += rng.standard_normal((NOISES, 1, 1, 3))
    return (0.5 + 0.18 * result / result.std((1, 2, 3), keepdims=True)).clip(0, 1).astype(np.float32)


def photos_in(path: Path) -> Array:
    from PIL import Image

    def small(data: bytes) -> Array:
        with Image.open(io.BytesIO(data)) as photo:
            return np.asarray(photo.convert("RGB").resize((SIDE, SIDE)), np.float32) / 255

    endings = (".jpg", ".jpeg", ".png")
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in endings)
        chosen = _spread(len(files))
        return np.stack([small(files[i].read_bytes()) for i in chosen])
    with tarfile.open(path) as archive:
        members = sorted((m for m in archive if m.name.lower().endswith(endings)), key=lambda m: m.name)
        opened = [archive.extractfile(members[i]) for i in _spread(len(members))]
        return np.stack([small(file.read()) for file in opened if file is not None])


def _spread(count: int) -> Array:
    """Which of the photos are used: at most PHOTOS, evenly over the folder, in an order of chance."""
    if not count:
        raise SystemExit("--photos: no .jpg or .png in there.")
    return np.random.default_rng(0).permutation(np.linspace(0, count - 1, min(count, PHOTOS)).astype(int))


def cut(rng: np.random.Generator, photos: str | None, count: int, held_out: bool) -> Array:
    """(I, SIDE, SIDE, 3) backgrounds, half of them mirrored."""
    known = backgrounds(photos)
    border = int(len(known) * HELD_OUT)
    which = rng.integers(0, border, count) if held_out else rng.integers(border, len(known), count)
    pieces = known[which]
    mirrored = rng.random(count) < 0.5
    pieces[mirrored] = pieces[mirrored, :, ::-1]
    return pieces
