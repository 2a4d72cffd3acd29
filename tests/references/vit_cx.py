"""ViT-CX (Xie et al. 2023), mask by mask, with a plain complete-linkage clustering."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tests.models import CASES
from tests.references.differentiable import double
from tests.references.grad_cam import SPECIAL, features_and_gradient, last_norm
from tests.references.twin import TARGET, Setting, Twin

Array = np.ndarray


def scaled(mask: Array) -> Array | None:
    low, high = mask.min(), mask.max()
    return None if low == high else (mask - low) / (high - low)


def cosine_distance(a: Array, b: Array) -> float:
    a, b = a.ravel(), b.ravel()
    return max(0.0, 1 - float(a @ b / np.sqrt((a @ a) * (b @ b))))


def clustered(masks: list[Array], threshold: float) -> list[list[int]]:
    """Join the two nearest groups, farthest members counting, while they are nearer than the threshold."""
    groups = [[i] for i in range(len(masks))]
    while len(groups) > 1:
        nearest = min(
            (max(cosine_distance(masks[i], masks[j]) for i in a for j in b), x, y)
            for x, a in enumerate(groups)
            for y, b in enumerate(groups)
            if x < y
        )
        if nearest[0] >= threshold:
            break
        _, x, y = nearest
        groups[x] += groups.pop(y)
    return groups


def masks_of(features: Array, grid: tuple[int, int], size: tuple[int, int], threshold: float) -> list[Array]:
    """features: (patches, channels)."""
    masks = []
    for channel in features.T:
        small = torch.from_numpy(channel.reshape(1, 1, *grid))
        large = torch.nn.functional.interpolate(small, size=size, mode="bilinear", align_corners=False)[0, 0].numpy()
        mask = scaled(large)
        if mask is not None:
            masks.append(mask)
    summed = [scaled(sum(masks[i] for i in group)) for group in clustered(masks, threshold)]
    found = [mask for mask in summed if mask is not None]
    return sorted(found, key=lambda mask: -mask.sum())


def vit_cx(image: Tensor, masks: list[Array], probability: Callable[[Tensor], float], noise: float, seed: int) -> Array:
    """(height, width) the saliency of each pixel."""
    draw = torch.Generator().manual_seed(seed)
    total = np.zeros(masks[0].shape)
    for mask in masks:
        z = noise * torch.randn(image.shape, generator=draw).to(image)
        m = torch.from_numpy(mask).to(image)
        score = probability(image * m + z * (1 - m)) - probability(image + z * (1 - m)) + probability(image)
        total += score * mask
    cover = sum(masks)
    result = np.zeros_like(total)
    for place in np.ndindex(*total.shape):
        if cover[place] > 0:
            result[place] = total[place] / cover[place] / len(masks)
    return result


def expected(name: str, row: int, threshold: float, seed: int, noise: float = 0.1) -> dict[str, Array]:
    model, image = double(name), CASES[name].inputs()["pixel_values"][row].double()
    features, _ = features_and_gradient(model, last_norm(model), image.clone(), TARGET)
    height, width = image.shape[1:]
    masks = masks_of(features[SPECIAL[name] :], (height // 8, width // 8), (height, width), threshold)

    @torch.no_grad()
    def probability(picture: Tensor) -> float:
        return float(model(pixel_values=picture[None]).logits[0].softmax(0)[TARGET])

    pixels = vit_cx(image, masks, probability, noise, seed)
    patches = pixels.reshape(height // 8, 8, width // 8, 8).sum((1, 3)).ravel()
    return {"detail": pixels, "scores": np.concatenate([np.zeros(SPECIAL[name]), patches])}


TWIN = Twin(
    expected,
    [
        Setting(name, {"threshold": threshold, "seed": 5})
        for name, threshold in (("vit", 0.1), ("vit_nonsquare", 0.3), ("beit", 0.2))
    ],
)
