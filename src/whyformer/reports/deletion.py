"""Deletion curves of single inputs, in the band of random orders: the evidence behind a trust badge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from whyformer.engines.perturbation.ranking import area, order_of, without_top
from whyformer.evaluate.games import Games
from whyformer.evaluate.judge import random_scores
from whyformer.evidence import Deletion

Array = np.ndarray[Any, Any]

STEPS = 16  # points of a curve besides the whole input; of fewer parts, one for each
DRAWS = 20  # random orders
BAND = (0.05, 0.95)


def counts_of(parts: int) -> tuple[int, ...]:
    """How many parts are away at each point: none, all, and evenly between."""
    steps = min(parts, STEPS)
    return tuple(round(step * parts / steps) for step in range(steps + 1))


def deletion_of(games: Games, number: int, scores: Mapping[str, Array], value: str) -> Deletion | None:
    """The curves of one input under methods by name; None where there is nothing to take away one by one."""
    parts = games.parts[number]
    if games.replacement is None or len(parts) < 2:
        return None
    counts = counts_of(len(parts))
    fractions = [count / len(parts) for count in counts]
    drawn = random_scores(len(parts), number, games.seed, DRAWS)
    scored = {name: np.asarray(scores_U, float)[parts] for name, scores_U in scores.items()}
    asked = np.stack([without_top(scores_P, fractions) for scores_P in (*scored.values(), *drawn)])
    said_XK = games.game(number).values(asked.reshape(-1, len(parts))).reshape(len(asked), len(counts))
    curves, random_DK = said_XK[: len(scored)], said_XK[len(scored) :]
    areas_D = np.array([area(curve, fractions) for curve in random_DK])
    low, high = np.quantile(random_DK, BAND, axis=0)
    return Deletion(
        counts=counts,
        orders={name: tuple(int(i) for i in parts[order_of(scores_P)]) for name, scores_P in scored.items()},
        curves={name: _plain(curve) for name, curve in zip(scored, curves, strict=True)},
        low=_plain(low),
        mean=_plain(random_DK.mean(0)),
        high=_plain(high),
        beaten={
            name: int((areas_D > area(curve, fractions)).sum()) for name, curve in zip(scored, curves, strict=True)
        },
        draws=DRAWS,
        value=value,
    )


def _plain(values: Array) -> tuple[float, ...]:
    return tuple(float(v) for v in values)
