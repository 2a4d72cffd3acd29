"""Random scores: one draw per unit from a generator with the seed, in order."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.references.eager_attention import quantities_of
from tests.references.twin import FAMILY, Twin, each, relative_to_one


def random(units: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(units, generator=generator)


def expected(name: str, row: int, seed: int) -> dict[str, Tensor]:
    return {"scores": random(quantities_of(name, row).attention[0].shape[-1], seed)}


TWIN = Twin(expected, each(FAMILY, [{"seed": 3}], double=False, compare=relative_to_one))
