"""All candidates of a recommendation: aggregations of attention, computed from one record, and methods.

Each is a method with options, so that the chosen one can be explained with:
``explain(model, x, method="raw_attention", layers=3, heads=1, read="column_mean")``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.engines.attention.maps import row_normalized
from whyformer.errors import AmbiguousLayout, NotOffered, WhyformerError
from whyformer.evaluate.candidate import Candidate, evaluated
from whyformer.evaluate.games import Games
from whyformer.evaluate.metrics.faithfulness import ranked
from whyformer.loan.borrow import refuse_without_gradients
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
    aside: dict[str, list[Array]]  # measured, but not to be chosen
    spaced: int = 0  # so many of the candidates, the first, are readings of attention


def candidates_of(spaces: Sequence[str], layers: int, heads: int) -> list[Candidate]:
    """All candidates of the spaces, in the order of ``scores_of``: (L + 2)(H + 1)·4 of each kind of attention."""
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
    """The candidates, and per input of the run their scores (M, U), padding left out; one record for all of them."""
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
        attention = attention_BLHNN[row][..., keep[:, None], keep]
        raised = None if raised_BLHNN is None else raised_BLHNN[row][..., keep[:, None], keep]
        rows.append(_of_one(attention, raised, readout_N, spaces).cpu().numpy())
    return candidates, rows


def _one_by_one(run: Run, spaces: Sequence[str], sites: Sequence[Site]) -> tuple[list[Candidate], list[Array]]:
    """Layers of different shapes (a last layer that asks for one row): every candidate by its own method."""
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


def _of_one(attention_LHNN: Tensor, raised_LHNN: Tensor | None, readout_N: Tensor, spaces: Sequence[str]) -> Tensor:
    """(M, N) the scores of all candidates for one input."""
    parts = []
    if "attention" in spaces:
        parts.append(aggregated(attention_LHNN, readout_N))
    if raised_LHNN is not None:
        parts.append(aggregated(raised_LHNN.clamp(min=0), readout_N))
    if "rollout" in spaces:
        parts.append(rolled(_with_half(attention_LHNN.mean(1)), readout_N))
        if raised_LHNN is not None:
            parts.append(rolled(_with_half(raised_LHNN.mean(1).clamp(min=0)), readout_N))
            generic = raised_LHNN.clamp(min=0).mean(1)
            parts.append(rolled(generic + torch.eye(generic.shape[-1]).to(generic), readout_N))
    return torch.cat(parts)


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
    """Over several runs; a batch whose layout is not clear is run one input at a time."""
    candidates: list[Candidate] = []
    scores: list[Array] = []
    for run in runs:
        try:
            candidates, some = scores_of(run, spaces)
        except AmbiguousLayout:
            if run.batch.size == 1:
                raise
            settings: dict[str, Any] = {"scalar": run.scalar, "seed": run.seed, "batch_size": run.batch_size}
            some = []
            for row, target in enumerate(run.targets):
                alone = Run(run.modality, run.batch.select([row]), run.study, target=[target], **settings)
                candidates, one = scores_of(alone, spaces)
                some += one
        scores += some
    if len({s.shape[0] for s in scores}) > 1:
        raise NotOffered("inputs differ in their number of layers or heads, so their aggregations cannot be compared.")
    return candidates, scores


# The candidates that can be chosen: every reading of attention and every method, with their scores on all inputs.

LEAVE_ONE_OUT = {"occlusion", "two_ended"}  # wholly, or half
BY_CONSTRUCTION = "leave-one-out is what RFT is made of: it would win by construction. Its AOPC is shown beside."


def pool_of(games: Games, spaces: Sequence[str], methods: Sequence[Candidate], aside: bool = True) -> CandidatePool:
    """Evaluate the readings of the spaces, then the methods. aside: leave-one-out is measured but cannot be chosen."""
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
    beside: dict[str, list[Array]] = {}
    spaced = len(candidates)
    if candidates:  # the spaces hold these methods with all of their options already
        methods = [m for m in methods if get_method(m.method).space not in spaces or m.options]
    for candidate in games.track(list(methods), "explaining"):
        done = evaluated(candidate, games, games.scalar)
        if done.failure:
            excluded[done.name] = done.failure
            continue
        own_scores = [e.scores[parts] for e, parts in zip(done.explanations, games.parts, strict=True)]
        if aside and done.method in LEAVE_ONE_OUT:
            excluded[done.name] = BY_CONSTRUCTION
            beside[done.name] = own_scores
            continue
        done = replace(done, cost_class=cost_class_of(done.method, done.options))
        more = [(done, own_scores)]
        without = _without_first_tokens(games, own_scores)
        if without is not None:  # where a model parks attention there, the method may explain better without it
            more.append((replace(done, options={**done.options, "first_token": False}), without))
        for one, its_scores in more:
            candidates.append(one)
            scores = [np.concatenate([s, o[None]]) for s, o in zip(scores, its_scores, strict=True)]
    return CandidatePool(candidates, scores, excluded, beside, spaced)


def _without_first_tokens(games: Games, scores: Sequence[Array]) -> list[Array] | None:
    """The scores of a language model's texts with 0 at the first token; None where that is no part of any."""
    causal = games.runs[0].output.causal and games.asked["units"] == "token"
    if not causal or not any(0 in parts for parts in games.parts):
        return None
    return [np.where(parts == 0, 0.0, s).astype(s.dtype) for s, parts in zip(scores, games.parts, strict=True)]


def halves(games: Games, known: list[int]) -> tuple[list[int], list[int]]:
    """The inputs that choose and those that test. All detections of an image are on one side."""
    inputs = list(dict.fromkeys(games.of[i] for i in known))
    order = np.random.default_rng(games.seed).permutation(inputs).tolist()
    first = set(order[: (len(order) + 1) // 2])
    return [i for i in known if games.of[i] in first], [i for i in known if games.of[i] not in first]


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
