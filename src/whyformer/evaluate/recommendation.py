"""Recommendation: a method for a model, chosen on some inputs and tested on others."""

from __future__ import annotations

import dataclasses
import math
import warnings
from dataclasses import dataclass, field
from typing import Any, ClassVar

from whyformer.errors import UnknownName
from whyformer.evaluate.comparison import RARE
from whyformer.evidence import NOISE, too_few, with_interval
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.views.comparison_view import recommendation_page
from whyformer.views.view import view_of


@dataclass(frozen=True)
class CandidateOutcome:
    """One method with options that fits into the budget, and its result on the test inputs."""

    name: str
    method: str
    options: dict[str, Any]
    price: float  # estimated for the longest input: forwards (a backward counts as ``Budgeted.backward``), or seconds
    forwards: float  # counted, per input
    backwards: float
    seconds: float  # measured, per input
    chosen_by: float  # mean AOPC on the inputs that it was chosen on
    mean: float  # mean AOPC on the test inputs
    low: float
    high: float
    over_choice: tuple[float, float, float] = (math.nan,) * 3  # gain over the choice on the test inputs, paired


@dataclass(frozen=True)
class Budgeted:
    """The method chosen within a budget, and all candidates, the choice first."""

    limit: str  # "20 forwards", "2 s"
    backward: float  # cost of a backward, in forwards
    units: int  # of the longest input, which prices are for
    candidates: tuple[CandidateOutcome, ...]
    over: dict[str, str] = field(default_factory=dict)  # method over the budget → its cost
    chance: float = math.nan  # p-value of the lead of the best candidate on the test inputs

    @property
    def choice(self) -> CandidateOutcome:
        return self.candidates[0]

    @property
    def hindsight(self) -> CandidateOutcome:
        """The best candidate on the test inputs, which is not known when the choice is made."""
        return max(self.candidates, key=lambda c: (c.mean, c is self.choice))

    @property
    def behind(self) -> bool:
        """Whether a candidate is significantly better than the choice on the test inputs."""
        return self.chance < RARE

    @property
    def chosen(self) -> str:
        count = len(self.candidates)
        return f"Within {self.limit}, {self.choice.name} was chosen from {count} candidate{'s' * (count != 1)}"

    @property
    def verdict(self) -> str:
        choice, best, words = self.choice, self.hindsight, self.chosen
        if math.isnan(choice.mean):
            return words + "."
        if best is choice:
            return words + ". It is also the best of them on the test inputs."
        words += f". On the test inputs, {best.name} has a higher AOPC by {with_interval(best.over_choice)}"
        if math.isnan(best.over_choice[1]) or math.isnan(self.chance):  # one input, or saved before this was measured
            return words + "."
        return words + f", which is {'' if self.behind else 'not '}significant (p = {self.chance:.2g})."


ANY = "any cost"
SCOPES = ("dataset", "label", "instance")


@dataclass(frozen=True)
class ChosenMethod:
    """The method chosen for one group of inputs (all, one label, one input) within one class of cost."""

    group: str
    cost_class: str
    name: str
    method: str
    options: dict[str, Any]
    truthfulness: float  # mean ranked truthfulness (RFT) on the inputs it was chosen by
    inputs: int  # number of inputs that it was chosen on


@dataclass(frozen=True)
class Outcome:
    """AOPC of the choices of one class of cost: on other inputs, or (per instance) on other variants."""

    cost_class: str
    name: str
    mean: float
    low: float
    high: float
    over_random: tuple[float, float, float] = (math.nan,) * 3  # mean gain and its 95 % confidence interval, paired
    over_attention: tuple[float, float, float] = (math.nan,) * 3  # over last-layer attention at the readout

    @property
    def beats_random(self) -> bool:
        return self.over_random[1] > NOISE

    @property
    def beats_attention(self) -> bool:
        return self.over_attention[1] > NOISE


@dataclass(frozen=True, eq=False)
class Recommendation(Result):
    """The recommended method, per class of cost, and its test on inputs that it was not chosen on.

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
        """Options for ``explain(model, x, **recommendation.best)``; per label a dict of them, per instance a list."""
        if self._few or (self.reported_on and not self.within(ANY).beats_random):
            warnings.warn(self.verdict, stacklevel=2)
        return self.chosen(ANY)

    def chosen(self, cost_class: str) -> Any:
        """Return the same within one class of cost: "one forward", "forward and backward", "many passes"."""
        by_group = {c.group: {"method": c.method, **c.options} for c in self.choices if c.cost_class == cost_class}
        if not by_group:
            raise UnknownName("class of cost", cost_class, dict.fromkeys(c.cost_class for c in self.choices))
        if self.scope == "dataset":
            return next(iter(by_group.values()))
        return by_group if self.scope == "label" else list(by_group.values())

    def within(self, cost_class: str) -> Outcome:
        """Return the outcome of one class of cost, or of "random", "greedy", …"""
        for outcome in self.outcomes:
            if outcome.cost_class == cost_class:
                return outcome
        raise UnknownName("class of cost", cost_class, [o.cost_class for o in self.outcomes])

    @property
    def verdict(self) -> str:
        """Whether the choice beats random scores and last-layer attention, in sentences."""
        if self.budgeted is None:
            return self._against()
        return f"{self.budgeted.chosen + '.' if self._few else self.budgeted.verdict} {self._against()}"

    @property
    def _few(self) -> str:
        """A warning if there are too few inputs. With a budget, half of them choose and half test; else all do both."""
        return too_few(self.chosen_on + (0 if self.budgeted is None else self.reported_on))

    def _against(self) -> str:
        if not self.reported_on:
            return "Chosen, but not tested (report=False)."
        outcome = self.within(ANY)
        random, attention = with_interval(outcome.over_random), with_interval(outcome.over_attention)
        metric = "AOPC: mean fall of the prediction while features are removed, highest scores first; higher is better"
        if self._few:
            return f"{self._few}. Gain in AOPC over random scores on test inputs: {random}. {metric}."
        if not outcome.beats_random:
            return (
                f"The choice does not beat random scores on test inputs: the gain in AOPC is {random}, not "
                f"significant. {metric}. Don't rely on any of these explanations for this model and these inputs."
            )
        words = f"The choice beats random scores on test inputs: the gain in AOPC is {random}. {metric}."
        if math.isnan(outcome.over_attention[1]):
            return words
        if outcome.beats_attention:
            return f"{words} It also beats last-layer attention, by {attention}."
        return f"{words} It is tied with last-layer attention: the gain of {attention} is not significant."

    @property
    def title(self) -> str:
        """Model and scope, on one line."""
        per = {"dataset": "one for all inputs", "label": "one per label", "instance": "one per input"}[self.scope]
        return f"{self.model}: recommended method, {per}"

    def to_frame(self) -> DataFrame:
        """Return one row per choice, with the outcome of its class of cost."""
        known = {o.cost_class: o for o in self.outcomes}
        rows = []
        for choice in self.choices:
            outcome = known.get(choice.cost_class)
            aopc = {} if outcome is None else {"aopc": outcome.mean, "aopc_low": outcome.low, "aopc_high": outcome.high}
            rows.append(dataclasses.asdict(choice) | aopc)
        return dataframe(rows)


view_of.register(Recommendation, recommendation_page)
