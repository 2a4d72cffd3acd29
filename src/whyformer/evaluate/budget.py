"""Prices of methods, options that fit a budget, and the candidates within it."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from whyformer.errors import BadInput, NotOffered, WhyformerError
from whyformer.evaluate.candidate import Candidate, Trial, evaluated, explains_one, one_input
from whyformer.evaluate.candidate_pool import CandidatePool, pool_of, truthfulness_of
from whyformer.evaluate.games import Games
from whyformer.evaluate.metrics.faithfulness import aopc, top_away
from whyformer.registry import get_method
from whyformer.shapes import Array

BACKWARD = 2.0  # forwards, about: gradients of what goes in and of what it is multiplied with
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
    """Read 20, "20", "20 forwards", "2s" or "500ms"."""
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
    """The price of a pass: in seconds where it was measured on these inputs, else in forwards."""

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
    return rates.price(forwards, backwards, 0.0 if entry.extra_cost is None else entry.extra_cost(units))


def fitted(candidate: Candidate, units: int, rates: Rates, most: float) -> Candidate | None:
    """The method as it is, or with as many passes as the budget pays for; None where even the fewest are too many."""
    if price_of(candidate.method, candidate.options, units, rates) <= most:
        return candidate
    entry = get_method(candidate.method)
    if entry.scalable is None or entry.scalable[0] in candidate.options:
        return None
    option, fewest = entry.scalable
    return _largest(candidate, option, fewest, int(entry.defaults[option]), units, rates, most)


def guided_shap(guide: str, units: int, rates: Rates, most: float) -> Candidate | None:
    """Shapley values that start from a guide's scores, with the evaluations that the budget leaves."""
    candidate = Candidate("shap", {"evaluations": FEWEST, "guide": guide})
    return _largest(candidate, "evaluations", FEWEST, MOST, units, rates, most)


def _largest(
    candidate: Candidate, option: str, low: int, high: int, units: int, rates: Rates, most: float
) -> Candidate | None:
    """The candidate with the largest value of an option whose price fits, by bisection; prices rise with it."""

    def with_count(count: int) -> Candidate | None:
        larger = Candidate(candidate.method, {**candidate.options, option: count})
        return larger if price_of(larger.method, larger.options, units, rates) <= most else None

    best = with_count(low)
    while best is not None and low < high:
        middle = math.ceil((low + high) / 2)
        larger = with_count(middle)
        best, low, high = (best, low, middle - 1) if larger is None else (larger, middle, high)
    return best


def affordable(
    candidates: Sequence[Candidate], units: int, rates: Rates, budget: Budget
) -> tuple[list[Candidate], dict[str, float]]:
    """The candidates that fit, perhaps with fewer passes than usual; and what the others would cost."""
    fit, over = [], {}
    for candidate in candidates:
        fits = fitted(candidate, units, rates, budget.most)
        if fits is None:
            over[candidate.name] = price_of(candidate.method, candidate.options, units, rates)
        else:
            fit.append(fits)
    return fit, over


def within_effort(
    candidates: Sequence[Candidate], units: float, effort: int | None
) -> tuple[list[Candidate], dict[str, str]]:
    """The cheapest candidates, whose prices add up to no more than the effort; and why others are left out."""
    prices = {c.name: price_of(c.method, c.options, round(units), Rates()) for c in candidates}
    spent, dear = 0.0, {}
    for name, price in sorted(prices.items(), key=lambda each: each[1]):
        if effort is not None and spent + price > effort:
            dear[name] = (
                f"left out: about {price:.0f} forwards for each input of {units:.0f} units, and of effort={effort} "
                f"{effort - spent:.0f} were left. Name it in methods, or raise the effort."
            )
        else:
            spent += price
    return [candidate for candidate in candidates if candidate.name not in dear], dear


# Candidates within a budget, and their AOPC: computed step by step, each variant of an input once.

READINGS = 3  # of the attention spaces, the first by RFT, go on to be judged by AOPC
SPACE_METHODS = {"attention": "raw_attention", "gradient": "attention_x_gradient", "rollout": "attention_rollout"}


class AffordableMethods:
    """The candidates whose price fits, with their scores on all inputs. guided: shap with a guide is one of them."""

    def __init__(
        self,
        games: Games,
        candidates: Sequence[Candidate],
        spaces: Sequence[str],
        budget: Budget,
        value: str = "logit",
        guided: bool = True,
    ) -> None:
        self.games, self.budget, self.value = games, budget, value
        self.rates = rates = measured_rates(games) if budget.seconds else Rates()
        self.units = units = len(games.units[longest(games)])
        self._judged: dict[tuple[int, int], float] = {}
        fit, prices = affordable(candidates, units, rates, budget)
        spaced = {space: price_of(SPACE_METHODS[space], {}, units, rates) for space in spaces}
        fitting = [space for space, price in spaced.items() if price <= budget.most]
        if guided:
            guides = (guided_shap(guide, units, rates, budget.most) for guide in GUIDES)
            runs = (candidate for candidate in guides if candidate is not None and explains_one(candidate, games))
            fit += itertools.islice(runs, 1)
        if nothing := not fit and not fitting:
            prices |= {f"a method of the space {space!r}": price for space, price in spaced.items()}
        price_text = "about {:.3g} s" if budget.seconds else "{:.0f} forwards"
        self.over = {n: f"{price_text.format(price)} for an input of {units} units" for n, price in prices.items()}
        if nothing:
            raise nothing_fits(budget, self.over, prices)
        self.pool: CandidatePool = pool_of(games, fitting, fit, aside=False)
        if not self.pool.candidates:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.pool.excluded.items())
            raise NotOffered(f"nothing that fits into {budget} can explain this model: {reasons}")

    def truth_M(self, choosing: Sequence[int]) -> Array:
        """(M,) mean ranked truthfulness of every candidate on the inputs that choose."""
        return truthfulness_of(self.games, self.pool, choosing, self.value)[:, list(choosing)].mean(1)

    def finalists(self, truth_M: Array) -> list[int]:
        """Return the best readings of attention by RFT (equal ones count once), and every other method."""
        spaced = self.pool.spaced
        first: list[int] = []
        for m in np.argsort(-truth_M[:spaced], kind="stable"):
            if len(first) < READINGS and not any(math.isclose(truth_M[m], truth_M[f], rel_tol=1e-9) for f in first):
                first.append(int(m))
        return [*first, *range(spaced, len(self.pool.candidates))]

    def judged(self, finalists: Sequence[int], inputs: Sequence[int], label: str) -> Array:
        """(I, M) AOPC of each finalist on each input."""
        for i in self.games.track(list(inputs), label):
            game = self.games.game(i)
            trials = {m: Trial(self.pool.scores[i][m], game) for m in finalists if (m, i) not in self._judged}
            if trials:
                game.ask(np.concatenate([top_away(trial) for trial in trials.values()]))
            self._judged |= {(m, i): aopc(trial) for m, trial in trials.items()}
        values = [[self._judged[m, i] for m in finalists] for i in inputs]
        return np.array(values).reshape(len(inputs), len(finalists))

    def measured(self, number: int) -> Candidate:
        """The candidate with its cost; readings of attention came from a shared record, so they are run alone here."""
        candidate = self.pool.candidates[number]
        if candidate.explanations and not self.budget.seconds:
            return candidate
        options = {k: v for k, v in candidate.options.items() if k != "first_token"}
        # Seconds are those of a second run: what is loaded once does not count.
        return evaluated(Candidate(candidate.method, options), self.games, self.games.scalar)


def nothing_fits(budget: Budget, over: dict[str, str], prices: dict[str, float] | None = None) -> BadInput:
    """Return an error that names the cheapest method: by declared prices, else the first of those measured."""
    cheapest = min(prices, key=lambda name: prices[name]) if prices else next(iter(over))
    source = "measured" if prices is None else "declared"
    return BadInput(
        f"no method fits into a budget of {budget}: the cheapest candidate is {cheapest}, "
        f"{over[cheapest]} ({source}). Raise the budget, or pass other methods= (wf.list_methods())."
    )
