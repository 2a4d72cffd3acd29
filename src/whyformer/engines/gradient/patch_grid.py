"""The patch grid in pixel maps: how much of it there is, and smoothing that takes it away.

A vision transformer reads pixels through one matrix per patch, so gradients at the pixels repeat that matrix in every
patch and jump at its borders. People see a checkerboard and take it for structure of the image.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer.errors import BadInput, one_of

Array = np.ndarray[Any, Any]
MEASURES = ("values", "steps")


def grid_artefact(detail: Array | Tensor, patch: int | tuple[int, int], of: str = "values") -> float:
    """Energy at the borders of patches ÷ energy inside; 1 where the grid cannot be seen.

    of="values": mean square of the map on the outermost ring of pixels of every patch ÷ that of the other pixels.
    of="steps": mean squared difference of neighbouring pixels across a border ÷ that of neighbours inside a patch.
    ``detail``: (…, height, width), channels added up; ``patch``: its height and width in pixels.
    """
    one_of("of", of, MEASURES)
    values = torch.as_tensor(detail).detach().double()
    rows, columns = (patch, patch) if isinstance(patch, int) else patch
    if values.ndim < 2 or min(rows, columns) < 1:
        raise BadInput(f"a map of shape {tuple(values.shape)} and patches of {rows}×{columns}: need height and width.")
    return _ratio(*(_ring(values, rows, columns) if of == "values" else _steps(values, rows, columns)))


def _ring(values: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Squares of the pixels at borders, and of those inside."""
    squares = values.square().flatten(0, -3).sum(0) if values.ndim > 2 else values.square()
    inside = _inner(squares.shape[0], rows)[:, None] & _inner(squares.shape[1], columns)
    inside = inside.to(squares.device)
    return squares[~inside], squares[inside]


def _inner(length: int, patch: int) -> Tensor:
    space = torch.arange(length) % patch
    return (space > 0) & (space < patch - 1)


def _steps(values: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Squared differences of neighbours, one mean per pair of lines: across borders, and inside patches."""
    across, inside = [], []
    for axis, patch in ((-1, columns), (-2, rows)):
        lines = values.movedim(axis, 0)
        squares = (lines[1:] - lines[:-1]).square().flatten(1).mean(1)
        border = (torch.arange(1, len(lines), device=squares.device) % patch) == 0
        across.append(squares[border])
        inside.append(squares[~border])
    return torch.cat(across), torch.cat(inside)


def _ratio(border: Tensor, inside: Tensor) -> float:
    """A map without borders, or without anything in it, has no grid; one with nothing but borders is all grid."""
    if not len(border) or not len(inside):
        return 1.0
    high, low = float(border.mean()), float(inside.mean())
    if low == 0:
        return 1.0 if high == 0 else float("inf")
    return high / low


def smoothed(detail_BCHW: Tensor, sigma: tuple[float, float]) -> Tensor:
    """Every pixel's share spread over its neighbourhood by a Gaussian (rows, columns); what it adds up to stays.

    At the edge of the image a pixel's share is spread over the neighbours that exist.
    """
    spread = detail_BCHW
    for axis, width in ((-2, sigma[0]), (-1, sigma[1])):
        spread = _spread(spread, axis, width)
    return spread


def _spread(values: Tensor, axis: int, sigma: float) -> Tensor:
    if sigma <= 0:
        return values
    lines = values.movedim(axis, -1)
    shape, length = lines.shape, lines.shape[-1]
    radius = min(int(4 * sigma + 0.5), length - 1)
    at = torch.arange(-radius, radius + 1, dtype=values.dtype, device=values.device)
    kernel = torch.exp(-(at**2) / (2 * sigma**2))[None, None]
    reached = F.conv1d(torch.ones(1, 1, length, dtype=values.dtype, device=values.device), kernel, padding=radius)
    spread = F.conv1d(lines.reshape(-1, 1, length) / reached, kernel, padding=radius)
    return spread.reshape(shape).movedim(-1, axis)
