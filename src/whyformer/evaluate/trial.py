"""A trial: the scores that a method gave to the parts of one input, and all that a metric may ask to judge them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from whyformer.engines.perturbation.game import Game
    from whyformer.evaluate.contender import Scored
    from whyformer.evaluate.soft_game import SoftGame
    from whyformer.types import Units

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Trial:
    """One explanation of one input. Parts are the units that can be taken away; special tokens are none."""

    scores_P: Array
    game: Game
    signed: bool = False
    seed: int = 0  # of what metrics draw: the same for all methods, another for every input
    units: Units | None = None
    parts: Array | None = None  # which units the parts are
    scored: Scored | None = None  # all that the method said, special tokens included
    rationale_P: Array | None = None  # what people marked
    region: Array | None = None  # (height, width) where the object is
    again: Callable[[int, float], Array] | None = None  # (draw, radius) → scores of the input with a little noise
    surrogate: Game | None = None  # the same input, asked of a copy that was fine-tuned on masked inputs
    soft: SoftGame | None = None  # the input with numbers of its parts erased one by one

    def heat(self) -> Array:
        """(height, width) scores laid over the image, interpolated; not below zero."""
        from whyformer.files.image_file import resized

        units = self.units
        assert units is not None and units.grid is not None
        scores = np.asarray(self.scores_P, dtype=float)
        if self.parts is not None:  # patches among tokens of a text, and those that are held, which have no score
            scores_U = np.zeros(len(units))
            scores_U[self.parts] = scores
            several = len(set(units.stream)) > 1
            scores = scores_U[
                [
                    not special and (stream == "image" or not several)
                    for special, stream in zip(units.special, units.stream, strict=True)
                ]
            ]
        heat: Array = resized(scores.reshape(units.grid), units.image_size)
        return np.clip(heat, 0, None)
