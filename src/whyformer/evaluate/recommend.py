"""recommend: search the ways to explain a model, choose by one metric on some inputs, report another on the rest."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from whyformer.borrow import refuse_without_gradients
from whyformer.engines.perturbation.game import VALUES
from whyformer.errors import BadInput, NotOffered, UnknownName, WhyformerError
from whyformer.evaluate.candidates import SPACES, Candidate, Field, cost_class_of, scores_of_each
from whyformer.evaluate.contender import Contender, filled, wanted
from whyformer.evaluate.games import Games, games_of
from whyformer.evaluate.judge import greedy, random_scores
from whyformer.evaluate.metrics.faithfulness import aopc, ranked, top_away
from whyformer.evaluate.trial import Trial
from whyformer.explainer import Explainer, Segments
from whyformer.intervals import spread
from whyformer.parameters import BatchSize, Count, OneOf, Replacement, Seed, checked
from whyformer.registry import CLASSES, get_method
from whyformer.result import Result, dataframe
from whyformer.run import Run
from whyformer.targets import Aims, Scalar
from whyformer.views.compare import recommendation_page
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd


# Recommendation: how to explain this model, chosen on some inputs and tested on others.


ANY = "any cost"
SCOPES = ("dataset", "label", "instance")


@dataclass(frozen=True)
class Choice:
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
    """Which explanation to use, per class of cost, and how it did where it was not chosen."""

    what: ClassVar[str] = "recommendation"

    scope: str
    choices: tuple[Choice, ...]
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

    @property
    def best(self) -> Any:
        """For ``explain(model, x, **recommendation.best)``: a dict; per label a dict of them, per instance a list."""
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
        if not self.reported_on:
            return "Chosen, but not tested: it was asked for without a report."
        outcome = self.within(ANY)
        gain = "{:+.3f} ({:+.3f} to {:+.3f})".format
        random, attention = gain(*outcome.over_random), gain(*outcome.over_attention)
        if math.isnan(outcome.over_random[1]):
            return "One input says nothing about others: give more of them for an interval."
        if not outcome.beats_random:
            return (
                f"Nothing beats random here: the best by RFT gains {random} in AOPC over random scores, and the "
                "interval includes zero. Don't rely on any of these explanations for this model and these inputs."
            )
        if math.isnan(outcome.over_attention[1]):
            return f"The choice beats random scores by {random} in AOPC."
        better = "beats" if outcome.beats_attention else "cannot be told from"
        return f"The choice beats random scores by {random} in AOPC, and {better} last-layer attention, by {attention}."

    @property
    def title(self) -> str:
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


# How choices do on inputs that did not choose them: AOPC, against random scores, last-layer attention and a search.


Array = np.ndarray[Any, Any]

FLOOR, CEILING = "random", "greedy"
LAST, MEAN = "last-layer attention", "mean attention"


def outcomes_of(
    games: Games,
    field: Field,
    chosen: Mapping[tuple[str, str], Choice],
    group_of: Mapping[int, str],
    fallback: Mapping[str, int],
) -> tuple[Outcome, ...]:
    """One outcome per class of cost, then the usual readings, what could not be chosen, floor and ceiling."""
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
    chosen: Mapping[tuple[str, str], Choice],
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


# recommend: search the ways to explain a model, choose by one metric on some inputs, report another on the rest.


LEAVE_ONE_OUT = {"occlusion", "two_ended"}  # wholly, or half
BY_CONSTRUCTION = "leave-one-out is what RFT is made of: it would win by construction. Its AOPC is shown beside."
SPACED = {
    "raw_attention": "attention",
    "attention_x_gradient": "gradient",
    "attention_rollout": "rollout",
    "gradient_rollout": "rollout",
    "generic_attention": "rollout",
}
LEADERS = 10
BUDGET = 1500
BACKWARD = 2  # forwards, about
# What methods do besides passes of the model, in forwards for so many units, about: whatever takes as long.
BESIDES: dict[str, Callable[[float], float]] = {
    "alti": lambda units: units / 4,
    "attention_flow": lambda units: units**2 / 100,
    "decompx": lambda units: units,
    "value_zeroing": lambda units: units / 2,
}


@checked
def recommend(
    model: Any,
    inputs: Any,
    *,
    processor: Any = None,
    scope: Annotated[str, OneOf(*SCOPES)] = "dataset",
    methods: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None = None,
    spaces: Sequence[Annotated[str, OneOf(*SPACES)]] = SPACES,
    budget: Count | None = BUDGET,
    report: bool = True,
    value: Annotated[str, OneOf(*VALUES)] = "logit",
    replace: Replacement = None,
    reference: Any = None,
    target: Aims = None,
    scalar: Scalar = "logit",
    units: Segments = "token",
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
    cache: str | Path | None = None,
) -> Recommendation:
    """How should this model be explained on inputs like these?

    spaces: "attention" is raw attention with every choice of layers (mean, product, each), heads (mean, each) and
    reading (row, column, column mean, column max): (L + 2)(H + 1)·4 candidates, 728 for 12 layers of 12 heads;
    "gradient" the same of attention × gradient; "rollout" every start layer of the rollouts. methods: the others that
    stand too; None is all of them, [] none. budget: about so many forwards per input are spent on methods that nobody
    named; on long inputs the dearest are left out, and ``excluded`` says which. None: no end.
    All are scored by ranked truthfulness (RFT), from N + 1 forwards per input of N parts, on one half of the inputs;
    what wins is reported by AOPC on the other half.
    scope: one choice for the "dataset", one per "label" (the class that is explained), or one per "instance", which
    is then tested on the same inputs by other variants of them. ``report=False`` chooses only. ``value``: RFT of the
    "logit", or of the "probability" as the authors have it. Other options as for ``compare``.

    Misleads when: inputs are few, or unlike those that will be explained; and RFT takes one part away at a time, so
    what it chooses is best at that.
    """
    if methods is not None and not methods and not spaces:
        raise BadInput("there is nothing to choose from: name methods or spaces.")
    contenders = wanted(methods)
    explainer = Explainer(model, processor, attention_at=attention_at)
    explainer.advises = False
    how = {"target": target, "scalar": scalar, "replace": replace, "reference": reference, "batch_size": batch_size}
    how["units"] = units
    with games_of(explainer, inputs, seed=seed, progress=progress, cache=cache, **how) as games:
        known = [i for i in range(games.size) if len(games.parts[i])]
        inputs_left = len({games.of[i] for i in known})
        if scope != "instance" and inputs_left < 4:
            raise BadInput(
                f"{inputs_left} inputs cannot be split into those that choose and those that test: give at least 4 "
                "(50 or more say something), or scope='instance'."
            )
        if value == "probability" and any(run.gives_probabilities for run in games.runs):
            raise NotOffered(
                "value='probability' is made of logits, and this model returns probabilities already: use "
                "value='logit', which takes what it returns, or pass a model without the softmax at its end."
            )
        contenders, dear = (contenders, {}) if methods is not None else _affordable(contenders, games, budget)
        field = _field(games, spaces, contenders)
        field.excluded.update(dear)
        if not field.candidates:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in field.excluded.items())
            raise NotOffered(f"none of the candidates can explain this model: {reasons}")
        return _recommended(games, field, known, scope, report, value)


def _affordable(
    contenders: Sequence[Contender], games: Games, budget: int | None
) -> tuple[list[Contender], dict[str, str]]:
    """Those that the budget pays for, the cheapest first; and why others are left out."""
    units = float(np.mean([len(units) for units in games.units]))
    prices = {}
    for entry in contenders:
        method = get_method(entry.method)
        forwards, backwards = method.cost(round(units), **(method.defaults | entry.options))
        prices[entry.name] = forwards + BACKWARD * backwards + BESIDES.get(entry.method, lambda _: 0.0)(units)
    spent, dear = 0.0, {}
    for name, price in sorted(prices.items(), key=lambda each: each[1]):
        if budget is not None and spent + price > budget:
            dear[name] = (
                f"left out: about {price:.0f} forwards for each input of {units:.0f} units, and of budget={budget} "
                f"{budget - spent:.0f} were left. Name it in methods, or raise the budget."
            )
        else:
            spent += price
    return [entry for entry in contenders if entry.name not in dear], dear


def _field(games: Games, spaces: Sequence[str], contenders: Sequence[Any]) -> Field:
    excluded: dict[str, str] = {}
    candidates: list[Candidate] = []
    scores: list[Array] = [np.zeros((0, len(parts)), np.float32) for parts in games.parts]
    if spaces:
        try:
            if "gradient" in spaces:
                refuse_without_gradients(games.explainer.model, "spaces='gradient'")
            candidates, units = scores_of_each(games.runs, spaces, _alone)
            scores = [games.per_part(number, all_U) for number, all_U in enumerate(units)]
        except WhyformerError as reason:
            excluded["attention aggregations"] = str(reason)
    aside: dict[str, list[Array]] = {}
    if candidates:  # these methods stand with all of their options already
        contenders = [e for e in contenders if SPACED.get(e.method) not in spaces or e.options]
    for entry in games.track(list(contenders), "explaining"):
        done = filled(entry, games, games.scalar, memory=False)
        if done.failure:
            excluded[entry.name] = done.failure
            continue
        entry_scores = [s.scores[parts] for s, parts in zip(done.scored, games.parts, strict=True)]
        if entry.method in LEAVE_ONE_OUT:
            excluded[entry.name] = BY_CONSTRUCTION
            aside[entry.name] = entry_scores
            continue
        cost = cost_class_of(entry.method, entry.options)
        candidates.append(Candidate(entry.method, entry.options, done.scored[0].signed, cost))
        scores = [np.concatenate([s, o[None]]) for s, o in zip(scores, entry_scores, strict=True)]
        without = _without_first_tokens(games, entry_scores)
        if without is not None:  # where a model parks attention there, the method may explain better without it
            options = {**entry.options, "first_token": False}
            candidates.append(Candidate(entry.method, options, done.scored[0].signed, cost))
            scores = [np.concatenate([s, o[None]]) for s, o in zip(scores, without, strict=True)]
    return Field(candidates, scores, excluded, aside)


def _without_first_tokens(games: Games, scores: Sequence[Array]) -> list[Array] | None:
    """The scores of a language model's texts with 0 at the first token; None where that is no part of any."""
    if not games.runs[0].output.causal or games.asked["units"] != "token":
        return None
    first = [bool(len(parts)) and parts[0] == 0 for parts in games.parts]
    if not any(first):
        return None
    zeroed = [np.where(np.arange(len(s)) == 0, 0.0, s).astype(s.dtype) for s in scores]
    return [z if is_part else s for z, s, is_part in zip(zeroed, scores, first, strict=True)]


def _alone(run: Run, row: int) -> Run:
    return Run(
        run.modality,
        run.batch.select([row]),
        run.study,
        target=[run.targets[row]],
        scalar=run.scalar,
        seed=run.seed,
        batch_size=run.batch_size,
    )


def _recommended(games: Games, field: Field, known: list[int], scope: str, report: bool, value: str) -> Recommendation:
    choosing, testing = _halves(games, known) if report and scope != "instance" else (known, known)
    testing = testing if report else []
    truth_MI = np.full((len(field.candidates), games.size), np.nan)
    signed = np.array([c.signed for c in field.candidates])
    for i in games.track(choosing, "choosing"):
        # NOTE[DIFF] the authors take the probability, which hardly moves where a model is sure, so that what speaks
        # against the class looks like nothing and methods that name it lose; value="probability" is theirs.
        drops = games.game(i).drops(value)
        for kind in (True, False):
            if (signed == kind).any():
                truth_MI[signed == kind, i] = ranked(field.scores[i][signed == kind], drops, kind)
    groups = _groups(games, choosing, scope)
    choices = tuple(
        _choice(field, truth_MI[:, members].mean(1), group, cost_class, len(members))
        for group, members in groups.items()
        for cost_class in (ANY, *CLASSES)
        if any(cost_class in (ANY, c.cost_class) for c in field.candidates)
    )
    mean_M = truth_MI[:, choosing].mean(1)
    leaders = np.argsort(-mean_M, kind="stable")[:LEADERS]
    grid, reading = _grid(field.candidates, mean_M)
    group_of = {i: _group(games, i, scope) for i in testing}
    warnings = _warnings(groups, group_of, scope, len(choosing))
    chosen = {(c.group, c.cost_class): c for c in choices}
    outcomes = outcomes_of(games, field, chosen, group_of, _best_of_all(field, mean_M)) if testing else ()
    warnings = (*games.doubts(), *warnings)  # the variants have been run by now
    return Recommendation(
        scope=scope,
        choices=choices,
        outcomes=outcomes,
        leaders=tuple((field.candidates[m].name, float(mean_M[m])) for m in leaders),
        grid=grid,
        grid_reading=reading,
        candidates=len(field.candidates),
        excluded=field.excluded,
        replacement=str(games.replacement),
        chosen_on=len(choosing),
        reported_on=len(testing),
        variants=games.forwards,
        seed=games.seed,
        warnings=warnings,
        model=type(games.explainer.model).__name__,
        options={"value": value},
    )


def _halves(games: Games, known: list[int]) -> tuple[list[int], list[int]]:
    """Those that choose and those that test. All detections of an image are on one side."""
    inputs = list(dict.fromkeys(games.of[i] for i in known))
    order = np.random.default_rng(games.seed).permutation(inputs).tolist()
    first = set(order[: (len(order) + 1) // 2])
    return [i for i in known if games.of[i] in first], [i for i in known if games.of[i] not in first]


def _group(games: Games, number: int, scope: str) -> str:
    if scope == "dataset":
        return "all inputs"
    return games.label(number) if scope == "label" else f"input {number}"


def _groups(games: Games, choosing: list[int], scope: str) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for i in choosing:
        groups.setdefault(_group(games, i, scope), []).append(i)
    return groups


def _best_of_all(field: Field, mean_M: Array) -> dict[str, int]:
    """Per class of cost the best over all inputs, for those whose own group had none to choose by."""
    best = {}
    for cost_class in (ANY, *CLASSES):
        stands = [m for m, c in enumerate(field.candidates) if cost_class in (ANY, c.cost_class)]
        if stands:
            best[cost_class] = stands[int(np.argmax(mean_M[stands]))]
    return best


def _choice(field: Field, mean_M: Array, group: str, cost_class: str, inputs: int) -> Choice:
    best = _best_of_all(field, mean_M)[cost_class]
    chosen = field.candidates[best]
    return Choice(group, cost_class, chosen.name, chosen.method, chosen.options, float(mean_M[best]), inputs)


def _grid(candidates: list[Candidate], mean_M: Array) -> tuple[tuple[tuple[float, ...], ...], str]:
    """RFT of raw attention, layers × heads, in the reading that its best candidate has."""
    raw = [(c.options, float(v)) for c, v in zip(candidates, mean_M, strict=True) if c.method == "raw_attention"]
    if not raw or "read" not in raw[0][0]:
        return (), ""
    reading = max(raw, key=lambda pair: pair[1])[0]["read"]
    rows: dict[Any, list[float]] = {}
    for options, value in raw:
        if options["read"] == reading:
            rows.setdefault(options["layers"], []).append(value)
    return tuple(map(tuple, rows.values())), reading


def _warnings(groups: dict[str, list[int]], group_of: dict[int, str], scope: str, choosing: int) -> tuple[str, ...]:
    warnings = []
    if scope == "instance" and group_of:
        warnings.append(
            "chosen and tested on the same inputs, by different variants of them: RFT takes single parts away, AOPC "
            "many. For a test on other inputs use scope='dataset' or 'label'."
        )
    elif choosing < 20:
        warnings.append(f"{choosing} inputs chose: with so few, many candidates are equally good by chance.")
    without = sorted(set(group_of.values()) - set(groups))
    if without:
        warnings.append(f"no input chose for {', '.join(without)}: the choice of all inputs was tested there.")
    return tuple(warnings)
