"""What every method is held against: random scores as the floor, greedy search as the ceiling."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.evaluate.game import Game
from whyformer.evaluate.ranking import count_of

Array = np.ndarray[Any, Any]

RANDOM_SEEDS = 5
STEPS = 20  # of greedy search: more parts than that go several at a time
VARIANTS = 512  # about so many are tried in one search: with very many parts there are fewer steps, but no less than 4


def random_scores(parts: int, number: int, seed: int, draws: int = RANDOM_SEEDS) -> list[Array]:
    """Scores that know nothing: one set per draw, other ones for every input."""
    return [np.random.default_rng([seed, number, draw]).random(parts) for draw in range(draws)]


def steps_of(parts: int) -> int:
    return min(parts, STEPS, max(4, 2 * VARIANTS // parts - 1))


def greedy(game: Game, search: str) -> Array:
    """(P,) scores of the order in which a search takes the parts.

    "remove": whatever lowers the prediction most goes first; "keep": whatever raises it most comes first, beginning
    with nothing. Each step asks for every part that is left, P·(steps + 1)/2 variants in all. It is a search, not a
    proof: another order may do better still.
    """
    parts = game.parts
    present = np.full(parts, search == "remove")
    scores = np.zeros(parts)
    steps = steps_of(parts)
    for step in range(steps):
        left = np.flatnonzero(present if search == "remove" else ~present)
        variants = np.repeat(present[None], len(left), axis=0)
        variants[np.arange(len(left)), left] = search != "remove"
        values = game.values(variants)
        best = left[np.argsort(values if search == "remove" else -values, kind="stable")]
        taken = best[: count_of((step + 1) / steps, parts) - (parts - len(left))]
        scores[taken] = len(left) - np.arange(len(taken))
        present[taken] = search != "remove"
    return scores


def ceiling_scores(game: Game, kind: str) -> Array:
    """The scores of a search: greedy, or leave-one-out where that is best by construction."""
    return game.drops() if kind == "leave_one_out" else greedy(game, kind)
