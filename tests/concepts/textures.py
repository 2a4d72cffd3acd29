"""The shipped model of textures and generated pictures for it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.demo import model_folder
from whyformer.demo import pictures as drawn

FOLDER = model_folder("textures")


@cache
def model() -> Any:
    from transformers import ViTForImageClassification

    return ViTForImageClassification.from_pretrained(FOLDER).eval()


def tensor(images: list[Any]) -> Tensor:
    return torch.tensor(np.stack(images)).permute(0, 3, 1, 2).float() / 127.5 - 1


@cache
def swatches(texture: str, count: int) -> Tensor:
    return tensor([drawn.swatch(texture, i) for i in range(count)])


@cache
def zebras(count: int) -> Tensor:
    return tensor([drawn.picture("horse", "striped", 90_000 + i) for i in range(count)])


@cache
def random_sets(sets: int, size: int = 15) -> list[Tensor]:
    """Any shape with any texture."""
    rng = np.random.default_rng(0)
    kinds = [(str(rng.choice(drawn.SHAPES)), str(rng.choice(drawn.TEXTURES))) for _ in range(sets * size)]
    return list(tensor([drawn.picture(*kind, 50_000 + i) for i, kind in enumerate(kinds)]).split(size))
