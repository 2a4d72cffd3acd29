"""recommend within a budget: the best method of those that fit, chosen by AOPC on one half, tested on the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.evaluate.budget import Budget, Rates, price_of
from whyformer.evaluate.budgeted import Budgeted, Contestant
from whyformer.evaluate.candidates import Field
from whyformer.evaluate.contender import Contender
from whyformer.evaluate.field import halves
from whyformer.evaluate.games import Games
from whyformer.evaluate.lead import chance_of_lead
from whyformer.evaluate.outcomes import outcomes_of
from whyformer.evaluate.recommendation import ANY, ChosenMethod, Recommendation
from whyformer.evaluate.standing import Standing, nothing_fits
from whyformer.intervals import spread

Array = np.ndarray[Any, Any]

EVERYONE = "all inputs"


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
    standing = Standing(games, contenders, spaces, budget, value, guided)
    field, over = standing.field, standing.over
    choosing, testing = halves(games, known) if report else (known, [])
    mean_M = standing.truth_M(choosing)
    finalists = standing.finalists(mean_M)
    measured = {m: standing.measured(m) for m in finalists}
    finalists, dear = _within(field, measured, budget)
    over |= dear
    if not finalists:
        raise nothing_fits(budget, over, measured=True)
    chosen_IM = standing.judged(finalists, choosing, "choosing")
    column = int(np.argmax(chosen_IM.mean(0)))
    best = finalists[column]
    tested_IM = standing.judged(finalists, testing, "testing")
    chance = chance_of_lead(tested_IM, column, games.seed, [games.of[i] for i in testing])
    rates, units = standing.rates, standing.units
    contestants = _contestants(games, field, finalists, measured, chosen_IM, tested_IM, best, testing, rates, units)
    candidate = field.candidates[best]
    options = games.options_of(candidate.method, candidate.options)
    choice = ChosenMethod(EVERYONE, ANY, candidate.name, candidate.method, options, float(mean_M[best]), len(choosing))
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
        held=games.held,
        budgeted=Budgeted(str(budget), rates.backward, units, contestants, over, chance),
    )


def _within(field: Field, measured: dict[int, Contender], budget: Budget) -> tuple[list[int], dict[str, str]]:
    """Candidates that also fit as measured, and what the others took; the cheapest of these first."""
    if not budget.seconds:
        return list(measured), {}
    slow = {m: done for m, done in measured.items() if not done.seconds <= budget.most}
    ordered = sorted(slow.items(), key=lambda pair: pair[1].seconds)
    over = {field.candidates[m].name: f"{done.seconds:.3g} s as measured" for m, done in ordered}
    return [m for m in measured if m not in slow], over


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
                games.options_of(candidate.method, candidate.options),
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
