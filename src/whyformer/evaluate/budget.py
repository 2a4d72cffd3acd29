"""What an explanation may cost: forwards or seconds, what each method declares, and options that make it fit."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from whyformer.errors import BadInput, WhyformerError
from whyformer.evaluate.contender import Contender, named, one_input
from whyformer.evaluate.games import Games
from whyformer.registry import get_method

BACKWARD = 2.0  # forwards, about: gradients of what goes in and of what it is multiplied with
# What methods do besides passes of the model, in forwards for so many units, about: whatever takes as long.
BESIDES: dict[str, Callable[[float], float]] = {
    "alti": lambda units: units / 4,
    "attention_flow": lambda units: units**2 / 100,
    "decompx": lambda units: units,
    "value_zeroing": lambda units: units / 2,
}
# Options that say how many passes a method takes, from the fewest that are worth it; the default is the most.
SCALABLE = {"integrated_gradients": ("steps", 4), "smooth_grad": ("samples", 4), "shap": ("evaluations", 8)}
# Of Shapley values by regression (python -m bench.recommend_budget --guides). "+alone" costs four forwards more, so
# that a small budget may have room for the name alone; generic_attention is behind with it on pictures.
GUIDES = ("attn_lrp+alone", "attn_lrp", "generic_attention", "input_x_gradient+alone", "input_x_gradient")
MOST = 1024  # evaluations of these
FEWEST = 8
TIME = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|seconds?|forwards?)?\s*")


@dataclass(frozen=True)
class Budget:
    """So many forwards, or seconds, for one explanation."""

    most: float
    seconds: bool = False

    def __str__(self) -> str:
        return f"{self.most:g} {'s' if self.seconds else 'forwards'}"


def budget_of(asked: int | str) -> Budget:
    """20, "20", "20 forwards", "2s", "500ms"."""
    if isinstance(asked, int):
        return Budget(float(asked))
    match = TIME.fullmatch(asked)
    amount, unit = (float(match[1]), match[2] or "forwards") if match else (0.0, "")
    if not match or not amount or (unit.startswith("forward") and amount != int(amount)):
        raise BadInput(f"budget={asked!r} is no cost: give a number of forwards (20), or a time ('2s', '500ms').")
    if unit.startswith("forward"):
        return Budget(amount)
    return Budget(amount / 1000 if unit == "ms" else amount, seconds=True)


@dataclass(frozen=True)
class Rates:
    """What passes take on these inputs. Without a measurement, in forwards: a backward is two."""

    forward: float = 1.0  # of one input alone
    batched: float = 1.0  # of one input among as many as are run together
    backward: float = BACKWARD  # in forwards

    def price(self, forwards: float, backwards: float, besides: float = 0.0) -> float:
        """Variants of an input share batches; a single pass does not."""
        each = self.forward if forwards <= 2 else self.batched
        return forwards * each + backwards * self.backward * each + besides * self.batched


def measured_rates(games: Games, rounds: int = 3) -> Rates:
    """Seconds of a forward, alone and in a batch, and what a backward is in forwards, on the longest input."""
    number = longest(games)
    run, row = games.run_of(number)
    one = run.batch.select([row])
    many = one.select([0] * games.batch_size)
    with torch.no_grad():
        alone = fastest(lambda: run.output.logits(one), rounds)
        batched = fastest(lambda: run.output.logits(many), rounds) / games.batch_size
    explain, raw = games.explainer.explain, one_input(games.inputs, number)
    try:
        both = fastest(lambda: explain(raw, method="saliency", **games.asked), rounds)
        backward = max(0.0, both - alone) / alone
    except WhyformerError:  # no gradients here, so none will be paid for
        backward = BACKWARD
    return Rates(alone, min(alone, batched), backward)


def fastest(act: Callable[[], object], rounds: int) -> float:
    """Seconds of the fastest of some rounds; the first warms up."""
    seconds = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def longest(games: Games) -> int:
    return max(range(games.size), key=lambda i: len(games.units[i]))


def price_of(method: str, options: dict[str, Any], units: int, rates: Rates) -> float:
    """What a method declares for an input of so many units."""
    entry = get_method(method)
    known = {k: v for k, v in options.items() if k in entry.options}
    forwards, backwards = entry.cost(units, **(entry.defaults | known))
    return rates.price(forwards, backwards, BESIDES.get(method, lambda _: 0.0)(units))


def fitted(entry: Contender, units: int, rates: Rates, most: float) -> Contender | None:
    """The method as it is, or with as many passes as the budget pays for; None where even the fewest are too many."""
    if price_of(entry.method, entry.options, units, rates) <= most:
        return entry
    option, fewest = SCALABLE.get(entry.method, ("", 0))
    if not option or option in entry.options:
        return None
    high = int(get_method(entry.method).defaults[option])
    count = _most(lambda n: price_of(entry.method, {**entry.options, option: n}, units, rates), fewest, high, most)
    if count is None:
        return None
    options = {**entry.options, option: count}
    return Contender(named(entry.method, options), entry.method, options)


def guided_shap(guide: str, units: int, rates: Rates, most: float) -> Contender | None:
    """Shapley values that lean on a guide, with the evaluations that the budget leaves."""
    count = _most(lambda n: price_of("shap", {"evaluations": n, "guide": guide}, units, rates), FEWEST, MOST, most)
    if count is None:
        return None
    options = {"evaluations": count, "guide": guide}
    return Contender(named("shap", options), "shap", options)


def _most(price: Callable[[int], float], fewest: int, high: int, most: float) -> int | None:
    """The largest count whose price fits; prices rise with counts."""
    if price(fewest) > most:
        return None
    low = fewest
    while low < high:
        middle = math.ceil((low + high) / 2)
        low, high = (middle, high) if price(middle) <= most else (low, middle - 1)
    return low


def in_words(price: float, budget: Budget) -> str:
    """A price in the unit of the budget."""
    return f"about {price:.3g} s" if budget.seconds else f"{price:.0f} forwards"


def affordable(
    contenders: Sequence[Contender], units: int, rates: Rates, budget: Budget
) -> tuple[list[Contender], dict[str, float]]:
    """Those that fit, perhaps with fewer passes than usual; and what the others would cost."""
    fit, over = [], {}
    for entry in contenders:
        fits = fitted(entry, units, rates, budget.most)
        if fits is None:
            over[entry.name] = price_of(entry.method, entry.options, units, rates)
        else:
            fit.append(fits)
    return fit, over


def within_effort(
    contenders: Sequence[Contender], units: float, effort: int | None
) -> tuple[list[Contender], dict[str, str]]:
    """Those whose prices add up to no more than the effort, the cheapest first; and why others are left out."""
    prices = {entry.name: price_of(entry.method, entry.options, round(units), Rates()) for entry in contenders}
    spent, dear = 0.0, {}
    for name, price in sorted(prices.items(), key=lambda each: each[1]):
        if effort is not None and spent + price > effort:
            dear[name] = (
                f"left out: about {price:.0f} forwards for each input of {units:.0f} units, and of effort={effort} "
                f"{effort - spent:.0f} were left. Name it in methods, or raise the effort."
            )
        else:
            spent += price
    return [entry for entry in contenders if entry.name not in dear], dear
