"""The pointing game: is the highest point of the map on the object?"""

from __future__ import annotations

import numpy as np

from whyformer.evaluate.trial import Trial
from whyformer.registry import metric


@metric(
    paper="Zhang et al. 2016, arXiv:1608.00507",
    kind="localisation",
    higher_is_better=True,
    needs={"region"},
    cost_text="none",
)
def pointing_game(trial: Trial, *, tolerance: int = 0) -> float:
    """1 where the highest point of the map lies on the object, else 0; the mean over inputs is the hit rate.

    ``tolerance``: pixels that it may be off (the paper: 15).

    Misleads when: objects fill the picture: pointing at the centre nearly always hits.
    """
    if trial.region is None or not trial.region.any():
        return float("nan")
    heat = trial.heat()
    row, column = np.unravel_index(int(heat.argmax()), heat.shape)
    rows, columns = np.nonzero(trial.region)
    return float(((rows - row) ** 2 + (columns - column) ** 2).min() <= tolerance**2)
