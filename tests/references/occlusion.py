"""Occlusion: one input at a time, one unit at a time, one forward each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.models import CASES
from tests.references.differentiable import double, tokens
from tests.references.twin import TARGET, Setting, Twin, each, relative_to_one


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


@torch.no_grad()
def occlusion_of_image_tokens(
    score: Callable[[Tensor, Tensor], float], ids: Tensor, pixels: Tensor, marker: int, replacement: int, side: int
) -> Tensor:
    """Ids (N,) with ``marker`` where image tokens stand, pixels (C, H, W), ``side`` pixels along one token.

    A token of the text is replaced by another; the k-th image token by the image's mean colour in its square.
    """
    whole = score(ids, pixels)
    columns = pixels.shape[2] // side
    drops, number = [], 0
    for i in range(len(ids)):
        words, image = ids.clone(), pixels.clone()
        if ids[i] == marker:
            top, left = number // columns * side, number % columns * side
            for c in range(pixels.shape[0]):
                image[c, top : top + side, left : left + side] = pixels[c].mean()
            number += 1
        else:
            words[i] = replacement
        drops.append(whole - score(words, image))
    return torch.tensor(drops, dtype=torch.float64)


def qwen_patches(pixels: Tensor, patch: int, merged: int, frames: int) -> Tensor:
    """(patches, C · frames · patch · patch) as Qwen2-VL's processor lays an image out: token by token."""
    rows = []
    step = patch * merged
    for top in range(0, pixels.shape[1], step):
        for left in range(0, pixels.shape[2], step):
            for i in range(merged):
                for j in range(merged):
                    y, x = top + i * patch, left + j * patch
                    one = pixels[:, y : y + patch, x : x + patch]
                    rows.append(torch.cat([one[c].flatten() for c in range(len(pixels)) for _ in range(frames)]))
    return torch.stack(rows)


def expected(name: str, row: int, replace: int | None = None) -> dict[str, Tensor]:
    if replace is not None:
        return {"scores": occlusion(double(name), tokens(name, row), TARGET, replace)}
    pixels = CASES[name].inputs()["pixel_values"][row].double()
    patches = occlusion_of_patches(double(name), pixels, TARGET, 8)
    return {"scores": torch.cat([torch.zeros(1), patches])}  # CLS cannot be taken away


TWIN = Twin(
    expected,
    [
        *each(("bert", "gpt2", "llama"), [{"replace": 7}], double=False, compare=relative_to_one),
        Setting("vit", double=False, compare=relative_to_one),
    ],
)
