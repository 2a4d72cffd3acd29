"""One input with only some of its parts kept: what the model says then, each variant asked of the model once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from whyformer.errors import one_of
from whyformer.evaluate.ranking import leave_one_out

if TYPE_CHECKING:
    from whyformer.evaluate.store import Store

Array = np.ndarray[Any, Any]

# The first two columns of what is said. The third: is the target still predicted. A fourth, for detectors: has another
# query taken the object over.
VALUES = ("probability", "logit")
COLUMNS = 3


class Game:
    """Every method and metric asks the same game, so a variant that two of them need is run once.

    say: (M, P) present parts → (M, 3): probability and logit of the target, and whether it is the prediction; more
    columns where ``columns`` says so.
    batches: which rows of (M, P) go through the model together.
    """

    def __init__(
        self,
        parts: int,
        say: Callable[[Array], Array],
        *,
        batches: Callable[[Array], Sequence[Sequence[int]]] | None = None,
        store: Store | None = None,
        draws: int = 1,
        columns: int = COLUMNS,
    ) -> None:
        self.parts, self.draws, self.columns = parts, draws, columns
        self.forwards = 0  # variants that were run now, not read from the store
        self._say = say
        self._batches = batches or (lambda present_MP: [range(len(present_MP))])
        self._store = store
        self._known: dict[bytes, Array] = store.load() if store is not None else {}

    def ask(self, present_MP: Array) -> Array:
        """(M, columns) what the model says of each variant; only new ones are run, batch by batch."""
        present_MP = np.ascontiguousarray(present_MP, dtype=bool)
        keys = [row.tobytes() for row in present_MP]
        new = list({key: i for i, key in enumerate(keys) if key not in self._known}.values())
        if new:
            missing = present_MP[new]
            for rows in self._batches(missing):
                part = missing[list(rows)]
                said = np.asarray(self._say(part), dtype=float)
                self.forwards += len(part) * self.draws
                if self._store is not None:  # written at once: what is interrupted goes on from here
                    self._store.append(part, said)
                self._known |= {row.tobytes(): values for row, values in zip(part, said, strict=True)}
        return np.array([self._known[key] for key in keys]).reshape(len(keys), self.columns)

    @property
    def said(self) -> Array:
        """(N, columns) everything that was said so far."""
        return np.array(list(self._known.values())).reshape(len(self._known), self.columns)

    def values(self, present_MP: Array, value: str = "probability") -> Array:
        """(M,) probability or logit of the target."""
        one_of("value", value, VALUES)
        return self.ask(present_MP)[:, VALUES.index(value)]

    def stays(self, present_MP: Array) -> Array:
        """(M,) 1 where the target is (still) the prediction."""
        return self.ask(present_MP)[:, 2]

    def whole(self, value: str = "probability") -> float:
        return float(self.values(np.ones((1, self.parts), dtype=bool), value)[0])

    def empty(self, value: str = "probability") -> float:
        """Nothing but what cannot be taken away."""
        return float(self.values(np.zeros((1, self.parts), dtype=bool), value)[0])

    def drops(self, value: str = "probability") -> Array:
        """(P,) how much the value falls without each part: leave-one-out."""
        values = self.values(leave_one_out(self.parts), value)
        return values[0] - values[1:]
