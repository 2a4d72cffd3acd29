"""Where the positions of an input are: along a text, or on the grid of an image's patches."""

from __future__ import annotations

import torch
from torch import Tensor

from whyformer.run import Run


def places(run: Run, row: int) -> Tensor:
    """(N, 1) or, on a grid, (N, 2) coordinates of one input's attention positions; NaN where there is none.

    Padding has no place; on a grid neither have special tokens. In a text, positions are counted among the real ones.
    """
    units, keep = run.units[row], run.keep_BN[row]
    real = keep.nonzero()[:, 0]
    if units.grid is None:
        result = torch.full((len(keep), 1), torch.nan, device=keep.device)
        result[real, 0] = torch.arange(len(real), device=keep.device, dtype=torch.float)
        return result
    result = torch.full((len(keep), 2), torch.nan, device=keep.device)
    patches = real[~torch.tensor(units.special, device=keep.device)]
    index = torch.arange(len(patches), device=keep.device)
    columns = units.grid[1]
    result[patches] = torch.stack([index // columns, index % columns], 1).float()
    return result


def distances(places_NA: Tensor) -> Tensor:
    """(N, N) Euclidean distance between positions, in tokens or patches; NaN where one has no place."""
    return (places_NA[:, None] - places_NA[None]).square().sum(-1).sqrt()
