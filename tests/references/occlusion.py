"""Occlusion: one input at a time, one unit at a time, one forward each."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def occlusion(model: nn.Module, ids: Tensor, target: int, replacement: int) -> Tensor:
    """Text, ids (N,): s(x) - s(x with token i replaced)."""

    def score(tokens: Tensor) -> float:
        logits = model(input_ids=tokens[None]).logits[0]
        return float((logits[-1] if logits.ndim == 2 else logits)[target])

    whole = score(ids)
    drops = []
    for i in range(len(ids)):
        changed = ids.clone()
        changed[i] = replacement
        drops.append(whole - score(changed))
    return torch.tensor(drops, dtype=torch.float64)


@torch.no_grad()
def occlusion_of_patches(model: nn.Module, pixels: Tensor, target: int, patch: int) -> Tensor:
    """Image, pixels (C, H, W): patches replaced by the image's mean colour, row by row."""

    def score(image: Tensor) -> float:
        return float(model(pixel_values=image[None]).logits[0, target])

    whole = score(pixels)
    drops = []
    for top in range(0, pixels.shape[1], patch):
        for left in range(0, pixels.shape[2], patch):
            changed = pixels.clone()
            for c in range(pixels.shape[0]):
                changed[c, top : top + patch, left : left + patch] = pixels[c].mean()
            drops.append(whole - score(changed))
    return torch.tensor(drops, dtype=torch.float64)
