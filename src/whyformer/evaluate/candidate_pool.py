"""All candidates of a recommendation, each a method with options: readings of attention (one record), and others."""

from __future__ import annotations

import itertools
import math
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.choices import BACKWARD, OF_SHAP, Budget, Rates, price_of
from whyformer.engines.attention.maps import row_normalized
from whyformer.errors import AmbiguousLayout, BadInput, NotOffered, WhyformerError
from whyformer.evaluate.candidate import Candidate, Trial, evaluated, explains_one, one_input
from whyformer.evaluate.games import Games
from whyformer.evaluate.metrics.faithfulness import aopc, ranked, top_away
from whyformer.loan.backwards import refuse_without_gradients
from whyformer.registry import CLASSES, get_method
from whyformer.results.types import Site
from whyformer.run import Run
from whyformer.shapes import Array

SPACES = ("attention", "gradient", "rollout")
READINGS = ("row", "column", "column_mean", "column_max")


def cost_class_of(method: str, options: dict[str, Any]) -> str:
    entry = get_method(method)
    forwards, backwards = entry.cost(10, **entry.checked(options))
    return CLASSES[2] if forwards > 1 or backwards > 1 else CLASSES[1] if backwards else CLASSES[0]


@dataclass(frozen=True, eq=False)
class CandidatePool:
    """All candidates that can be chosen, and their scores (M, P) on each input."""

    candidates: list[Candidate]
    scores: list[Array]
    excluded: dict[str, str]
    spaced: int = 0  # so many of the candidates, the first, are readings of attention


def candidates_of(spaces: Sequence[str], layers: int, heads: int) -> list[Candidate]:
    """Return the candidates of the spaces, in the order of ``scores_of``: (L + 2)(H + 1)·4 per kind of attention."""
    candidates = []
    for space, method in (("attention", "raw_attention"), ("gradient", "attention_x_gradient")):
        if space in spaces:
            cost = cost_class_of(method, {})
            candidates += [
                Candidate(method, {"layers": layer, "heads": head, "read": read}, cost_class=cost)
                for layer in ("mean", "product", *range(layers))
                for head in ("mean", *range(heads))
                for read in READINGS
            ]
    if "rollout" in spaces:
        names = ["attention_rollout"]
        names += ["gradient_rollout", "generic_attention"] if "gradient" in spaces else []
        for name in names:
            cost = cost_class_of(name, {})
            candidates += [Candidate(name, {"start_layer": s}, cost_class=cost) for s in range(layers)]
    return candidates


def scores_of(run: Run, spaces: Sequence[str]) -> tuple[list[Candidate], list[Array]]:
    """Return the candidates and, per input, their scores (M, U) without padding, all from one record."""
    sites = run.record(grad="gradient" in spaces).sites
    if len({site.attention_BHQK.shape for site in sites}) > 1:
        return _one_by_one(run, spaces, sites)
    candidates = candidates_of(spaces, len(sites), sites[0].heads)
    attention_BLHNN = torch.stack([site.attention_BHQK.float() for site in sites], 1)
    raised_BLHNN = None
    if "gradient" in spaces:
        gradients = [site.attention_grad_BHQK for site in sites if site.attention_grad_BHQK is not None]
        raised_BLHNN = torch.stack([g.float() for g in gradients], 1) * attention_BLHNN
    rows = []
    for row in range(run.batch.size):
        keep = run.keep_BN[row].nonzero()[:, 0]
        readout_N = run.readout_BN[row, keep].float()
        attention_LHNN = attention_BLHNN[row][..., keep[:, None], keep]
        parts = []
        if "attention" in spaces:
            parts.append(aggregated(attention_LHNN, readout_N))
        if raised_BLHNN is not None:
            raised_LHNN = raised_BLHNN[row][..., keep[:, None], keep]
            parts.append(aggregated(raised_LHNN.clamp(min=0), readout_N))
        if "rollout" in spaces:
            parts.append(rolled(_with_half(attention_LHNN.mean(1)), readout_N))
            if raised_BLHNN is not None:
                parts.append(rolled(_with_half(raised_LHNN.mean(1).clamp(min=0)), readout_N))
                generic = raised_LHNN.clamp(min=0).mean(1)
                parts.append(rolled(generic + torch.eye(generic.shape[-1]).to(generic), readout_N))
        rows.append(torch.cat(parts).cpu().numpy())
    return candidates, rows


def _one_by_one(run: Run, spaces: Sequence[str], sites: Sequence[Site]) -> tuple[list[Candidate], list[Array]]:
    """Return the same where layers differ in shape (a last layer of one row): each candidate runs its method."""
    candidates, scores = [], []
    for candidate in candidates_of(spaces, len(sites), min(site.heads for site in sites)):
        entry = get_method(candidate.method)
        try:
            scores.append(entry.run(run, **entry.checked(candidate.options)).scores_BN)
        except NotOffered:  # columns of a layer that has none
            continue
        candidates.append(candidate)
    stacked = torch.stack(scores, 1).float().cpu().numpy()
    keep = run.keep_BN.cpu().numpy()
    return candidates, [stacked[row][:, keep[row]] for row in range(run.batch.size)]


def aggregated(maps_LHNN: Tensor, readout_N: Tensor) -> Tensor:
    """(M, N): layers {mean, product, each} × heads {mean, each} × readings {row, column, column mean, column max}."""
    heads = torch.cat([maps_LHNN.mean(1, keepdim=True), maps_LHNN], 1)
    product = heads[0]
    for later in heads[1:]:
        product = later @ product  # A_L ··· A_1, without residual
    every = torch.cat([heads.mean(0)[None], product[None], heads])
    readings = (readout_N @ every, every @ readout_N, every.mean(-2), every.amax(-2))
    return torch.stack(readings, 2).flatten(0, 2)


def rolled(maps_LNN: Tensor, readout_N: Tensor) -> Tensor:
    """(L, N) e·M_L···M_s for every start layer s: one vector, taken down layer by layer."""
    rows, row = [], readout_N
    for layer in reversed(maps_LNN):
        row = row @ layer
        rows.append(row)
    return torch.stack(rows[::-1])


def _with_half(maps_LNN: Tensor) -> Tensor:
    return row_normalized((maps_LNN + torch.eye(maps_LNN.shape[-1]).to(maps_LNN)) / 2)


def scores_of_each(runs: Sequence[Run], spaces: Sequence[str]) -> tuple[list[Candidate], list[Array]]:
    """Return candidates and scores over all runs; a batch of unclear layout is run one input at a time."""
    candidates: list[Candidate] = []
    scores: list[Array] = []
    for run in runs:
        try:
            candidates, some = scores_of(run, spaces)
        except AmbiguousLayout:
            if run.batch.size == 1:
                raise
            some = []
            for row, target in enumerate(run.targets):
                alone = run.of(run.batch.select([row]), run.study, [target])
                candidates, one = scores_of(alone, spaces)
                some += one
        scores += some
    if len({s.shape[0] for s in scores}) > 1:
        raise NotOffered("inputs differ in their number of layers or heads, so their aggregations cannot be compared.")
    return candidates, scores


def pool_of(games: Games, spaces: Sequence[str], methods: Sequence[Candidate]) -> CandidatePool:
    """Return the pool: the readings of attention in the spaces, then the methods, each with its scores."""
    excluded: dict[str, str] = {}
    candidates: list[Candidate] = []
    scores: list[Array] = [np.zeros((0, len(parts)), np.float32) for parts in games.parts]
    if spaces:
        try:
            if "gradient" in spaces:
                refuse_without_gradients(games.explainer.model, "spaces='gradient'")
            candidates, units = scores_of_each(games.runs, spaces)
            scores = [games.per_part(number, all_U) for number, all_U in enumerate(units)]
        except WhyformerError as reason:
            excluded["attention aggregations"] = str(reason)
    spaced = len(candidates)
    causal = games.runs[0].output.causal and games.asked["units"] == "token"
    sinks = causal and any(0 in parts for parts in games.parts)
    if candidates:  # the spaces hold these methods with all of their options already
        methods = [m for m in methods if get_method(m.method).space not in spaces or m.options]
    for candidate in games.track(list(methods), "explaining"):
        if unfit := get_method(candidate.method).unfit:
            excluded[candidate.name] = unfit
            continue
        done = evaluated(candidate, games, games.scalar)
        if done.failure:
            excluded[done.name] = done.failure
            continue
        own_scores = [e.scores[parts] for e, parts in zip(done.explanations, games.parts, strict=True)]
        done = replace(done, cost_class=cost_class_of(done.method, done.options))
        more = [(done, own_scores)]
        if sinks:  # where a model parks attention at the first token, the method may explain better without it
            without = zip(own_scores, games.parts, strict=True)
            options = {**done.options, "first_token": False}
            more.append(
                (replace(done, options=options), [np.where(p == 0, 0.0, s).astype(s.dtype) for s, p in without])
            )
        for one, its_scores in more:
            candidates.append(one)
            scores = [np.concatenate([s, o[None]]) for s, o in zip(scores, its_scores, strict=True)]
    return CandidatePool(candidates, scores, excluded, spaced)


FINALISTS = 3  # readings of attention, the first by RFT, go on to be evaluated


def finalists(pool: CandidatePool, truth_M: Array) -> list[int]:
    """Return the best readings of attention by RFT in each class of cost (equal ones count once), and the methods."""
    first: list[int] = []
    for cost_class in CLASSES:
        best: list[int] = []
        for m in np.argsort(-truth_M[: pool.spaced], kind="stable"):
            alike = any(math.isclose(truth_M[m], truth_M[other], rel_tol=1e-9) for other in best)
            if pool.candidates[m].cost_class == cost_class and len(best) < FINALISTS and not alike:
                best.append(int(m))
        first += best
    return [*first, *range(pool.spaced, len(pool.candidates))]


def truthfulness_of(games: Games, pool: CandidatePool, inputs: Sequence[int], value: str) -> Array:
    """(M, I) ranked truthfulness of every candidate on these inputs, NaN elsewhere."""
    truth_MI = np.full((len(pool.candidates), games.size), np.nan)
    signed = np.array([c.signed for c in pool.candidates])
    for i in games.track(list(inputs), "choosing"):
        # NOTE[DIFF] the authors take the probability, which hardly moves where a model is sure, so that what speaks
        # against the class looks like nothing and methods that name it lose; value="probability" is theirs.
        drops = games.game(i).drops(value)
        for kind in (True, False):
            if (signed == kind).any():
                truth_MI[signed == kind, i] = ranked(pool.scores[i][signed == kind], drops, kind)
    return truth_MI


MOST = 1024  # evaluations of shap with a guide
FEWEST = 8


def measured_rates(games: Games) -> Rates:
    """Return the seconds of a forward, alone and in a batch, and the cost of a backward, on the longest input."""
    number = longest(games)
    run, row = games.run_of(number)
    one = run.batch.select([row])
    many = one.select([0] * run.batch_size)
    with torch.no_grad():
        alone = fastest(lambda: run.output.logits(one))
        batched = fastest(lambda: run.output.logits(many)) / run.batch_size
    explain, raw = games.explainer.explain, one_input(games.inputs, number)
    try:
        both = fastest(lambda: explain(raw, method="saliency", **games.asked))
        backward = max(0.0, both - alone) / alone
    except WhyformerError:  # no gradients here, so none will be paid for
        backward = BACKWARD
    return Rates(alone, min(alone, batched), backward)


def fastest(act: Callable[[], object]) -> float:
    """Return the seconds of the fastest of three rounds; a first one warms up."""
    return min(timeit.repeat(act, number=1, repeat=4)[1:])


def longest(games: Games) -> int:
    return max(range(games.size), key=lambda i: len(games.units[i]))


def fitted(candidate: Candidate, units: int, rates: Rates, most: float) -> Candidate | None:
    """Return the method, if needed with fewer passes, or None if its fewest passes exceed the budget."""
    if price_of(candidate.method, candidate.options, units, rates) <= most:
        return candidate
    entry = get_method(candidate.method)
    if entry.scalable is None or entry.scalable[0] in candidate.options:
        return None
    option, fewest = entry.scalable
    return _largest(candidate, option, fewest, int(entry.defaults[option]), units, rates, most)


def guided_shap(guide: str, units: int, rates: Rates, most: float) -> Candidate | None:
    """Return shap with this guide and as many evaluations as fit into the budget."""
    candidate = Candidate("shap", {"evaluations": FEWEST, "guide": guide})
    return _largest(candidate, "evaluations", FEWEST, MOST, units, rates, most)


def _largest(
    candidate: Candidate, option: str, low: int, high: int, units: int, rates: Rates, most: float
) -> Candidate | None:
    """Return the candidate with the largest affordable value of an option (bisection: prices rise with it)."""

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
    """Return the candidates that fit, some with fewer passes, and the prices of the others."""
    fit, over = [], {}
    for candidate in candidates:
        fits = fitted(candidate, units, rates, budget.highest)
        if fits is None:
            over[candidate.name] = price_of(candidate.method, candidate.options, units, rates)
        else:
            fit.append(fits)
    return fit, over


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
        rates = measured_rates(games) if budget.seconds else Rates()
        estimate = partial(games.explainer.estimate, one_input(games.inputs, longest(games)))
        self.rates = rates = replace(rates, replace=games.modality.mask.replacement(None), estimate=estimate)
        self.units = units = len(games.units[longest(games)])
        self._judged: dict[tuple[int, int], float] = {}
        fit, prices = affordable(candidates, units, rates, budget)
        spaced = {space: price_of(SPACE_METHODS[space], {}, units, rates) for space in spaces}
        fitting = [space for space, price in spaced.items() if price <= budget.highest]
        if guided:
            guides = (guided_shap(guide, units, rates, budget.highest) for guide in OF_SHAP)
            runs = (candidate for candidate in guides if candidate is not None and explains_one(candidate, games))
            fit += itertools.islice(runs, 1)
        if nothing := not fit and not fitting:
            prices |= {f"a method of the space {space!r}": price for space, price in spaced.items()}
        price_text = "about {:.3g} s" if budget.seconds else "{:.0f} forwards"
        self.over = {n: f"{price_text.format(price)} for an input of {units} units" for n, price in prices.items()}
        if nothing:
            raise nothing_fits(budget, self.over, prices)
        self.pool: CandidatePool = pool_of(games, fitting, fit)
        if not self.pool.candidates:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.pool.excluded.items())
            raise NotOffered(f"no method within {budget} can explain this model: {reasons}")

    def truth_M(self, choosing: Sequence[int]) -> Array:
        """(M,) mean ranked truthfulness of every candidate on the inputs that choose."""
        return truthfulness_of(self.games, self.pool, choosing, self.value)[:, list(choosing)].mean(1)

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
        """Return the candidate with its cost. Readings of attention share a record, so each is measured alone."""
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
        f"{over[cheapest]} ({source}). Raise the budget, or pass another method= (wf.list_methods())."
    )
