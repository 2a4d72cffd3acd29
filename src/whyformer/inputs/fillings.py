"""Columns away: which entries of a tensor are theirs, and what other inputs put there, one of them or their mean."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import BadInput
from whyformer.inputs.batch import Batch

Column = tuple[str, int]  # of which tensor, and where in it

DRAWS = 4  # inputs drawn per variant, for "resample"


def owners_of_columns(one: Batch, columns: Iterable[tuple[int, Column]]) -> dict[str, Tensor]:
    """Per tensor of which a column belongs to a unit: whose each entry is, -1: nobody's."""
    owners = {name: torch.full(tensor.shape[1:], -1) for name, tensor in one.tensors.items()}
    for unit, (name, column) in columns:
        owners[name][column] = unit
    return {name: owner.to(one.tensors[name].device) for name, owner in owners.items() if (owner >= 0).any()}


def drawn_inputs(pool: Batch, generator: np.random.Generator) -> list[int]:
    """(DRAWS,) rows of the pool: as many different inputs as there are."""
    return [int(row) for row in np.resize(generator.permutation(pool.size), DRAWS)]


def resampled(names: Iterable[str], one: Batch, pool: Batch, generator: np.random.Generator) -> list[dict[str, Tensor]]:
    """Another input's values at the same places, for each draw."""
    names = list(names)
    for name in names:
        if pool.tensors[name].shape[1:] != one.tensors[name].shape[1:]:
            raise BadInput(
                f"replace='resample' needs reference inputs of the shape of the input: {name} is "
                f"{tuple(one.tensors[name].shape[1:])}, the reference {tuple(pool.tensors[name].shape[1:])}."
            )
    return [{name: pool.tensors[name][row][None] for name in names} for row in drawn_inputs(pool, generator)]


def averaged(names: Iterable[str], one: Batch, pool: Batch) -> list[dict[str, Tensor]]:
    """The mean of the pool's numbers, the most frequent of its categories, place by place."""
    names = list(names)
    if pool.size == 1 and all(torch.equal(pool.tensors[name], one.tensors[name]) for name in names):
        raise BadInput("replace='mean' of a single input is the input itself: pass reference=[…], or more inputs.")
    return [{name: _typical(pool.tensors[name]) for name in names}]


def _typical(values_BX: Tensor) -> Tensor:
    if values_BX.is_floating_point():
        return values_BX.float().mean(0, keepdim=True).to(values_BX.dtype)
    return values_BX.mode(0, keepdim=True).values
