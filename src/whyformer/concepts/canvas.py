"""An image that can be optimised: as pixels or as waves, shaken a little before the model sees it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer.patch_grid import grid_artefact


class Canvas:
    """Parameters and the image they stand for, (1, C, height, width) in the model's input space."""

    def __init__(
        self, shape: tuple[int, int, int], like: Tensor, colours: tuple[Any, Any] | None, fourier: bool, draw: Any
    ) -> None:
        channels, height, width = shape
        self.size, self.colours = (height, width), colours
        self.decay: Tensor | None = None
        if fourier:
            rows, columns = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None]
            frequency = (rows**2 + columns**2).sqrt().clamp(min=1 / max(height, width))
            # Waves of natural images fall off with 1/f: without it, the finest ones grow fastest.
            self.decay = (0.25 / frequency * (height * width) ** 0.5)[None, :, :, None].to(like)
            start = torch.randn((channels, *frequency.shape, 2), generator=draw) * 0.01
        else:
            start = torch.randn((channels, height, width), generator=draw) * 0.01
        self.parameters = start.to(like).requires_grad_()

    def image(self) -> Tensor:
        values = self.parameters
        if self.decay is not None:
            waves = torch.view_as_complex((values * self.decay).float().contiguous())
            values = torch.fft.irfft2(waves, s=self.size).to(self.parameters.dtype)
        if self.colours is not None:  # between black and white, as the model's processor would hand them over
            mean, std = (torch.as_tensor(c, device=values.device, dtype=values.dtype) for c in self.colours)
            values = (values.sigmoid() - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)
        return values[None]


def shaken(image: Tensor, jitter: float, scale: float, draw: Any) -> Tensor:
    """Moved by up to ``jitter`` pixels and made up to ``scale`` larger or smaller; borders are mirrored."""
    if not jitter and not scale:
        return image
    height, width = image.shape[-2:]
    dx, dy, grown = (torch.rand(3, generator=draw) * 2 - 1).tolist()
    zoom = 1 / (1 + scale * grown)
    theta = torch.tensor([[zoom, 0, 2 * jitter * dx / width], [0, zoom, 2 * jitter * dy / height]])
    grid = F.affine_grid(theta[None].to(image), list(image.shape), align_corners=False)
    return F.grid_sample(image, grid, padding_mode="reflection", align_corners=False)


def total_variation(image: Tensor) -> Tensor:
    """Mean absolute difference of neighbours."""
    across = (image[..., :, 1:] - image[..., :, :-1]).abs().mean()
    down = (image[..., 1:, :] - image[..., :-1, :]).abs().mean()
    return across + down


def checkerboard(image: Tensor, grid: tuple[int, int]) -> float:
    """Mean squared difference of neighbours across patch borders ÷ inside patches; 1 where the grid cannot be seen."""
    height, width = image.shape[-2:]
    return grid_artefact(image, (height // grid[0], width // grid[1]), of="steps")
