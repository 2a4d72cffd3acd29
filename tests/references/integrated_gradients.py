"""Integrated gradients (Sundararajan et al. 2017): the path integral as a plain sum over many small steps, or by the
same quadrature as the method, to compare digits."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from tests.references.differentiable import Numbers, bert_embeddings, tokens, word_embeddings
from tests.references.differentiable import numbers as inputs_of
from tests.references.twin import Setting, Twin, each


def integrated_gradients(numbers: Numbers, start: Tensor, steps: int, midpoints: bool = False) -> np.ndarray:
    if midpoints:
        times, weights = (np.arange(steps) + 0.5) / steps, np.full(steps, 1 / steps)
    else:
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        times, weights = (nodes + 1) / 2, weights / 2
    total = torch.zeros_like(numbers.x)
    for time, weight in zip(times, weights, strict=True):
        total += weight * numbers.gradient(start + time * (numbers.x - start))
    each = (numbers.x - start) * total
    return np.array([0.0 if unit is None else float(each[unit].sum()) for unit in numbers.units])


def blurred(pixels: Tensor) -> Tensor:
    """Gaussian of five pixels, fifteen to each side, borders reflected."""
    image = pixels.numpy()
    for axis in (1, 2):
        image = ndimage.gaussian_filter1d(image, 5.0, axis=axis, mode="mirror", radius=15)
    return torch.from_numpy(image)


def expected(name: str, row: int, steps: int, baseline: Any, at: str = "input") -> dict[str, Any]:
    if name != "vit":
        embeddings = partial(bert_embeddings if at == "embeddings" else partial(word_embeddings, name), row)
        whole = embeddings()
        start = embeddings(torch.full_like(tokens(name, row), baseline)).x
    else:
        whole = inputs_of(name, row)
        colours = whole.x.mean((1, 2), keepdim=True).expand_as(whole.x)
        named = {"zero": torch.zeros_like(whole.x), "mean": colours, "blur": blurred(whole.x)}
        start = named[baseline] if isinstance(baseline, str) else baseline
    base = float(whole.score(start).detach())
    return {"scores": integrated_gradients(whole, start, steps), "base": pytest.approx(base, abs=1e-5)}


MASK = 7  # any id will do on a random model
GREY = torch.full((3, 32, 32), 0.3, dtype=torch.float64)
TWIN = Twin(
    expected,
    [
        *each(("bert", "gpt2", "llama"), [{"steps": 8, "baseline": MASK}]),
        Setting("bert", {"steps": 8, "baseline": MASK, "at": "embeddings"}),
        *each(("vit",), [{"steps": 8, "baseline": b} for b in ("zero", "mean", "blur", GREY)]),
    ],
)
