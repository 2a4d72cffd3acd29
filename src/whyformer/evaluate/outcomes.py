"""How choices do on inputs that did not choose them: AOPC, against random scores, last-layer attention and a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from whyformer.evaluate.candidates import Field
from whyformer.evaluate.games import Games
from whyformer.evaluate.judge import greedy, random_scores
from whyformer.evaluate.metrics.faithfulness import aopc, top_away
from whyformer.evaluate.recommendation import ChosenMethod, Outcome
from whyformer.evaluate.trial import Trial
from whyformer.intervals import spread

Array = np.ndarray[Any, Any]

FLOOR, CEILING = "random", "greedy"
LAST, MEAN = "last-layer attention", "mean attention"


def outcomes_of(
    games: Games,
    field: Field,
    chosen: Mapping[tuple[str, str], ChosenMethod],
    group_of: Mapping[int, str],
    fallback: Mapping[str, int],
    search: bool = True,
) -> tuple[Outcome, ...]:
    """One outcome per class of cost, then the usual readings, what could not be chosen, floor and (search) ceiling."""
    number_of = {c.name: m for m, c in enumerate(field.candidates)}
    usual = _usual(field)
    values: dict[str, list[float]] = {}
    for i in games.track(list(group_of), "testing"):
        game, scores_MP = games.game(i), field.scores[i]
        contenders: dict[str, Array] = {}
        for cost_class, other in fallback.items():
            choice = chosen.get((group_of[i], cost_class))
            contenders[cost_class] = scores_MP[other if choice is None else number_of[choice.name]]
        contenders |= {name: scores_MP[m] for name, m in usual.items()}
        contenders |= {name: scores[i] for name, scores in field.aside.items()}
        trials = {name: Trial(scores, game) for name, scores in contenders.items()}
        floor = [Trial(scores, game) for scores in random_scores(game.parts, i, games.seed)]
        game.ask(np.concatenate([top_away(t) for t in (*trials.values(), *floor)]))
        for name, trial in trials.items():
            values.setdefault(name, []).append(aopc(trial))
        values.setdefault(FLOOR, []).append(float(np.mean([aopc(trial) for trial in floor])))
        if search:
            values.setdefault(CEILING, []).append(aopc(Trial(greedy(game, "remove"), game)))
    return _summed(values, fallback, chosen, games.seed, [games.of[i] for i in group_of])


def _usual(field: Field) -> dict[str, int]:
    """What people look at by habit, where it is among the candidates."""
    numbers = {}
    last = max(
        (c.options["layers"] for c in field.candidates if isinstance(c.options.get("layers"), int)), default=None
    )
    for m, candidate in enumerate(field.candidates):
        options = candidate.options
        if candidate.method != "raw_attention" or options.get("heads", "mean") != "mean":
            continue
        if options.get("read", "row") == "row" and options.get("layers", last) in {last, "mean"}:
            numbers[MEAN if options.get("layers", last) == "mean" else LAST] = m
    return {name: numbers[name] for name in (LAST, MEAN) if name in numbers}


def _summed(
    values: dict[str, list[float]],
    classes: Mapping[str, int],
    chosen: Mapping[tuple[str, str], ChosenMethod],
    seed: int,
    of: Sequence[int],
) -> tuple[Outcome, ...]:
    table_IX = np.array(list(values.values())).T
    names = list(values)
    means = np.stack(spread(table_IX, seed, of), 1)
    over_random = np.stack(spread(table_IX - table_IX[:, [names.index(FLOOR)]], seed, of), 1)
    over_last = np.full_like(over_random, np.nan)
    if LAST in names:
        over_last = np.stack(spread(table_IX - table_IX[:, [names.index(LAST)]], seed, of), 1)
    outcomes = []
    for x, name in enumerate(names):
        picked = sorted({c.name for (_, cost_class), c in chosen.items() if cost_class == name})
        shown = name if name not in classes else picked[0] if len(picked) == 1 else f"{len(picked)} different ones"
        outcomes.append(Outcome(name, shown, *_three(means[x]), _three(over_random[x]), _three(over_last[x])))
    return tuple(outcomes)


def _three(row: Array) -> tuple[float, float, float]:
    return float(row[0]), float(row[1]), float(row[2])
