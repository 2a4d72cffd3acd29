"""recommend: search the ways to explain a model, choose by one metric on some inputs, report another on the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace as replaced
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from whyformer.engines.perturbation.game import VALUES
from whyformer.errors import BadInput, NotOffered
from whyformer.evaluate import candidate_pool, recommendation
from whyformer.evaluate.candidate import CEILING, FLOOR, Candidate, Trial, greedy, other_games, random_scores, wanted
from whyformer.evaluate.comparison import chance_of_lead
from whyformer.evaluate.games import Games, games_of
from whyformer.evaluate.metrics.faithfulness import aopc, top_away
from whyformer.evidence import spread
from whyformer.explainer import CoreExplainer, Segments
from whyformer.parameters import BatchSize, Count, Hold, NotEmpty, OneOf, Replacement, Seed, checked
from whyformer.registry import CLASSES
from whyformer.shapes import Array
from whyformer.targets import Aims, Scalar

# How choices do on inputs that did not choose them: AOPC, against random scores, last-layer attention and a search.

LAST, MEAN = "last-layer attention", "mean attention"


def outcomes_of(
    games: Games,
    pool: candidate_pool.CandidatePool,
    chosen: Mapping[tuple[str, str], recommendation.ChosenMethod],
    group_of: Mapping[int, str],
    fallback: Mapping[str, int],  # per class of cost, the candidate for groups without a choice
    search: bool = True,
) -> tuple[recommendation.Outcome, ...]:
    """Outcomes per class of cost, of the usual readings, of what could not be chosen, of floor and (search) ceiling."""
    number_of = {c.name: m for m, c in enumerate(pool.candidates)}
    usual: dict[str, int] = {}  # what people look at by habit, where it is among the candidates
    last = max((c.options["layers"] for c in pool.candidates if isinstance(c.options.get("layers"), int)), default=None)
    for m, candidate in enumerate(pool.candidates):
        layers, heads, read = map(candidate.options.get, ("layers", "heads", "read"), (last, "mean", "row"))
        if candidate.method == "raw_attention" and (heads, read) == ("mean", "row") and layers in {last, "mean"}:
            usual[MEAN if layers == "mean" else LAST] = m
    values: dict[str, list[float]] = {}
    for i in games.track(list(group_of), "testing"):
        game, scores_MP = games.game(i), pool.scores[i]
        compared: dict[str, Array] = {}
        for cost_class, other in fallback.items():
            choice = chosen.get((group_of[i], cost_class))
            compared[cost_class] = scores_MP[other if choice is None else number_of[choice.name]]
        compared |= {name: scores_MP[usual[name]] for name in (LAST, MEAN) if name in usual}
        compared |= {name: scores[i] for name, scores in pool.aside.items()}
        trials = {name: Trial(scores, game) for name, scores in compared.items()}
        floor = [Trial(scores, game) for scores in random_scores(game.parts, i, games.seed)]
        game.ask(np.concatenate([top_away(t) for t in (*trials.values(), *floor)]))
        for name, trial in trials.items():
            values.setdefault(name, []).append(aopc(trial))
        values.setdefault(FLOOR, []).append(float(np.mean([aopc(trial) for trial in floor])))
        if search:
            values.setdefault(CEILING, []).append(aopc(Trial(greedy(game, "remove"), game)))
    names, of = list(values), [games.of[i] for i in group_of]
    table_IX = np.array(list(values.values())).T

    def limits(values_IX: Array) -> list[tuple[float, float, float]]:
        mean_X, low_X, high_X = spread(values_IX, games.seed, of)
        return list(zip(mean_X.tolist(), low_X.tolist(), high_X.tolist(), strict=True))

    means, over_random = limits(table_IX), limits(table_IX - table_IX[:, [names.index(FLOOR)]])
    over_last = [(math.nan,) * 3] * len(names)
    if LAST in names:
        over_last = limits(table_IX - table_IX[:, [names.index(LAST)]])
    outcomes = []
    for x, name in enumerate(names):
        picked = sorted({c.name for (_, cost_class), c in chosen.items() if cost_class == name})
        shown = name if name not in fallback else picked[0] if len(picked) == 1 else f"{len(picked)} different ones"
        outcomes.append(recommendation.Outcome(name, shown, *means[x], over_random[x], over_last[x]))
    return tuple(outcomes)


def halves(games: Games, known: list[int]) -> tuple[list[int], list[int]]:
    """The inputs that choose and those that test. All detections of an image are on one side."""
    inputs = list(dict.fromkeys(games.of[i] for i in known))
    order = np.random.default_rng(games.seed).permutation(inputs).tolist()
    first = set(order[: (len(order) + 1) // 2])
    return [i for i in known if games.of[i] in first], [i for i in known if games.of[i] not in first]


def within_effort(
    candidates: Sequence[Candidate], units: float, effort: int | None
) -> tuple[list[Candidate], dict[str, str]]:
    """The cheapest candidates, whose prices add up to no more than the effort; and why others are left out."""
    prices = {
        c.name: candidate_pool.price_of(c.method, c.options, round(units), candidate_pool.Rates()) for c in candidates
    }
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


# recommend within a budget: the best method of those that fit, chosen by AOPC on one half, tested on the other.

EVERYONE = "all inputs"
FEW = 20  # inputs: with fewer, a choice is warned about


def chosen_within(
    games: Games,
    candidates: Sequence[Candidate],
    spaces: Sequence[str],
    known: list[int],
    budget: candidate_pool.Budget,
    value: str,
    report: bool,
    guided: bool,
) -> recommendation.Recommendation:
    """The whole recommendation. guided: shap with a guide is a candidate, with as many evaluations as fit."""
    methods = candidate_pool.AffordableMethods(games, candidates, spaces, budget, value, guided)
    pool, over = methods.pool, methods.over
    choosing, testing = halves(games, known) if report else (known, [])
    mean_M = methods.truth_M(choosing)
    measured = {m: methods.measured(m) for m in methods.finalists(mean_M)}
    if budget.seconds:  # the cheapest of those that took longer than estimated first
        slow = sorted((done.seconds, m) for m, done in measured.items() if not done.seconds <= budget.most)
        over |= {pool.candidates[m].name: f"{seconds:.3g} s as measured" for seconds, m in slow}
        measured = {m: done for m, done in measured.items() if done.seconds <= budget.most}
    if not measured:
        raise candidate_pool.nothing_fits(budget, over)
    chosen_IM = methods.judged(list(measured), choosing, "choosing")
    tested_IM = methods.judged(list(measured), testing, "testing")
    column = int(np.argmax(chosen_IM.mean(0)))
    best = list(measured)[column]
    of = [games.of[i] for i in testing]
    means = ahead = np.full((3, len(measured)), math.nan)
    if testing:
        means = np.stack(spread(tested_IM, games.seed, of))
        ahead = np.stack(spread(tested_IM - tested_IM[:, [column]], games.seed, of))
    rows = []
    for x, (m, done) in enumerate(measured.items()):
        candidate = pool.candidates[m]
        options = games.options_of(candidate.method, candidate.options)
        price = candidate_pool.price_of(candidate.method, candidate.options, methods.units, methods.rates)
        mean, low, high = means[:, x].tolist()
        costs = (price, done.forwards, done.backwards, done.seconds)
        judged: Any = (float(chosen_IM[:, x].mean()), mean, low, high, tuple(ahead[:, x].tolist()))
        rows.append(recommendation.CandidateOutcome(candidate.name, candidate.method, options, *costs, *judged))
    # The choice first, the others by how they did where it was chosen.
    rows = [rows[column], *sorted(rows[:column] + rows[column + 1 :], key=lambda row: -row.chosen_by)]
    choice = _choice(games, pool, best, EVERYONE, recommendation.ANY, float(mean_M[best]), len(choosing))
    chosen, group_of = {(EVERYONE, recommendation.ANY): choice}, dict.fromkeys(testing, EVERYONE)
    # Without a search for the ceiling, which would cost more than all the rest.
    outcomes = outcomes_of(games, pool, chosen, group_of, {recommendation.ANY: best}, search=False) if testing else ()
    few = (f"{len(choosing)} inputs chose: with so few, several methods are equally good by chance.",)
    rates, chance = methods.rates, chance_of_lead(tested_IM, column, games.seed, of)
    return _recommendation(
        games,
        pool,
        mean_M,
        choices=(choice,),
        outcomes=outcomes,
        chosen_on=len(choosing),
        reported_on=len(testing),
        warnings=(*games.doubts(), *(few if len(choosing) < FEW else ())),
        options={"value": value, "budget": str(budget)},
        budgeted=recommendation.Budgeted(str(budget), rates.backward, methods.units, tuple(rows), over, chance),
    )


def _recommendation(
    games: Games,
    pool: candidate_pool.CandidatePool,
    mean_M: Array,
    scope: str = "dataset",
    grid: Any = ((), ""),
    **facts: Any,
) -> recommendation.Recommendation:
    """The result, with the fields that come from games and candidates."""
    first = np.argsort(-mean_M, kind="stable")[:LEADERS]
    return recommendation.Recommendation(
        scope=scope,
        leaders=tuple((pool.candidates[m].name, float(mean_M[m])) for m in first),
        grid=grid[0],
        grid_reading=grid[1],
        candidates=len(pool.candidates),
        excluded=pool.excluded,
        replacement=str(games.replacement),
        variants=games.forwards,
        seed=games.seed,
        model=type(games.explainer.model).__name__,
        held=games.held,
        **facts,
    )


def _choice(
    games: Games,
    pool: candidate_pool.CandidatePool,
    number: int,
    group: str,
    cost_class: str,
    truth: float,
    inputs: int,
) -> recommendation.ChosenMethod:
    chosen = pool.candidates[number]
    options = games.options_of(chosen.method, chosen.options)
    return recommendation.ChosenMethod(group, cost_class, chosen.name, chosen.method, options, truth, inputs)


LEADERS = 10
EFFORT = 1500


@checked
def recommend(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    scope: Annotated[str, OneOf(*recommendation.SCOPES)] = "dataset",
    methods: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None = None,
    spaces: Sequence[Annotated[str, OneOf(*candidate_pool.SPACES)]] = candidate_pool.SPACES,
    budget: Count | Annotated[str, NotEmpty()] | None = None,
    effort: Count | None = EFFORT,
    report: bool = True,
    value: Annotated[str, OneOf(*VALUES)] = "logit",
    replace: Replacement = None,
    reference: Any = None,
    target: Aims = None,
    scalar: Scalar = "logit",
    units: Segments = "token",
    hold: Hold = None,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
    cache: str | Path | None = None,
) -> recommendation.Recommendation:
    """How should this model be explained on inputs like these?

    Candidates are scored by ranked truthfulness (RFT) on one half of the inputs; the winner is reported by AOPC on the
    other half. spaces: "attention" is raw attention with every choice of layers (mean, product, each), heads (mean,
    each) and reading (row, column, column mean, column max), (L + 2)(H + 1)·4 candidates; "gradient" the same of
    attention × gradient; "rollout" every start layer of the rollouts. methods: the other candidates; None is all
    methods, [] none. effort: about so many forwards per input are spent on methods that were not named (None: no
    limit); the most expensive are left out and listed in ``excluded``.
    budget: the best method, by AOPC, that costs no more than so many forwards (20; a backward counts as two) or seconds
    ("2s", "500ms") per explanation of the longest input; methods that can do with fewer passes (integrated_gradients,
    smooth_grad, shap) take as many as fit. ``budgeted`` has what each cost, and how far the choice is behind the best.
    scope: one choice for the "dataset", one per "label" (the class that is explained), or one per "instance", which
    is then tested on the same inputs by other variants of them. report: False chooses only. value: RFT of the
    "logit", or of the "probability" as the authors have it. Other options as for ``compare``.

    Misleads when: inputs are few, or unlike those that will be explained; and RFT takes one part away at a time, so
    what it chooses is best at that.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> texts = ["I like the movie", "This is so boring", "She hates the book", "A great film"]
    >>> wf.recommend(model, texts, tokenizer, spaces=[], methods=["grad_sam", "saliency"]).show()
    """
    if methods is not None and not methods and not spaces:
        raise BadInput("there is nothing to choose from: name methods or spaces.")
    limit = None if budget is None else candidate_pool.budget_of(budget)
    if limit is not None and scope != "dataset":
        raise BadInput(f"budget={budget!r} chooses one method for all inputs: leave scope={scope!r} out.")
    explainer = CoreExplainer(model, processor, attention_at=attention_at)
    explainer.advises = False
    candidates = wanted(methods, explainer.source(inputs).modality.kind)
    settings: dict[str, Any] = {"target": target, "scalar": scalar, "replace": replace, "reference": reference}
    settings |= {"units": units, "hold": hold, "batch_size": batch_size}
    with games_of(explainer, inputs, seed=seed, progress=progress, cache=cache, **settings) as games:
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
                "value='logit', which takes what it returns, or pass a model without the softmax or sigmoid at its end."
            )
        otherwise = other_games(games, candidates)
        if limit is not None:
            guided = methods is None or any(candidate.method == "shap" for candidate in candidates)
            best = chosen_within(games, candidates, spaces, known, limit, value, report, guided)
            return replaced(best, warnings=(*otherwise, *best.warnings))
        mean_units = float(np.mean([len(units) for units in games.units]))
        candidates, dear = (candidates, {}) if methods is not None else within_effort(candidates, mean_units, effort)
        pool = candidate_pool.pool_of(games, spaces, candidates)
        pool.excluded.update(dear)
        if not pool.candidates:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in pool.excluded.items())
            raise NotOffered(f"none of the candidates can explain this model: {reasons}")
        best = _recommended(games, pool, known, scope, report, value)
        return replaced(best, warnings=(*otherwise, *best.warnings))


def _recommended(
    games: Games, pool: candidate_pool.CandidatePool, known: list[int], scope: str, report: bool, value: str
) -> recommendation.Recommendation:
    """Choose by ranked truthfulness, per group of inputs and class of cost; test by AOPC."""
    choosing, testing = halves(games, known) if report and scope != "instance" else (known, known)
    testing = testing if report else []
    truth_MI = candidate_pool.truthfulness_of(games, pool, choosing, value)

    def group(i: int) -> str:
        return EVERYONE if scope == "dataset" else games.label(i) if scope == "label" else f"input {i}"

    groups: dict[str, list[int]] = {}
    for i in choosing:
        groups.setdefault(group(i), []).append(i)
    chosen = {}
    for name, members in groups.items():
        mean_M = truth_MI[:, members].mean(1)
        for cost_class, m in _best_of_all(pool, mean_M).items():
            chosen[name, cost_class] = _choice(games, pool, m, name, cost_class, float(mean_M[m]), len(members))
    mean_M = truth_MI[:, choosing].mean(1)
    group_of = {i: group(i) for i in testing}
    outcomes = outcomes_of(games, pool, chosen, group_of, _best_of_all(pool, mean_M)) if testing else ()
    return _recommendation(
        games,
        pool,
        mean_M,
        scope,
        _grid(pool.candidates, mean_M),
        choices=tuple(chosen.values()),
        outcomes=outcomes,
        chosen_on=len(choosing),
        reported_on=len(testing),
        warnings=(*games.doubts(), *_warnings(groups, group_of, scope, len(choosing))),
        options={"value": value},
    )


def _best_of_all(pool: candidate_pool.CandidatePool, mean_M: Array) -> dict[str, int]:
    """The best candidate of each class of cost that has any."""
    best = {}
    for cost_class in (recommendation.ANY, *CLASSES):
        members = [m for m, c in enumerate(pool.candidates) if cost_class in (recommendation.ANY, c.cost_class)]
        if members:
            best[cost_class] = members[int(np.argmax(mean_M[members]))]
    return best


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
    elif choosing < FEW:
        warnings.append(f"{choosing} inputs chose: with so few, many candidates are equally good by chance.")
    without = sorted(set(group_of.values()) - set(groups))
    if without:
        warnings.append(f"no input chose for {', '.join(without)}: the choice of all inputs was tested there.")
    return tuple(warnings)
