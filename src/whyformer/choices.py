"""What explains when no method is named, within how many passes, beside which others, and what methods cost."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from whyformer.errors import BadInput
from whyformer.registry import MASKINGS, get_method

PASSES = 128  # that one input may take; a backward counts two
USUAL = {"language": 3}  # prompts are long: one forward and one backward, unless more are asked for
LEAST = 3  # passes of a method with one forward and one backward
FEWEST = 16  # passes, with which a few parts can be measured
FEWEST_OF_ROWS = 41  # the same for a table, whose masked columns take their values from several rows
MOST_UNITS = 1000  # of more, 128 passes measure too few to be better than one pass
MEASURED = ("text", "image", "table", "sequence", "", "language")  # kinds whose parts are measured at both ends
AVERAGED = 8  # maskings; more of them gain nothing. As a guide, one for each so many passes
ANYWHERE = "generic_attention"  # also detectors, models of several streams, sound
ASKED = "occlusion"  # only asks the model: also for a model behind an API (inputs/prompt.py)
ONE_PASS = ("attn_lrp", "value_x_gradient", ANYWHERE)  # the most faithful first; the first has a patent note
Choice = tuple[str, dict[str, Any]]  # a method, and options that differ from its defaults

# Passes that measuring so many parts leaves go to masks at random, where there are enough: eight a part are as much
# evidence as the guide.
STRONGEST, MASKS, PER_UNIT = 50, 24, 8
# Guides of Shapley values by regression (bench/recommend_budget.py --guides, commit e7265211). "+alone" costs four
# forwards more, so that a small budget may have room for the name alone; with it generic_attention is behind on images.
OF_SHAP = ("attn_lrp+alone", "attn_lrp", "generic_attention", "input_x_gradient+alone", "input_x_gradient")
# One of each kind, which reports compare with the default.
REPORTED = ("attn_lrp", "generic_attention", "attention_rollout", "integrated_gradients", "occlusion")
# Named where a method refuses: of each kind the first that runs, with the options that it takes.
INSTEAD: tuple[tuple[Choice, ...], ...] = (
    (("generic_attention", {}),),
    (("attention_rollout", {}), ("raw_attention", {})),
    (
        ("integrated_gradients", {}),
        ("input_x_gradient", {}),
        ("input_x_gradient", {"at": "input"}),
        ("input_x_gradient", {"at": "embeddings"}),
        ("attn_lrp", {}),
    ),
    (("occlusion", {}), ("two_ended", {}), ("shap", {})),
)


def answers(kind: str, units: int, passes: int | None = None, mapped: bool = False) -> list[Choice]:
    """The default methods for one input: the next one is used if one is not supported or all its scores are zero.

    mapped: one pass that combines attention is asked for.
    """
    if mapped and kind in MEASURED and kind not in USUAL:
        return [(ANYWHERE, {})]
    most = PASSES if passes is None else passes
    ends: Choice = ("two_ended", {"passes": max(most, FEWEST)})
    masked: list[Choice] = [(ASKED, {})] if units < most else []
    if kind == "prompt":
        return masked or [ends]
    if kind == "function":  # of inputs: it cannot be looked into
        return [ends, (ASKED, {})]
    if kind not in MEASURED:  # where attention is not over units, masking them one by one still works
        return [(ANYWHERE, {}), *masked]
    many = units > MOST_UNITS
    names, last = (ONE_PASS[:1], masked) if kind in USUAL else (ONE_PASS, [])
    plain: list[Choice] = [*((name, {}) for name in names), *last]
    if (passes is None and (kind in USUAL or many)) or most <= 2 * LEAST:
        return plain
    averaged: list[Choice] = [(name, {MASKINGS: min(AVERAGED, (most - 1) // LEAST)}) for name in names]
    few = FEWEST_OF_ROWS if kind == "table" else FEWEST
    guided: list[Choice] = [] if many or most < few else [("two_ended", {"passes": most, "guide": "auto"})]
    return [*guided, *averaged, *plain]


def guides(passes: int | None = None) -> tuple[str, ...]:
    """Return the methods that can guide two_ended: guide="auto" is the first that runs (python -m bench.frontier)."""
    count = AVERAGED if passes is None else min(AVERAGED, passes // AVERAGED)
    return (*(f"{name}({MASKINGS}={count})" for name in ONE_PASS if count > 1), *ONE_PASS)


@cache
def default_method(kind: str) -> str:
    """Return the default method for an input of usual size."""
    return answers(kind, 1)[0][0]


# Budgets and prices, by declared costs.

BACKWARD = 1.0  # forwards, in multiply-adds: gradients of what goes in, as no weight needs one
TIME = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|seconds?|forwards?)?\s*")


@dataclass(frozen=True)
class Budget:
    """The most forwards, or seconds, for one explanation."""

    most: float
    seconds: bool = False

    @property
    def highest(self) -> float:
        """The highest price that fits: prices are rounded to whole forwards."""
        return self.most if self.seconds else self.most + 0.49

    def __str__(self) -> str:
        return f"{self.most:g} {'s' if self.seconds else 'forwards'}"


def budget_of(asked: int | str) -> Budget:
    """Return the budget that 20, "20", "20 forwards", "2s" or "500ms" mean."""
    if isinstance(asked, int):
        return Budget(float(asked))
    match = TIME.fullmatch(asked)
    amount, unit = (float(match[1]), match[2] or "forwards") if match else (0.0, "")
    if not match or not amount or (unit.startswith("forward") and amount != int(amount)):
        raise BadInput(f"budget={asked!r} is not a cost: give a number of forwards (20), or a time ('2s', '500ms').")
    if unit.startswith("forward"):
        return Budget(amount)
    return Budget(amount / 1000 if unit == "ms" else amount, seconds=True)


@dataclass(frozen=True)
class Rates:
    """The price of a pass: in seconds where it was measured on these inputs, else in forwards."""

    forward: float = 1.0  # of one input alone
    batched: float = 1.0  # of one input among as many as are run together
    backward: float = BACKWARD  # in forwards
    replace: str | int | None = None  # the default baseline of these inputs: several rows of a table cost more
    estimate: Callable[..., Any] | None = None  # (method=, **options) → Estimate of the longest input

    def price(self, forwards: float, backwards: float, besides: float = 0.0) -> float:
        """Return the price of an explanation. besides: work other than passes, in forwards."""
        return self._passes(forwards) + self.backward * self._passes(backwards) + besides * self.batched

    def _passes(self, count: float) -> float:
        """Return the price of passes: up to two run alone, more share batches. More passes never cost less."""
        return max(count * self.batched, min(count, 2) * self.forward)


def price_of(method: str, options: dict[str, Any], units: int, rates: Rates) -> float:
    """Return the price of a method for an input of so many units, by its declared cost."""
    entry = get_method(method)
    known = {k: v for k, v in {"replace": rates.replace, **options}.items() if k in entry.options}
    forwards, backwards = entry.cost(units, **(entry.defaults | known))
    if entry.works and rates.estimate is not None:
        estimated = rates.estimate(method=method, **known)
        forwards, backwards = estimated.forwards, estimated.backwards
    return rates.price(forwards, backwards, 0.0 if entry.extra_cost is None else entry.extra_cost(units))
