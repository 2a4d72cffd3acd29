"""Random scores: one draw per unit from a generator with the seed, in order."""

from __future__ import annotations

import torch
from torch import Tensor


def random(units: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(units, generator=generator)
