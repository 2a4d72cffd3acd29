"""Recommendation: how to explain a model, chosen on some inputs and tested on others."""

from __future__ import annotations

import dataclasses
import math
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from whyformer.errors import UnknownName
from whyformer.evaluate.comparison import RARE
from whyformer.evidence import too_few, with_interval
from whyformer.results.interop import dataframe
from whyformer.results.result import Result
from whyformer.views.comparison_view import recommendation_page
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class CandidateOutcome:
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
    """A choice within a budget, and all candidates that it was chosen from, the choice first."""

    limit: str  # "20 forwards", "2 s"
    backward: float  # what a backward counted as, in forwards
    units: int  # of the longest input, which prices are for
    candidates: tuple[CandidateOutcome, ...]
    over: dict[str, str] = field(default_factory=dict)  # method → what it would cost, or did
    chance: float = math.nan  # of a lead like that of the best in hindsight, if no candidate were better (p-value)

    @property
    def choice(self) -> CandidateOutcome:
        return self.candidates[0]

    @property
    def hindsight(self) -> CandidateOutcome:
        """The best single method on the inputs that test, not known beforehand."""
        return max(self.candidates, key=lambda c: (c.mean, c is self.choice))

    @property
    def behind(self) -> bool:
        """Whether a candidate is ahead of the choice by more than chance, the best being picked in hindsight."""
        return self.chance < RARE

    @property
    def chosen(self) -> str:
        return f"Within {self.limit}, {self.choice.name} was chosen among {len(self.candidates)}"

    @property
    def verdict(self) -> str:
        choice, best, words = self.choice, self.hindsight, self.chosen
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


ANY = "any cost"
SCOPES = ("dataset", "label", "instance")


@dataclass(frozen=True)
class ChosenMethod:
    """What was chosen for one group of inputs (all, one label, one input) within one class of cost."""

    group: str
    cost_class: str
    name: str
    method: str
    options: dict[str, Any]
    truthfulness: float  # mean ranked truthfulness (RFT) on the inputs it was chosen by
    inputs: int  # it was chosen by so many


@dataclass(frozen=True)
class Outcome:
    """How the choices of one class of cost did by AOPC: on other inputs, or (per instance) on other variants."""

    cost_class: str
    name: str
    mean: float
    low: float
    high: float
    over_random: tuple[float, float, float] = (math.nan,) * 3  # mean gain and its 95 % limits, input by input
    over_attention: tuple[float, float, float] = (math.nan,) * 3  # over last-layer attention at the readout

    @property
    def beats_random(self) -> bool:
        return self.over_random[1] > 0

    @property
    def beats_attention(self) -> bool:
        return self.over_attention[1] > 0


@dataclass(frozen=True, eq=False)
class Recommendation(Result):
    """Which explanation to use, per class of cost, and how it did where it was not chosen.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> texts = ["I like the movie", "This is so boring", "She hates the book", "A great film"]
    >>> recommendation = wf.recommend(model, texts, tokenizer, spaces=[], method=["grad_sam", "saliency"])
    >>> recommendation.to_frame()
    """

    what: ClassVar[str] = "recommendation"
    later: ClassVar[tuple[str, ...]] = ("budgeted", "held")

    scope: str
    choices: tuple[ChosenMethod, ...]
    outcomes: tuple[Outcome, ...]  # one per class of cost, then those it is held against
    leaders: tuple[tuple[str, float], ...]  # the first of all candidates by RFT
    grid: tuple[tuple[float, ...], ...]  # mean RFT of raw attention: layers (mean, product, each) × heads (mean, each)
    grid_reading: str
    candidates: int
    excluded: dict[str, str]  # method → why it could not be chosen
    replacement: str
    chosen_on: int = 0
    reported_on: int = 0
    variants: int = 0
    seed: int = 0
    warnings: tuple[str, ...] = ()
    model: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    budgeted: Budgeted | None = None  # who fitted into a budget, what that cost, and how each did
    held: tuple[str, ...] | None = None  # per input, the text of what was held

    @property
    def best(self) -> Any:
        """For ``explain(model, x, **recommendation.best)``: a dict; per label a dict of them, per instance a list."""
        if self._few or (self.reported_on and not self.within(ANY).beats_random):
            warnings.warn(self.verdict, stacklevel=2)
        return self.chosen(ANY)

    def chosen(self, cost_class: str) -> Any:
        """The same within one class of cost: "one forward", "forward and backward", "many passes"."""
        by_group = {c.group: {"method": c.method, **c.options} for c in self.choices if c.cost_class == cost_class}
        if not by_group:
            raise UnknownName("class of cost", cost_class, dict.fromkeys(c.cost_class for c in self.choices))
        if self.scope == "dataset":
            return next(iter(by_group.values()))
        return by_group if self.scope == "label" else list(by_group.values())

    def within(self, cost_class: str) -> Outcome:
        """The outcome of one class of cost, or of "random", "greedy", …"""
        for outcome in self.outcomes:
            if outcome.cost_class == cost_class:
                return outcome
        raise UnknownName("class of cost", cost_class, [o.cost_class for o in self.outcomes])

    @property
    def verdict(self) -> str:
        """In plain words: is the choice better than chance, and than looking at the last layer?"""
        if self.budgeted is None:
            return self._against()
        return f"{self.budgeted.chosen + '.' if self._few else self.budgeted.verdict} {self._against()}"

    @property
    def _few(self) -> str:
        """Within a budget one half of the inputs chooses and the other tests; else all do both."""
        return too_few(self.chosen_on + (0 if self.budgeted is None else self.reported_on))

    def _against(self) -> str:
        if not self.reported_on:
            return "Chosen, but not tested: it was asked for without a report."
        outcome = self.within(ANY)
        gain = "{:+.3f} (95 % limits {:+.3f} to {:+.3f})".format
        random, attention = gain(*outcome.over_random), gain(*outcome.over_attention)
        if self._few:
            return (
                f"{self._few}. On those that did not choose, taking away what it names first makes the prediction fall "
                f"{with_interval(outcome.over_random)} further than taking parts away at random (AOPC, 95 % limits)."
            )
        if not outcome.beats_random:
            return (
                "Nothing beats random here: taking away what the choice names first makes the prediction fall "
                f"{random} further than taking parts away at random (AOPC), and these limits include zero. Don't rely "
                "on any of these explanations for this model and these inputs."
            )
        words = (
            "The choice beats random scores: taking away what it names first makes the prediction fall "
            f"{random} further than taking parts away at random (AOPC)."
        )
        if math.isnan(outcome.over_attention[1]):
            return words
        if outcome.beats_attention:
            return f"{words} It beats looking at the last layer's attention, too, by {attention}."
        return f"{words} It cannot be told from looking at the last layer's attention: {attention} includes zero."

    @property
    def title(self) -> str:
        """Model and scope, on one line."""
        per = {"dataset": "one for all inputs", "label": "one per label", "instance": "one per input"}[self.scope]
        return f"{self.model}: how to explain it, {per}"

    def to_frame(self) -> pd.DataFrame:
        """One row per choice, with the outcome of its class of cost."""
        known = {o.cost_class: o for o in self.outcomes}
        rows = []
        for choice in self.choices:
            outcome = known.get(choice.cost_class)
            aopc = {} if outcome is None else {"aopc": outcome.mean, "aopc_low": outcome.low, "aopc_high": outcome.high}
            rows.append(dataclasses.asdict(choice) | aopc)
        return dataframe(rows)


view_of.register(Recommendation, recommendation_page)
