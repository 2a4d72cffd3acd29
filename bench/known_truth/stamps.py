"""Planted stamps for a deeper ViT: which of four stamps lies somewhere on a picture, across the borders of patches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.known_truth.backgrounds import PATCH, SIDE, cut
from bench.known_truth.task import Array, Change, Classifier, Inputs, Planted

STAMP, GAP = 12, 4  # so that a stamp always lies across four patches
GRID = SIDE // PATCH
PLACES = (SIDE - STAMP) // GAP + 1
_row, _column = np.mgrid[:STAMP, :STAMP]
STAMPS = np.stack(
    [
        (_row // 2) % 2,
        (_column // 2) % 2,
        ((_row + _column) // 2) % 2,
        (_row // 2 + _column // 2) % 2,
    ]
).astype(np.float32)  # stripes in three directions, and a checkerboard


@dataclass(frozen=True)
class Stamped:
    background_IXYC: Array
    corner_I2: Array
    stamp_I: Array
    color_IC: Array

    def drawn(self) -> Inputs:
        pictures = self.background_IXYC.copy()
        for picture, (top, left), stamp, color in zip(
            pictures, self.corner_I2, self.stamp_I, self.color_IC, strict=True
        ):
            picture[top : top + STAMP, left : left + STAMP] = STAMPS[stamp][:, :, None] * color
        return pixels(pictures)

    def share_IU(self) -> Array:
        """(I, U) how much of the stamp lies in each patch; they add up to 1."""
        edges = PATCH * np.arange(GRID)
        start = self.corner_I2[:, :, None]  # rows and columns alike
        inside = np.minimum(start + STAMP, edges + PATCH) - np.maximum(start, edges)
        inside = inside.clip(0) / STAMP
        share: Array = (inside[:, 0, :, None] * inside[:, 1, None, :]).reshape(len(inside), -1)
        return share


def pixels(pictures_IXYC: Array) -> Inputs:
    """As a vision transformer reads them: channels first, about -1…1."""
    return {"pixel_values": torch.from_numpy(np.ascontiguousarray(pictures_IXYC.transpose(0, 3, 1, 2))) * 2 - 1}


def draw(rng: np.random.Generator, count: int, photos: str | None, held_out: bool = False) -> Stamped:
    return Stamped(
        cut(rng, photos, count, held_out),
        GAP * rng.integers(0, PLACES, (count, 2)),
        rng.integers(0, len(STAMPS), count),
        rng.uniform(0.6, 1, (count, 3)).astype(np.float32),
    )


@dataclass(frozen=True)
class Stamps(Classifier):
    """A ViT of six layers, 64 patches."""

    photos: str | None = None
    layers: int = 6
    name: str = "stamps"
    modality: str = "image"
    steps: int = 1500
    rate: float = 1e-3

    def model(self) -> nn.Module:
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(
            image_size=SIDE,
            patch_size=PATCH,
            hidden_size=96,
            num_hidden_layers=self.layers,
            num_attention_heads=4,
            intermediate_size=192,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=len(STAMPS),
        )
        return ViTForImageClassification(config)

    def processor(self) -> Any:
        return None

    def batch(self, rng: np.random.Generator, count: int) -> tuple[Inputs, Tensor]:
        """In half of the pictures some patches that the stamp is not on are grey, as in pictures with parts away."""
        stamped = draw(rng, count, self.photos)
        inputs = stamped.drawn()
        share = rng.random((count, 1)) * (rng.random((count, 1)) < 0.5)
        hidden = (rng.random((count, GRID * GRID)) < share) & (stamped.share_IU() == 0)
        gone = torch.from_numpy(hidden.reshape(count, 1, GRID, GRID).repeat(PATCH, 2).repeat(PATCH, 3))
        values = inputs["pixel_values"]
        return {"pixel_values": torch.where(gone, values.mean((2, 3), keepdim=True), values)}, torch.from_numpy(
            stamped.stamp_I
        )

    def held_out(self, rng: np.random.Generator, count: int) -> Planted:
        stamped = draw(rng, count, self.photos, held_out=True)
        other = (stamped.stamp_I + rng.integers(1, len(STAMPS), count)) % len(STAMPS)
        again = replace(stamped, background_IXYC=cut(rng, self.photos, count, held_out=True))
        share = stamped.share_IU()
        return Planted(
            inputs=stamped.drawn(),
            asked_I=stamped.stamp_I,
            cause_IU=share > 0,
            counted_IU=np.ones(share.shape, bool),
            changes={"stamp": Change(replace(stamped, stamp_I=other).drawn(), np.ones(count, bool))},
            rest_redrawn=again.drawn(),
        )

    def logits(self, model: nn.Module, inputs: Inputs) -> Tensor:
        return model(**inputs).logits
