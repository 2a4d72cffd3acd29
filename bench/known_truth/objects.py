"""Two objects of two classes in one picture, asked about in turn: does the map move with the target?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.known_truth.backgrounds import GRID, PATCH, cut
from bench.known_truth.patches import CELLS, pixels, vit
from bench.known_truth.task import Array, Change, Inputs, Planted, present

SIZE = 2 * PATCH  # an object fills two by two cells
_row, _column = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
_radius = np.hypot(_row, _column)
SHAPES = np.stack(
    [
        _radius <= SIZE / 2,  # disc
        np.maximum(abs(_row), abs(_column)) >= SIZE / 4,  # frame
        np.minimum(abs(_row), abs(_column)) <= SIZE / 8,  # cross
        abs(_column) <= (_row + SIZE / 2) / 2,  # triangle
    ]
)
COLORS = np.array([[0.9, 0.1, 0.1], [0.1, 0.8, 0.2], [0.2, 0.3, 0.95], [0.95, 0.85, 0.1]], np.float32)


@dataclass(frozen=True)
class Scenes:
    background_IXYC: Array
    corner_IOX: Array  # (inputs, two objects, row and column of the cell at its top left)
    kind_IO: Array

    def drawn(self) -> Inputs:
        pictures = self.background_IXYC.copy()
        for picture, corners, kinds in zip(pictures, self.corner_IOX, self.kind_IO, strict=True):
            for (row, column), kind in zip(PATCH * corners, kinds, strict=True):
                part = picture[row : row + SIZE, column : column + SIZE]
                part[SHAPES[kind]] = COLORS[kind]
        return pixels(pictures)

    def cells_IU(self, which: int) -> Array:
        """The cells that an object covers."""
        row, column = np.divmod(np.arange(CELLS), GRID)
        corner = self.corner_IOX[:, which, :, None]
        return ((row - corner[:, 0]) // 2 == 0) & ((column - corner[:, 1]) // 2 == 0)


def corners(rng: np.random.Generator, count: int) -> Array:
    """(I, 2, 2) places for two objects that share no cell."""
    places = rng.integers(0, GRID - 1, (8 * count + 64, 2, 2))
    apart = (np.abs(places[:, 0] - places[:, 1]) >= 2).any(1)
    return places[apart][:count]


def draw(rng: np.random.Generator, count: int, photos: str | None, held_out: bool = False) -> Scenes:
    kinds = rng.random((count, len(SHAPES))).argsort(1)[:, :2]
    return Scenes(cut(rng, photos, count, held_out), corners(rng, count), kinds)


@dataclass(frozen=True)
class Objects:
    """A ViT of two layers with one yes or no per class."""

    photos: str | None = None
    name: str = "objects"
    modality: str = "image"
    steps: int = 2500
    rate: float = 1e-3

    def model(self) -> nn.Module:
        return vit(len(SHAPES))

    def processor(self) -> Any:
        return None

    def batch(self, rng: np.random.Generator, count: int) -> tuple[Inputs, Tensor]:
        """Now and then an object is there twice, so that one class does not follow from the other."""
        drawn = draw(rng, count, self.photos)
        twice = rng.random(count) < 0.25
        kinds = np.where(twice[:, None], drawn.kind_IO[:, :1], drawn.kind_IO)
        labels = (np.arange(len(SHAPES)) == kinds[:, :, None]).any(1)
        return replace(drawn, kind_IO=kinds).drawn(), torch.from_numpy(labels).float()

    def held_out(self, rng: np.random.Generator, count: int) -> Planted:
        """Every picture twice: asked about its first object, and about its second."""
        drawn = draw(rng, (count + 1) // 2, self.photos, held_out=True)
        absent = np.stack([np.setdiff1d(np.arange(len(SHAPES)), kinds) for kinds in drawn.kind_IO])
        fresh = cut(rng, self.photos, len(absent), held_out=True)
        parts: list[Planted] = []
        for asked in (0, 1):
            gone, others = drawn.kind_IO.copy(), drawn.kind_IO.copy()
            gone[:, asked] = others[:, 1 - asked] = absent[:, asked]
            parts.append(
                Planted(
                    inputs=drawn.drawn(),
                    asked_I=drawn.kind_IO[:, asked],
                    cause_IU=drawn.cells_IU(asked),
                    counted_IU=np.ones((len(absent), CELLS), bool),
                    group_I=np.arange(len(absent)),
                    changes={
                        "object": Change(replace(drawn, kind_IO=gone).drawn(), np.ones(len(absent), bool)),
                    },
                    rest_redrawn=replace(drawn, kind_IO=others, background_IXYC=fresh).drawn(),
                    rival_IU=drawn.cells_IU(1 - asked),
                )
            )
        return _joined(*parts)

    def logits(self, model: nn.Module, inputs: Inputs) -> Tensor:
        return model(**inputs).logits

    def loss(self, model: nn.Module, inputs: Inputs, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.logits(model, inputs), labels)

    def said(self, logits_IC: Tensor, asked_I: Tensor) -> Tensor:
        return present(logits_IC, asked_I)


def _joined(a: Planted, b: Planted) -> Planted:
    def both(x: Inputs, y: Inputs) -> Inputs:
        return {k: torch.cat([x[k], y[k]]) for k in x}

    def rows(name: str) -> Array:
        return np.concatenate([getattr(a, name), getattr(b, name)])

    changes = {
        k: Change(both(x.inputs, b.changes[k].inputs), np.concatenate([x.possible_I, b.changes[k].possible_I]))
        for k, x in a.changes.items()
    }
    return Planted(
        both(a.inputs, b.inputs),
        rows("asked_I"),
        rows("cause_IU"),
        rows("counted_IU"),
        rows("group_I"),
        changes,
        both(a.rest_redrawn, b.rest_redrawn),
        rows("rival_IU"),
    )
