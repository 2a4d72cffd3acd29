"""Evidence for one map: where its method stands on all inputs, and what the model says as the units it names go."""

from __future__ import annotations

from dataclasses import dataclass

ENDINGS = {1: "st", 2: "nd", 3: "rd"}


@dataclass(frozen=True)
class Standing:
    """How a method did on all inputs that were compared."""

    place: int  # 1 is best; methods that did equally well share a place
    of: int  # methods
    better: int  # measures by which it beats random scores, the 95 % limits being above zero
    measures: int  # of so many that have limits; none where there is one input
    inputs: int
    called: str = "inputs"  # texts, images, rows

    @property
    def verdict(self) -> str:
        """Does it beat random scores: "yes", by every measure, "partly", "no", or "unknown" with a single input."""
        if not self.measures:
            return "unknown"
        return "no" if not self.better else "yes" if self.better == self.measures else "partly"

    def __str__(self) -> str:
        """3rd of 17 on 40 texts, beats random"""
        named = self.called[:-1] if self.inputs == 1 else self.called
        return f"{ordinal(self.place)} of {self.of} on {self.inputs} {named}, {self._against_random()}"

    def _against_random(self) -> str:
        told = {"unknown": "too few to tell it from random", "no": "not better than random", "yes": "beats random"}
        return told.get(self.verdict, f"beats random by {self.better} of {self.measures} measures")


def ordinal(place: int) -> str:
    """1st, 2nd, 3rd, 11th"""
    return f"{place}{'th' if place % 100 in (11, 12, 13) else ENDINGS.get(place % 10, 'th')}"


@dataclass(frozen=True)
class Deletion:
    """One input: what the model says of it as units go, the highest scores first; and as they go at random."""

    counts: tuple[int, ...]  # units away: from none to all that can go
    orders: dict[str, tuple[int, ...]]  # method → units, in the order in which they go
    curves: dict[str, tuple[float, ...]]  # method → what the model says, one value per count
    low: tuple[float, ...]  # of random orders: 5 %, mean and 95 %
    mean: tuple[float, ...]
    high: tuple[float, ...]
    beaten: dict[str, int]  # method → random orders whose curve lies higher on average
    draws: int
    value: str = "probability of the target"
