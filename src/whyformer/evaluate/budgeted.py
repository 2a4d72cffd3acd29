"""Who fitted into a budget: what each method was said to cost, what it cost, and how it did on both halves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from whyformer.evaluate.lead import RARE


@dataclass(frozen=True)
class Contestant:
    """One method with options that fits into the budget."""

    name: str
    method: str
    options: dict[str, Any]
    price: float  # beforehand, for the longest input: forwards (a backward is so many), or seconds
    forwards: float  # counted, per input
    backwards: float
    seconds: float  # measured, per input
    chosen_by: float  # mean AOPC on the inputs that choose
    mean: float  # on those that test
    low: float
    high: float
    over_choice: tuple[float, float, float] = (math.nan,) * 3  # how far ahead of the choice it is there, paired


@dataclass(frozen=True)
class Budgeted:
    """A choice within a budget, and everyone that it was chosen from, the choice first."""

    limit: str  # "20 forwards", "2 s"
    backward: float  # what a backward counted as, in forwards
    units: int  # of the longest input, which prices are for
    contestants: tuple[Contestant, ...]
    over: dict[str, str] = field(default_factory=dict)  # method → what it would cost, or did
    chance: float = math.nan  # of a lead like that of the best in hindsight, if nobody had any

    @property
    def choice(self) -> Contestant:
        return self.contestants[0]

    @property
    def hindsight(self) -> Contestant:
        """The best single method on the inputs that test, which nobody could know beforehand."""
        return max(self.contestants, key=lambda c: (c.mean, c is self.choice))

    @property
    def behind(self) -> bool:
        """Whether somebody is ahead of the choice by more than chance, the best of all being picked in hindsight."""
        return self.chance < RARE

    @property
    def verdict(self) -> str:
        choice, best = self.choice, self.hindsight
        words = f"Within {self.limit}, {choice.name} was chosen among {len(self.contestants)}"
        if math.isnan(choice.mean):
            return words + "."
        if best is choice:
            return words + ", and it is the best of them on the inputs that did not choose, too."
        gap = "{:.3f} ({:+.3f} to {:+.3f})".format(*best.over_choice)
        gap = f"{best.over_choice[0]:.3f}" if math.isnan(best.over_choice[1]) else gap
        words += f"; in hindsight {best.name} would have been better: what it names first, taken away, makes the "
        words += f"prediction fall {gap} further (AOPC)"
        if math.isnan(best.over_choice[1]) or math.isnan(self.chance):  # one input, or saved before this was measured
            return words + "."
        told = "more than chance" if self.behind else "which cannot be told from chance"
        return words + f", {told} ({self.chance:.0%} of such picks lead by as much if nobody is better)."
