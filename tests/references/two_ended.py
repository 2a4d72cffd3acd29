"""Two ends: every part left out of everything, and every part alone; one forward for each set, in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from tests.models import CASES
from tests.references.differentiable import double
from tests.references.shap import MASK, first_tokens, value_of_tokens
from tests.references.twin import TARGET, Setting, Twin, each

Value = Callable[[frozenset[int]], float]


def two_ended(value: Value, players: int) -> np.ndarray:
    everyone = frozenset(range(players))
    scores = []
    for i in range(players):
        last = value(everyone) - value(everyone - {i})
        first = value(frozenset({i})) - value(frozenset())
        scores.append((last + first) / 2)
    return np.array(scores)


def semivalue(value: Value, players: int, weights: list[float]) -> np.ndarray:
    """By definition: Σ_S weights[|S|] · (v(S ∪ i) - v(S)) over all S without i."""
    scores = np.zeros(players)
    for code in range(2**players):
        some = frozenset(j for j in range(players) if code >> j & 1)
        for i in set(range(players)) - some:
            scores[i] += weights[len(some)] * (value(some | {i}) - value(some))
    return scores


def value_of_patches(name: str, row: int, side: int = 8) -> Value:
    """The logit when only some patches are there and the others have the image's mean colour."""
    pixels = CASES[name].inputs()["pixel_values"][row].double()
    columns = pixels.shape[2] // side

    def value(present: frozenset[int]) -> float:
        image = pixels.mean((1, 2), keepdim=True).expand_as(pixels).clone()
        for patch in present:
            top, left = patch // columns * side, patch % columns * side
            image[:, top : top + side, left : left + side] = pixels[:, top : top + side, left : left + side]
        with torch.no_grad():
            return float(double(name)(pixel_values=image[None]).logits[0, TARGET])

    return value


def expected(name: str, row: int, replace: int | None = None, keep_special: bool = True) -> dict[str, np.ndarray]:
    if replace is not None:
        assert row == 0 and replace == MASK and not keep_special
        return {"scores": two_ended(value_of_tokens(name), 5)}
    patches = two_ended(value_of_patches(name, row), 16)
    return {"scores": np.concatenate([np.zeros(1), patches])}  # CLS cannot be taken away


TWIN = Twin(
    expected,
    [
        *each(("bert", "gpt2", "llama"), [{"replace": MASK, "keep_special": False}], inputs=first_tokens),
        Setting("vit"),
    ],
)
