"""SmoothGrad (Smilkov et al. 2017), sample by sample; and its error by leaving out one group of samples at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.references.differentiable import Numbers
from tests.references.differentiable import numbers as inputs_of
from tests.references.saliency import CENTRED, size
from tests.references.twin import FAMILY, Setting, Twin, each, relative, vanishing


def gradients(numbers: Numbers, samples: int, noise: float, seed: int) -> list[Tensor]:
    x = numbers.x
    image = x.ndim == 3
    spread = float(x.max() - x.min()) if image else float(((x - x.mean()) ** 2).mean().sqrt())
    draw = torch.Generator().manual_seed(seed)
    return [numbers.gradient(x + noise * spread * torch.randn(x.shape, generator=draw)) for _ in range(samples)]


def scores_of(numbers: Numbers, found: list[Tensor], magnitude: bool, norm: str) -> np.ndarray:
    mean = torch.zeros_like(numbers.x)
    for gradient in found:
        mean += (gradient**2 if magnitude else gradient) / len(found)
    return np.array([size(mean, unit, "sum" if magnitude else norm) for unit in numbers.units])


def smooth_grad(
    numbers: Numbers, samples: int = 25, noise: float = 0.15, magnitude: bool = False, norm: str = "l2", seed: int = 0
) -> np.ndarray:
    return scores_of(numbers, gradients(numbers, samples, noise, seed), magnitude, norm)


def standard_error(numbers: Numbers, samples: int, groups: int, seed: int = 0) -> float:
    """Sample k is in group k mod groups."""
    found = gradients(numbers, samples, 0.15, seed)
    left_out = [
        scores_of(numbers, [g for k, g in enumerate(found) if k % groups != group], False, "l2")
        for group in range(groups)
    ]
    centre = sum(left_out) / groups
    variance = (groups - 1) / groups * sum((scores - centre) ** 2 for scores in left_out)
    return float(np.sqrt(variance.mean()))


def expected(name: str, row: int, **options: Any) -> dict[str, np.ndarray]:
    return {"scores": smooth_grad(inputs_of(name, row), **options)}


FEW: dict[str, Any] = {"samples": 6, "seed": 3}
TWIN = Twin(
    expected,
    [
        *each(FAMILY, [FEW, FEW | {"magnitude": True}, FEW | {"norm": "l1"}]),
        *[
            Setting(m, FEW | {"norm": "sum", "noise": 0.4}, compare=vanishing if m in CENTRED else relative)
            for m in FAMILY
        ],
    ],
)
