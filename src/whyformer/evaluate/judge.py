"""Judge one input: every method, random scores and the search, by every metric, from variants that all share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from whyformer.engines.perturbation.game import Game
from whyformer.engines.perturbation.ranking import count_of, only_top, without_top
from whyformer.evaluate.annotations import rationale_of, region_of
from whyformer.evaluate.contender import Contender
from whyformer.evaluate.games import Games
from whyformer.evaluate.noise import scores_with_noise
from whyformer.evaluate.trial import Trial
from whyformer.registry import Metric

# What every method is held against: random scores as the floor, greedy search as the ceiling.


Array = np.ndarray[Any, Any]

RANDOM_SEEDS = 5
STEPS = 20  # of greedy search: more parts than that go several at a time
VARIANTS = 512  # about so many are tried in one search: with very many parts there are fewer steps, but no less than 4


def random_scores(parts: int, number: int, seed: int, draws: int = RANDOM_SEEDS) -> list[Array]:
    """Scores that know nothing: one set per draw, other ones for every input."""
    return [np.random.default_rng([seed, number, draw]).random(parts) for draw in range(draws)]


def steps_of(parts: int) -> int:
    return min(parts, STEPS, max(4, 2 * VARIANTS // parts - 1))


def greedy(game: Game, search: str) -> Array:
    """(P,) scores of the order in which a search takes the parts.

    "remove": whatever lowers the prediction most goes first; "keep": whatever raises it most comes first, beginning
    with nothing. Each step asks for every part that is left, P·(steps + 1)/2 variants in all. It is a search, not a
    proof: another order may do better still.
    """
    parts = game.parts
    present = np.full(parts, search == "remove")
    scores = np.zeros(parts)
    steps = steps_of(parts)
    for step in range(steps):
        left = np.flatnonzero(present if search == "remove" else ~present)
        variants = np.repeat(present[None], len(left), axis=0)
        variants[np.arange(len(left)), left] = search != "remove"
        values = game.values(variants)
        best = left[np.argsort(values if search == "remove" else -values, kind="stable")]
        taken = best[: count_of((step + 1) / steps, parts) - (parts - len(left))]
        scores[taken] = len(left) - np.arange(len(taken))
        present[taken] = search != "remove"
    return scores


def ceiling_scores(game: Game, kind: str) -> Array:
    """The scores of a search: greedy, or leave-one-out where that is best by construction."""
    return game.drops() if kind == "leave_one_out" else greedy(game, kind)


# Judge one input: every method, random scores and the search, by every metric, from variants that all share.


Judged = list[tuple[Metric, dict[str, Any]]]  # metrics with their options
Values = dict[str, dict[str, Array]]  # metric → method → one value per input
Curves = dict[str, dict[str, list[Array]]]  # kind → method → one curve per input

FLOOR, CEILING = "random", "greedy"
CURVES = {"remove": without_top, "keep": only_top}


@dataclass(frozen=True)
class Marks:
    """What people marked, per input."""

    rationales: Sequence[Any] | None
    masks: Sequence[Any] | None


@dataclass(frozen=True)
class Needs:
    """What some metrics ask besides the game of the model itself."""

    soft: bool = False  # numbers of parts erased one by one
    surrogate: Games | None = None  # the same inputs, for a copy of the model that was fine-tuned on masked ones


NOTHING = Needs()


class OneInput:
    """One input on which all methods are tried."""

    def __init__(self, games: Games, number: int, marks: Marks, scalar: str, needs: Needs = NOTHING) -> None:
        self.games, self.number, self.scalar = games, number, scalar
        # Other draws for every input, the same for all methods: sets that all rows of a table had in common would be
        # an error that more rows do not average out, and that limits over rows do not show.
        self.seed = int(np.random.SeedSequence([games.seed, number]).generate_state(1)[0])
        self.units, self.parts = games.units[number], games.parts[number]
        self.game: Any = games.game(number) if games.replacement is not None else None
        self.soft = games.soft_game(number) if needs.soft else None
        self.surrogate = None if needs.surrogate is None else needs.surrogate.game(number)
        self._searched: dict[str, Trial] = {}
        rationales = marks.rationales
        self.rationale = None if rationales is None else rationale_of(rationales[number], self.units, self.parts)
        self.region = None if marks.masks is None else region_of(marks.masks[number], self.units)

    def searched(self, kind: str) -> Trial:
        """What a search finds: the ceiling."""
        if kind not in self._searched:
            self._searched[kind] = self.trial(ceiling_scores(self.game, kind), kind == "leave_one_out")
        return self._searched[kind]

    def trial(self, scores_P: Array, signed: bool, entry: Contender | None = None) -> Trial:
        again = None
        if entry is not None:
            again = partial(scores_with_noise, self.games, entry, self.scalar, self.number)
        return Trial(
            np.asarray(scores_P, dtype=float),
            self.game,
            signed,
            self.seed,
            self.units,
            self.parts,
            None if entry is None else entry.scored[self.number],
            self.rationale,
            self.region,
            again,
            self.surrogate,
            self.soft,
        )


def judge(
    one: OneInput,
    contenders: list[Contender],
    judged: Judged,
    values: Values,
    curves: Curves,
) -> None:
    number, drawn = one.number, random_scores(len(one.parts), one.number, one.games.seed)
    trials = {}
    for entry in contenders:
        scored = entry.scored[number]
        trials[entry.name] = one.trial(scored.scores[one.parts], scored.signed, entry)
    floor = [one.trial(scores, False) for scores in drawn]
    _ask_together(one, [*trials.values(), *floor], judged)
    for metric, options in judged:
        by_method = values[metric.name]
        for name, trial in trials.items():
            by_method[name][number] = metric.run(trial, **options)
        by_method[FLOOR][number] = mean_of([metric.run(trial, **options) for trial in floor])
        if metric.ceiling is not None:
            by_method[CEILING][number] = metric.run(one.searched(metric.ceiling), **options)
    _add_curves(one, trials, floor, judged, curves)


def _ask_together(one: OneInput, trials: list[Trial], judged: Judged) -> None:
    """All variants that any metric will ask of any method, in full batches."""
    asked: dict[str, list[Array]] = {}
    for metric, options in judged:
        if metric.masks is None:
            continue
        masks = [metric.masks(trial, **options) for trial in trials]
        if "soft_erasure" in metric.needs:
            if one.soft is not None:
                one.soft.ask(np.concatenate(masks), (metric.defaults | options)["samples"])
        else:
            by = "surrogate" if metric.on_surrogate and one.surrogate is not None else "model"
            asked.setdefault(by, []).extend(masks)
    for by, masks in asked.items():
        game = one.game if by == "model" else one.surrogate
        if game is not None:
            game.ask(np.concatenate(masks))


def mean_of(values: list[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan


def _add_curves(
    one: OneInput,
    trials: dict[str, Trial],
    floor: list[Trial],
    judged: Judged,
    curves: Curves,
) -> None:
    """The prediction as parts go or come; for the curves whose variants the metrics have asked for anyway."""
    names = {metric.name for metric, options in judged if not options}
    wanted_curves = {"remove": names & {"aopc", "deletion"}, "keep": names & {"insertion"}}
    for kind, reason in wanted_curves.items():
        if not reason:
            continue
        make = CURVES[kind]
        searched = one.searched(kind)
        for value, key in (("probability", kind), ("logit", f"{kind}_logit")):
            by_method = curves.setdefault(key, {})
            for name, trial in (*trials.items(), (CEILING, searched)):
                by_method.setdefault(name, []).append(one.game.values(make(trial.scores_P), value))
            flat = [one.game.values(make(trial.scores_P), value) for trial in floor]
            by_method.setdefault(FLOOR, []).append(np.mean(flat, axis=0))
