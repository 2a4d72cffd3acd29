"""recommend within a budget: the best method of those that fit, chosen by AOPC on one half, tested on the other."""

from __future__ import annotations

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
from whyformer.evaluate.budgeted import Budgeted, Contestant
from whyformer.evaluate.candidates import Field
from whyformer.evaluate.contender import Contender, filled
from whyformer.evaluate.field import field_of, halves, truthfulness_of
from whyformer.evaluate.games import Games
from whyformer.evaluate.metrics.faithfulness import aopc, top_away
from whyformer.evaluate.outcomes import outcomes_of
from whyformer.evaluate.recommendation import ANY, Choice, Recommendation
from whyformer.evaluate.trial import Trial
from whyformer.intervals import spread

Array = np.ndarray[Any, Any]

READINGS = 3  # of the attention spaces, the first by RFT, go on to be judged by AOPC
EVERYONE = "all inputs"
SPACE_COST = {"attention": ("raw_attention",), "gradient": ("attention_x_gradient",), "rollout": ("attention_rollout",)}


def chosen_within(
    games: Games,
    contenders: Sequence[Contender],
    spaces: Sequence[str],
    known: list[int],
    budget: Budget,
    value: str,
    report: bool,
    guided: bool,
) -> Recommendation:
    """The whole recommendation. guided: shap with a guide stands with as many evaluations as fit."""
    rates = measured_rates(games) if budget.seconds else Rates()
    units = len(games.units[longest(games)])
    field, over = _standing(games, contenders, spaces, budget, rates, units, guided)
    choosing, testing = halves(games, known) if report else (known, [])
    truth_MI = truthfulness_of(games, field, choosing, value)
    mean_M = truth_MI[:, choosing].mean(1)
    finalists = [*_first_readings(mean_M[: field.spaced]), *range(field.spaced, len(field.candidates))]
    measured = {m: _measured(games, field, m, budget) for m in finalists}
    finalists, dear = _within(field, measured, budget)
    over |= dear
    if not finalists:
        raise _nothing_fits(budget, over, measured=True)
    chosen_IM = _aopc(games, field, finalists, choosing, "choosing")
    best = finalists[int(np.argmax(chosen_IM.mean(0)))]
    tested_IM = _aopc(games, field, finalists, testing, "testing")
    contestants = _contestants(games, field, finalists, measured, chosen_IM, tested_IM, best, testing, rates, units)
    candidate = field.candidates[best]
    choice = Choice(
        EVERYONE, ANY, candidate.name, candidate.method, candidate.options, float(mean_M[best]), len(choosing)
    )
    group_of = dict.fromkeys(testing, EVERYONE)
    chosen = {(EVERYONE, ANY): choice}  # a search for the ceiling would cost more than all the rest
    outcomes = outcomes_of(games, field, chosen, group_of, {ANY: best}, search=False) if testing else ()
    few = (f"{len(choosing)} inputs chose: with so few, several methods are equally good by chance.",)
    return Recommendation(
        scope="dataset",
        choices=(choice,),
        outcomes=outcomes,
        leaders=tuple((field.candidates[m].name, float(mean_M[m])) for m in np.argsort(-mean_M, kind="stable")[:10]),
        grid=(),
        grid_reading="",
        candidates=len(field.candidates),
        excluded=field.excluded,
        replacement=str(games.replacement),
        chosen_on=len(choosing),
        reported_on=len(testing),
        variants=games.forwards,
        seed=games.seed,
        warnings=(*games.doubts(), *(few if len(choosing) < 20 else ())),
        model=type(games.explainer.model).__name__,
        options={"value": value, "budget": str(budget)},
        budgeted=Budgeted(str(budget), rates.backward, units, contestants, over),
    )


def _first_readings(mean_M: Array) -> list[int]:
    """The best readings of attention by RFT; those that come out equal are one (a product of maps, read by row or
    column)."""
    first: list[int] = []
    for m in np.argsort(-mean_M, kind="stable"):
        if len(first) < READINGS and not any(math.isclose(mean_M[m], mean_M[f], rel_tol=1e-9) for f in first):
            first.append(int(m))
    return first


def _standing(
    games: Games,
    contenders: Sequence[Contender],
    spaces: Sequence[str],
    budget: Budget,
    rates: Rates,
    units: int,
    guided: bool,
) -> tuple[Field, dict[str, str]]:
    """Everyone whose price fits, with their scores; and what the others would cost."""
    fit, prices = affordable(contenders, units, rates, budget)
    fitting = [s for s in spaces if all(price_of(m, {}, units, rates) <= budget.most for m in SPACE_COST[s])]
    if guided:
        standing = {entry.name for entry in fit}
        for guide in GUIDES:  # the first that runs on this model
            entry = guided_shap(guide, units, rates, budget.most)
            if entry is None:
                continue
            if guide not in standing or not filled(Contender(guide, guide), games, games.scalar, memory=False).failure:
                fit.append(entry)
                break
    over = {name: f"{in_words(price, budget)} for an input of {units} units" for name, price in prices.items()}
    if not fit and not fitting:
        raise _nothing_fits(budget, over, prices=prices)
    field = field_of(games, fitting, fit, aside=False)
    if not field.candidates:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in field.excluded.items())
        raise NotOffered(f"nothing that fits into {budget} can explain this model: {reasons}")
    return field, over


def _nothing_fits(
    budget: Budget, over: dict[str, str], prices: dict[str, float] | None = None, measured: bool = False
) -> BadInput:
    """An error that names the cheapest."""
    cheapest = min(prices, key=lambda name: prices[name]) if prices else next(iter(over))
    how = "measured" if measured else "declared"
    return BadInput(
        f"no method fits into a budget of {budget}: the cheapest of those that stand is {cheapest}, "
        f"{over[cheapest]} ({how}). Raise the budget, or let other methods stand (wf.list_methods())."
    )


def _measured(games: Games, field: Field, number: int, budget: Budget) -> Contender:
    """What a candidate takes; readings of attention came from a shared record, so they are run for themselves."""
    candidate = field.candidates[number]
    options = {k: v for k, v in candidate.options.items() if k != "first_token"}
    done = field.measured.get(candidate.name)
    if done is None or budget.seconds:  # a second run is warm: what is loaded once is no part of an explanation
        done = filled(Contender(candidate.name, candidate.method, options), games, games.scalar, memory=False)
    return done


def _within(field: Field, measured: dict[int, Contender], budget: Budget) -> tuple[list[int], dict[str, str]]:
    """Candidates that also fit as measured, and what the others took; the cheapest of these first."""
    if not budget.seconds:
        return list(measured), {}
    slow = {m: done for m, done in measured.items() if not done.seconds <= budget.most}
    ordered = sorted(slow.items(), key=lambda pair: pair[1].seconds)
    over = {field.candidates[m].name: f"{done.seconds:.3g} s as measured" for m, done in ordered}
    return [m for m in measured if m not in slow], over


def _aopc(games: Games, field: Field, finalists: Sequence[int], inputs: Sequence[int], label: str) -> Array:
    """(I, M) AOPC of each finalist on each input."""
    values = []
    for i in games.track(list(inputs), label):
        trials = [Trial(field.scores[i][m], games.game(i)) for m in finalists]
        games.game(i).ask(np.concatenate([top_away(trial) for trial in trials]))
        values.append([aopc(trial) for trial in trials])
    return np.array(values).reshape(len(inputs), len(finalists))


def _contestants(
    games: Games,
    field: Field,
    finalists: Sequence[int],
    measured: dict[int, Contender],
    chosen_IM: Array,
    tested_IM: Array,
    best: int,
    testing: Sequence[int],
    rates: Rates,
    units: int,
) -> tuple[Contestant, ...]:
    """The choice first, the others by how they did where they were chosen."""
    unknown = np.full((3, len(finalists)), math.nan)
    means, ahead = unknown, unknown
    if len(testing):
        of = [games.of[i] for i in testing]
        means = np.stack(spread(tested_IM, games.seed, of))
        ahead = np.stack(spread(tested_IM - tested_IM[:, [list(finalists).index(best)]], games.seed, of))
    rows = []
    for column, m in enumerate(finalists):
        candidate, done = field.candidates[m], measured[m]
        rows.append(
            Contestant(
                candidate.name,
                candidate.method,
                candidate.options,
                price_of(candidate.method, candidate.options, units, rates),
                done.forwards,
                done.backwards,
                done.seconds,
                float(chosen_IM[:, column].mean()),
                float(means[0, column]),
                float(means[1, column]),
                float(means[2, column]),
                (float(ahead[0, column]), float(ahead[1, column]), float(ahead[2, column])),
            )
        )
    order = sorted(range(len(rows)), key=lambda n: (finalists[n] != best, -rows[n].chosen_by))
    return tuple(rows[n] for n in order)
