"""Who fits into a budget, and how each of them does: asked little by little, every variant of an input run once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.errors import BadInput, NotOffered
from whyformer.evaluate.budget import (
    GUIDES,
    Budget,
    Rates,
    affordable,
    guided_shap,
    in_words,
    longest,
    measured_rates,
    price_of,
)
from whyformer.evaluate.candidates import Field
from whyformer.evaluate.contender import Contender, explains_one, filled
from whyformer.evaluate.field import field_of, truthfulness_of
from whyformer.evaluate.games import Games
from whyformer.evaluate.metrics.faithfulness import aopc, top_away
from whyformer.evaluate.trial import Trial

Array = np.ndarray[Any, Any]

READINGS = 3  # of the attention spaces, the first by RFT, go on to be judged by AOPC
SPACE_COST = {"attention": ("raw_attention",), "gradient": ("attention_x_gradient",), "rollout": ("attention_rollout",)}


class Standing:
    """Everyone whose price fits, with their scores of all inputs. guided: shap with a guide stands as well."""

    def __init__(
        self,
        games: Games,
        contenders: Sequence[Contender],
        spaces: Sequence[str],
        budget: Budget,
        value: str = "logit",
        guided: bool = True,
    ) -> None:
        self.games, self.budget, self.value = games, budget, value
        self.rates = measured_rates(games) if budget.seconds else Rates()
        self.units = len(games.units[longest(games)])
        self.field, self.over = self._field(contenders, spaces, guided)
        self._judged: dict[tuple[int, int], float] = {}

    def _field(
        self, contenders: Sequence[Contender], spaces: Sequence[str], guided: bool
    ) -> tuple[Field, dict[str, str]]:
        """Those that stand; and what the others would cost."""
        games, budget, rates, units = self.games, self.budget, self.rates, self.units
        fit, prices = affordable(contenders, units, rates, budget)
        fitting = [s for s in spaces if all(price_of(m, {}, units, rates) <= budget.most for m in SPACE_COST[s])]
        if guided:
            guides = (guided_shap(guide, units, rates, budget.most) for guide in GUIDES)
            runs = (entry for entry in guides if entry is not None and explains_one(entry, games))
            fit += itertools.islice(runs, 1)
        over = {name: f"{in_words(price, budget)} for an input of {units} units" for name, price in prices.items()}
        if not fit and not fitting:
            raise nothing_fits(budget, over, prices=prices)
        field = field_of(games, fitting, fit, aside=False)
        if not field.candidates:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in field.excluded.items())
            raise NotOffered(f"nothing that fits into {budget} can explain this model: {reasons}")
        return field, over

    def truth_M(self, choosing: Sequence[int]) -> Array:
        """(M,) mean ranked truthfulness of every candidate on the inputs that choose."""
        truth_MI = truthfulness_of(self.games, self.field, choosing, self.value)
        mean_M: Array = truth_MI[:, list(choosing)].mean(1)
        return mean_M

    def finalists(self, truth_M: Array) -> list[int]:
        """The first readings of attention, and every other method."""
        readings = _first_readings(truth_M[: self.field.spaced])
        return [*readings, *range(self.field.spaced, len(self.field.candidates))]

    def judged(self, finalists: Sequence[int], inputs: Sequence[int], label: str) -> Array:
        """(I, M) AOPC of each finalist on each input."""
        for i in self.games.track(list(inputs), label):
            game = self.games.game(i)
            trials = {m: Trial(self.field.scores[i][m], game) for m in finalists if (m, i) not in self._judged}
            if trials:
                game.ask(np.concatenate([top_away(trial) for trial in trials.values()]))
            self._judged |= {(m, i): aopc(trial) for m, trial in trials.items()}
        values = [[self._judged[m, i] for m in finalists] for i in inputs]
        return np.array(values).reshape(len(inputs), len(finalists))

    def measured(self, number: int) -> Contender:
        """What a candidate takes; readings of attention came from a shared record, so they are run for themselves."""
        candidate = self.field.candidates[number]
        options = {k: v for k, v in candidate.options.items() if k != "first_token"}
        done = self.field.measured.get(candidate.name)
        if done is None or self.budget.seconds:  # a second run is warm: what is loaded once is no part of it
            asked = Contender(candidate.name, candidate.method, options)
            done = filled(asked, self.games, self.games.scalar, memory=False)
        return done


def _first_readings(mean_M: Array) -> list[int]:
    """The best readings of attention by RFT; those that come out equal are one (a product of maps, read by row or
    column)."""
    first: list[int] = []
    for m in np.argsort(-mean_M, kind="stable"):
        if len(first) < READINGS and not any(math.isclose(mean_M[m], mean_M[f], rel_tol=1e-9) for f in first):
            first.append(int(m))
    return first


def nothing_fits(
    budget: Budget, over: dict[str, str], prices: dict[str, float] | None = None, measured: bool = False
) -> BadInput:
    """An error that names the cheapest."""
    cheapest = min(prices, key=lambda name: prices[name]) if prices else next(iter(over))
    how = "measured" if measured else "declared"
    return BadInput(
        f"no method fits into a budget of {budget}: the cheapest of those that stand is {cheapest}, "
        f"{over[cheapest]} ({how}). Raise the budget, or let other methods stand (wf.list_methods())."
    )
