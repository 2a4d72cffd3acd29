"""Changed copies of photos: crops, turns, colours, blank rectangles, and pairs mixed into one."""

import torch
from torch.nn import functional as F

from training.vit import scaled


def uniform(count, low, high, device):
    return low + (high - low) * torch.rand(count, device=device)


def augmented(images, size, smallest=0.3):
    """Random crop, turn, mirror, colour and a blank rectangle, each picture its own; bytes → the model's scale."""
    count, device = len(images), images.device
    area = torch.exp(uniform(count, torch.tensor(smallest).log().item(), 0.0, device))
    aspect = torch.exp(uniform(count, -0.29, 0.29, device))
    width, height = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
    angle = uniform(count, -0.3, 0.3, device) * (torch.rand(count, device=device) < 0.5)
    mirror = torch.where(torch.rand(count, device=device) < 0.5, 1.0, -1.0)
    cos, sin = angle.cos(), angle.sin()
    shift_x, shift_y = uniform(count, -1, 1, device) * (1 - width), uniform(count, -1, 1, device) * (1 - height)
    rows = torch.stack([mirror * width * cos, -height * sin, shift_x, mirror * width * sin, height * cos, shift_y], 1)
    grid = F.affine_grid(rows.view(count, 2, 3), (count, 3, size, size), align_corners=False)
    pixels = F.grid_sample(scaled(images), grid, padding_mode="reflection", align_corners=False)
    return blanked(coloured(pixels))


def coloured(pixels):
    """Brightness, contrast, saturation, a tint; one picture in ten grey."""
    count, device = len(pixels), pixels.device

    def each(low, high):
        return uniform(count, low, high, device)[:, None, None, None]

    grey = pixels.mean(1, keepdim=True)
    saturation = torch.where(torch.rand(count, 1, 1, 1, device=device) < 0.1, 0.0, each(0.6, 1.4))
    pixels = grey + (pixels - grey) * saturation
    centre = pixels.mean((1, 2, 3), keepdim=True)
    pixels = centre + (pixels - centre) * each(0.6, 1.4) + each(-0.3, 0.3)
    tint = 1 + 0.1 * torch.randn(count, 3, 1, 1, device=device)
    return (pixels * tint).clamp(-1, 1)


def blanked(pixels, chance=0.25):
    """Noise in place of a random rectangle, in some pictures."""
    count, _, height, width = pixels.shape
    inside = box(count, height, width, uniform(count, 0.15, 0.5, pixels.device), pixels.device)
    hit = (torch.rand(count, device=pixels.device) < chance)[:, None, None] & inside
    return torch.where(hit[:, None], torch.randn_like(pixels) * 0.5, pixels)


def box(count, height, width, side, device):
    """(n, height, width) pixels of a rectangle with edges of ``side`` times those of the picture."""
    y = torch.arange(height, device=device)[:, None] / height
    x = torch.arange(width, device=device)[None] / width
    top, left = (uniform(count, 0, 1, device) * (1 - side) for _ in range(2))
    top, left, side = (value[:, None, None] for value in (top, left, side))
    return (y >= top) & (y < top + side) & (x >= left) & (x < left + side)


def mixed(pixels, *targets):
    """Half of the batches: pictures blended in pairs (mixup); the other half: one pasted into the other (cutmix)."""
    other = torch.randperm(len(pixels), device=pixels.device)
    share = torch.distributions.Beta(0.8, 0.8).sample((len(pixels),)).to(pixels.device)
    if torch.rand(()) < 0.5:
        weight = share[:, None, None, None]
        pixels = pixels * weight + pixels[other] * (1 - weight)
    else:
        inside = box(len(pixels), *pixels.shape[2:], (1 - share).sqrt(), pixels.device)
        pixels = torch.where(inside[:, None], pixels[other], pixels)
        share = 1 - inside.float().mean((1, 2))
    return pixels, *(t * share[:, None] + t[other] * (1 - share[:, None]) for t in targets)
