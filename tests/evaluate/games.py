"""Games whose answers are known: a linear model, and one in which parts work together. And texts to explain."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import whyformer as wf
from whyformer.engines.perturbation.game import Game, VariantStore

Array = np.ndarray[Any, Any]
TEXTS = [
    "a witty, seductive movie",
    "This is so boring",
    "I like it very much",
    "no movement, not much of anything",
    "She hates the long book",
    "I cannot wait for next time",
    "a gorgeous film with a dull end",
    "You look extremely confused",
]


@cache
def sentiment() -> wf.Explainer:
    return wf.Explainer(*wf.demo.load_sentiment())


def said(logits_M: Array) -> Array:
    probability = 1 / (1 + np.exp(-logits_M))
    return np.stack([probability, logits_M, (logits_M > 0).astype(float)], 1)


def linear(weights_P: Array, bias: float = 0.2) -> Game:
    return Game(len(weights_P), lambda present_MP: said(present_MP @ weights_P + bias))


def together(parts: int, seed: int, store: VariantStore | None = None, batch: int = 7) -> Game:
    """Parts that back each other up and cancel each other."""
    generator = np.random.default_rng(seed)
    pairs, single = generator.normal(size=(parts, parts)) * 0.4, generator.normal(size=parts)

    def say(present_MP: Array) -> Array:
        present = present_MP.astype(float)
        return said(present @ single + np.einsum("mi,ij,mj->m", present, pairs, present))

    def batches(present_MP: Array) -> list[range]:
        return [range(i, min(i + batch, len(present_MP))) for i in range(0, len(present_MP), batch)]

    return Game(parts, say, batches=batches, store=store)


def predict(game: Game, column: int = 0) -> Any:
    """The game as a function of a set of parts, for the twins."""

    def of(kept: set[int]) -> float:
        present = np.zeros((1, game.parts), dtype=bool)
        present[0, list(kept)] = True
        return float(game.ask(present)[0, column])

    return of
