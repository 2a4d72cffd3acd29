"""recommend: choose the method that compare ranks first on some inputs, and test it on the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace as replaced
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from whyformer.choices import Budget, Rates, budget_of, price_of
from whyformer.engines.perturbation.game import VALUES
from whyformer.errors import BadInput, NotOffered, listed
from whyformer.evaluate import candidate_pool, recommendation
from whyformer.evaluate.candidate import (
    CEILING,
    FLOOR,
    Annotations,
    Candidate,
    OneInput,
    Trial,
    greedy,
    judge,
    mean_ranks,
    other_games,
    random_scores,
    wanted,
)
from whyformer.evaluate.compare import chosen_metrics
from whyformer.evaluate.comparison import chance_of_lead
from whyformer.evaluate.games import Games, games_of
from whyformer.evaluate.metrics.faithfulness import aopc, top_away
from whyformer.evidence import ENOUGH, spread
from whyformer.explainer import CoreExplainer
from whyformer.options import Evaluation, EvaluationOptions, takes
from whyformer.parameters import Count, Named, NotEmpty, OneOf, checked
from whyformer.registry import CLASSES
from whyformer.shapes import Array

if TYPE_CHECKING:
    from typing_extensions import Unpack

LAST, MEAN = "last-layer attention", "mean attention"


def outcomes_of(
    games: Games,
    pool: candidate_pool.CandidatePool,
    inputs: Sequence[int],
    picked: Mapping[str, Mapping[int, int]],  # class of cost → input → number of the candidate
    search: bool = True,
) -> tuple[recommendation.Outcome, ...]:
    """Return the AOPC of the choice per class of cost, the usual readings, random scores and (search) greedy ones."""
    usual: dict[str, int] = {}  # what people look at by habit, where it is among the candidates
    last = max((c.options["layers"] for c in pool.candidates if isinstance(c.options.get("layers"), int)), default=None)
    for m, candidate in enumerate(pool.candidates):
        layers, heads, read = map(candidate.options.get, ("layers", "heads", "read"), (last, "mean", "row"))
        if candidate.method == "raw_attention" and (heads, read) == ("mean", "row") and layers in {last, "mean"}:
            usual[MEAN if layers == "mean" else LAST] = m
    values: dict[str, list[float]] = {}
    for i in games.track(inputs, "testing"):
        game, scores_MP = games.game(i), pool.scores[i]
        compared = {cost_class: scores_MP[by_input[i]] for cost_class, by_input in picked.items()}
        compared |= {name: scores_MP[usual[name]] for name in (LAST, MEAN) if name in usual}
        trials = {name: Trial(scores, game) for name, scores in compared.items()}
        floor = [Trial(scores, game) for scores in random_scores(game.parts, i, games.seed)]
        game.ask(np.concatenate([top_away(t) for t in (*trials.values(), *floor)]))
        for name, trial in trials.items():
            values.setdefault(name, []).append(aopc(trial))
        values.setdefault(FLOOR, []).append(float(np.mean([aopc(trial) for trial in floor])))
        if search:
            values.setdefault(CEILING, []).append(aopc(Trial(greedy(game, "remove"), game)))
    names, of = list(values), [games.of[i] for i in inputs]
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
        used = sorted({pool.candidates[m].name for m in picked.get(name, {}).values()})
        shown = name if not used else used[0] if len(used) == 1 else f"{len(used)} different ones"
        outcomes.append(recommendation.Outcome(name, shown, *means[x], over_random[x], over_last[x]))
    return tuple(outcomes)


def halves(games: Games, known: list[int]) -> tuple[list[int], list[int]]:
    """Split the inputs at random. All detections of an image are on one side."""
    inputs = list(dict.fromkeys(games.of[i] for i in known))
    order = np.random.default_rng(games.seed).permutation(inputs).tolist()
    first = set(order[: (len(order) + 1) // 2])
    return [i for i in known if games.of[i] in first], [i for i in known if games.of[i] not in first]


def within_effort(
    candidates: Sequence[Candidate], units: float, effort: int | None
) -> tuple[list[Candidate], dict[str, str]]:
    """Return the cheapest candidates whose prices add up to ``effort`` at most, and why the others are left out."""
    prices = {c.name: price_of(c.method, c.options, round(units), Rates()) for c in candidates}
    spent, dear = 0.0, {}
    for name, price in sorted(prices.items(), key=lambda each: each[1]):
        if effort is not None and spent + price > effort:
            dear[name] = (
                f"left out: about {price:.0f} forwards per input of {units:.0f} units, with {effort - spent:.0f} of "
                f"effort={effort} left. Name it in method=, or raise effort=."
            )
        else:
            spent += price
    return [candidate for candidate in candidates if candidate.name not in dear], dear


EVERYONE = "all inputs"
FEW = 20  # inputs: with fewer, a choice is warned about


def chosen_within(
    games: Games,
    candidates: Sequence[Candidate],
    spaces: Sequence[str],
    known: list[int],
    budget: Budget,
    value: str,
    report: bool,
    guided: bool,
) -> recommendation.Recommendation:
    """Return the recommendation within a budget. guided: shap with a guide is a candidate, too."""
    methods = candidate_pool.AffordableMethods(games, candidates, spaces, budget, value, guided)
    pool, over = methods.pool, methods.over
    choosing, testing = halves(games, known) if report else (known, [])
    mean_M = methods.truth_M(choosing)
    measured = {m: methods.measured(m) for m in candidate_pool.finalists(pool, mean_M)}
    if budget.seconds:  # the cheapest of those that took longer than estimated first
        slow = sorted((done.seconds, m) for m, done in measured.items() if not done.seconds <= budget.most)
        over |= {pool.candidates[m].name: f"{seconds:.3g} s as measured" for seconds, m in slow}
        measured = {m: done for m, done in measured.items() if done.seconds <= budget.most}
    if not measured:
        raise candidate_pool.nothing_fits(budget, over)
    chosen_IM = methods.judged(list(measured), choosing, "choosing")
    tested_IM = methods.judged(list(measured), testing, "testing")
    column = int(np.argmax(chosen_IM.mean(0)))
    of = [games.of[i] for i in testing]
    means = ahead = np.full((3, len(measured)), math.nan)
    if testing:
        means = np.stack(spread(tested_IM, games.seed, of))
        ahead = np.stack(spread(tested_IM - tested_IM[:, [column]], games.seed, of))
    rows = []
    for x, (m, done) in enumerate(measured.items()):
        candidate = pool.candidates[m]
        options = games.options_of(candidate.method, candidate.options)
        price = price_of(candidate.method, candidate.options, methods.units, methods.rates)
        costs = (price, done.forwards, done.backwards, done.seconds)
        judged: Any = (float(chosen_IM[:, x].mean()), *means[:, x].tolist(), tuple(ahead[:, x].tolist()))
        rows.append(recommendation.CandidateOutcome(candidate.name, candidate.method, options, *costs, *judged))
    # The choice first, the others by how they did where it was chosen.
    rows = [rows[column], *sorted(rows[:column] + rows[column + 1 :], key=lambda row: -row.chosen_by)]
    aopc_M = np.full(len(pool.candidates), -np.inf)
    aopc_M[list(measured)] = chosen_IM.mean(0)
    first = {name: m for name, m in _best_of_all(pool, aopc_M).items() if m in measured}
    choices = tuple(
        _choice(games, pool, m, EVERYONE, name, float(mean_M[m]), len(choosing)) for name, m in first.items()
    )
    picked = {name: dict.fromkeys(testing, m) for name, m in first.items()}
    # Without a search for the ceiling, which would cost more than all the rest.
    outcomes = outcomes_of(games, pool, testing, picked, search=False) if testing else ()
    few = (f"Only {len(choosing)} inputs were used to choose: several methods are probably tied.",)
    rates, chance = methods.rates, chance_of_lead(tested_IM, column, games.seed, of)
    return _recommendation(
        games,
        pool,
        mean_M,
        choices=choices,
        outcomes=outcomes,
        chosen_on=len(choosing),
        reported_on=len(testing),
        warnings=(*games.warnings(), *(few if len(choosing) < FEW else ())),
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
    """Return the result, with the fields that games and candidates determine."""
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
@takes(EvaluationOptions, Evaluation)
def recommend(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    attention_at: Mapping[str, str] | None = None,
    scope: Annotated[str, OneOf(*recommendation.SCOPES)] = "dataset",
    method: str | Named | Mapping[str, Any] | Sequence[str | Named | Mapping[str, Any]] | None = None,
    spaces: Sequence[Annotated[str, OneOf(*candidate_pool.SPACES)]] = candidate_pool.SPACES,
    budget: Count | Annotated[str, NotEmpty()] | None = None,
    effort: Count | None = EFFORT,
    report: bool = True,
    value: Annotated[str, OneOf(*VALUES)] = "logit",
    **options: Unpack[EvaluationOptions],
) -> recommendation.Recommendation:
    """Choose the best explanation method for this model on these inputs, and test it on inputs it was not chosen on.

    The choice is the method that ``compare`` ranks first. Of each space, the best three by ranked truthfulness (RFT) in
    each class of cost are compared. The test is AOPC: each half of the inputs is explained by the choice of the other
    half. spaces: "attention" is raw attention with every choice of layers (mean, product, each), heads (mean, each) and
    reading (row, column, column mean, column max), (L + 2)(H + 1)·4 candidates; "gradient" the same for attention ×
    gradient; "rollout" every start layer of the rollouts. method: the other candidates; None is all methods, [] none.
    effort: the number of forwards per input for methods that were not named (None: no limit); the most expensive are
    left out and listed in ``excluded``. budget: choose the best method, by AOPC, within this cost per explanation of
    the longest input, in forwards (20; a backward counts as one) or seconds ("2s", "500ms"). Methods with a variable
    number of passes (integrated_gradients, smooth_grad, shap) use as many as fit. ``budgeted`` lists the cost of each
    candidate, and the gap between the choice and the best. scope: one choice for the "dataset", one per "label" (the
    explained class), or one per "instance", which is chosen by RFT and then tested on the same inputs by other variants
    of them. report: False skips the test. value: RFT of the "logit", or of the "probability" as in the paper.

    Misleads when: there are few inputs, or they are unlike those that will be explained.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> texts = ["I like the movie", "This is so boring", "She hates the book", "A great film"]
    >>> wf.recommend(model, texts, tokenizer, spaces=[], method=["grad_sam", "saliency"]).show()
    """
    if method is not None and not method and not spaces:
        raise BadInput("method and spaces are both empty: name at least one method or space.")
    limit = None if budget is None else budget_of(budget)
    if limit is not None and scope != "dataset":
        raise BadInput(f"budget={budget!r} chooses one method for all inputs: omit scope={scope!r}.")
    explainer = CoreExplainer(model, processor, attention_at=attention_at)
    explainer.advises = False
    candidates = wanted(method, explainer.source(inputs).modality.kind)
    with games_of(explainer, inputs, **vars(Evaluation(**options))) as games:
        known = [i for i in range(games.size) if len(games.parts[i])]
        inputs_left = len({games.of[i] for i in known})
        if scope != "instance" and inputs_left < 4:
            raise BadInput(
                f"recommend needs at least 4 inputs (got {inputs_left}): half of them choose, half test. Give "
                f"{ENOUGH} or more for a reliable choice, or use scope='instance'."
            )
        if value == "probability" and any(run.gives_probabilities for run in games.runs):
            raise NotOffered(
                "value='probability' needs logits, and this model returns probabilities already: use value='logit', "
                "which uses the model's output as it is, or pass a model without the final softmax or sigmoid."
            )
        otherwise = other_games(games, candidates)
        if limit is not None:
            guided = method is None or any(candidate.method == "shap" for candidate in candidates)
            best = chosen_within(games, candidates, spaces, known, limit, value, report, guided)
            return replaced(best, warnings=(*otherwise, *best.warnings))
        mean_units = float(np.mean([len(units) for units in games.units]))
        candidates, dear = (candidates, {}) if method is not None else within_effort(candidates, mean_units, effort)
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
    """Choose per group of inputs and class of cost as compare ranks; test each half by the choice of the other."""
    truth_MI = candidate_pool.truthfulness_of(games, pool, known, value)
    # A single input would be chosen and tested by the same variants of it, so there the choice is by RFT.
    goodness_MI = truth_MI if scope == "instance" else _goodness(games, pool, known, truth_MI)

    def group(i: int) -> str:
        return EVERYONE if scope == "dataset" else games.label(i) if scope == "label" else f"input {i}"

    def best_by(members: Sequence[int]) -> dict[str, int]:
        return _best_of_all(pool, goodness_MI[:, members].mean(1))

    groups: dict[str, list[int]] = {}
    for i in known:
        groups.setdefault(group(i), []).append(i)
    chosen = []
    for name, members in groups.items():
        for cost_class, m in best_by(members).items():
            truth = float(truth_MI[m, members].mean())
            chosen.append(_choice(games, pool, m, name, cost_class, truth, len(members)))
    picked: dict[str, dict[int, int]] = {}
    missing = set()
    one, other = halves(games, known) if scope != "instance" else (known, [])
    for testing, choosing in ((one, other), (other, one)):
        for i in testing if report else ():
            alike = [j for j in choosing if group(j) == group(i)] if scope != "instance" else [i]
            missing |= set() if alike else {group(i)}
            for cost_class, m in best_by(alike or choosing).items():
                picked.setdefault(cost_class, {})[i] = m
    mean_M = truth_MI[:, known].mean(1)
    return _recommendation(
        games,
        pool,
        mean_M,
        scope,
        _grid(pool.candidates, mean_M),
        choices=tuple(chosen),
        outcomes=outcomes_of(games, pool, known, picked) if report else (),
        chosen_on=len(known),
        reported_on=len(known) if report else 0,
        warnings=(*games.warnings(), *_warnings(missing, scope, report)),
        options={"value": value},
    )


def _goodness(games: Games, pool: candidate_pool.CandidatePool, known: Sequence[int], truth_MI: Array) -> Array:
    """(M, I) minus the mean rank over the metrics of compare; below all others for readings that RFT puts behind."""
    finalists = candidate_pool.finalists(pool, truth_MI[:, known].mean(1))
    metrics = chosen_metrics(None, False, False)
    names = [pool.candidates[m].name for m in finalists]
    values = {m.name: {name: np.full(games.size, np.nan) for name in (*names, FLOOR, CEILING)} for m, _ in metrics}
    for i in games.track(known, "choosing"):
        one = OneInput(games, i, Annotations(), games.scalar)
        trials = {
            n: one.trial(pool.scores[i][m], pool.candidates[m].signed) for n, m in zip(names, finalists, strict=True)
        }
        judge(one, trials, metrics, values)
    goodness_MI = np.full(truth_MI.shape, -np.inf)
    goodness_MI[finalists] = -mean_ranks(metrics, values, names).T
    return goodness_MI


def _best_of_all(pool: candidate_pool.CandidatePool, mean_M: Array) -> dict[str, int]:
    """Return the number of the best candidate of each class of cost."""
    best = {}
    for cost_class in (recommendation.ANY, *CLASSES):
        members = [m for m, c in enumerate(pool.candidates) if cost_class in (recommendation.ANY, c.cost_class)]
        if members:
            best[cost_class] = members[int(np.argmax(mean_M[members]))]
    return best


def _grid(candidates: list[Candidate], mean_M: Array) -> tuple[tuple[tuple[float, ...], ...], str]:
    """Return the RFT of raw attention, layers × heads, in the reading of its best candidate; and that reading."""
    raw = [(c.options, float(v)) for c, v in zip(candidates, mean_M, strict=True) if c.method == "raw_attention"]
    if not raw or "read" not in raw[0][0]:
        return (), ""
    reading = max(raw, key=lambda pair: pair[1])[0]["read"]
    rows: dict[Any, list[float]] = {}
    for options, value in raw:
        if options["read"] == reading:
            rows.setdefault(options["layers"], []).append(value)
    return tuple(map(tuple, rows.values())), reading


def _warnings(missing: set[str], scope: str, report: bool) -> list[str]:
    warnings = []
    if scope == "instance" and report:
        warnings.append(
            "chosen and tested on the same inputs, by different variants of them: RFT masks single features, AOPC "
            "many. For a test on other inputs use scope='dataset' or 'label'."
        )
    if missing:
        warnings.append(
            f"{listed(sorted(missing), 'and')}: in one half of the inputs only, so it was tested with the choice for "
            "all labels."
        )
    return warnings
