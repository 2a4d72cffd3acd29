"""Where time and frequency lie in a tensor of sound: found by changing slices of it, and by which positions move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Grid = tuple[int, int]

MOVED = 0.1  # of the largest change: a position that moves less does not hold the slice
ALL_OF_THEM = 0.75  # a slice that moves so many positions is no step: a band of mel reaches every frame


@dataclass(frozen=True)
class Layout:
    """Axes are those of one input, without the batch axis. ``positions``: that the first attention runs over.

    bands: the axis of frequencies, where patches cut it, too (AST). grid: rows of bands by columns of steps in time,
    in the order of positions. added: positions that the model brings itself, whatever is heard ([CLS], [DIST]).
    """

    time: int
    positions: int
    bands: int | None = None
    grid: Grid | None = None
    added: frozenset[int] = frozenset()

    @property
    def unplaced(self) -> bool:
        """Positions hold time and frequency, and which of them hold which is not known."""
        return self.bands is not None and self.grid is None


def likely_time(shape: torch.Size, bands: int | None) -> int:
    """The axis that is not as long as there are bands; else the longest."""
    others = [axis for axis, size in enumerate(shape) if size != bands] if bands in shape else []
    return max(others or range(len(shape)), key=lambda axis: (shape[axis], axis))


def layout_of(sound: Tensor, values_at: Callable[[Tensor], Tensor], grid: Grid | None, bands: int | None) -> Layout:
    """Of one input's tensor (without the batch axis), by 4 passes.

    values_at: (positions, numbers) what the first attention reads with another tensor. grid: of the model's patch
    embedding, if it has one. bands: how many frequencies there are, where it is said.
    """
    before = values_at(sound)
    length, other = len(before), _other(sound)
    heard = _moved(before, values_at(other), 0.0)
    added = frozenset((~heard).nonzero()[:, 0].tolist())
    axes = [axis for axis, size in enumerate(sound.shape) if size > 1]
    reached: dict[int, list[int]] = {}
    for axis in axes:
        changed = sound.clone()
        middle = sound.shape[axis] // 2
        changed.select(axis, middle).copy_(other.select(axis, middle))
        reached[axis] = _moved(before, values_at(changed), MOVED).nonzero()[:, 0].tolist()
    share = {axis: len(moved) / max(1, length - len(added)) for axis, moved in reached.items()}
    split = [axis for axis in axes if share[axis] <= ALL_OF_THEM]
    likely = likely_time(sound.shape, bands)
    if len(split) < 2 or len(axes) > 2:
        alone = min(axes, key=lambda axis: (share[axis], axis != likely), default=likely)
        return Layout(alone if split else likely, length, added=added)
    bands_axis = next(axis for axis in split if axis != likely)
    # Steps of time along the rows of a grid: those that one step moves stand in the same columns.
    if grid is None or grid[0] * grid[1] != length - len(added):
        return Layout(likely, length, bands_axis, None, added)
    order = {position: i for i, position in enumerate(p for p in range(length) if p not in added)}
    columns = {order[p] % grid[1] for p in reached[likely]}
    rows = {order[p] // grid[1] for p in reached[likely]}
    along_rows = len(columns) / grid[1] < len(rows) / grid[0]
    return Layout(likely, length, bands_axis, grid if along_rows else None, added)


def _other(sound: Tensor) -> Tensor:
    """As far away from every number, up or down at random: a constant is taken away where models normalise."""
    up = torch.rand(sound.shape, generator=torch.Generator().manual_seed(0)).to(sound.device) > 0.5
    return sound + torch.where(up, 1.0, -1.0).to(sound) * sound.std(correction=0).clamp_min(1e-3)


def _moved(before_KD: Tensor, after_KD: Tensor, least: float) -> Tensor:
    change_K = (after_KD - before_KD).float().norm(dim=-1)
    return change_K > least * change_K.max()
