"""The space of attention aggregations, all at once: which layers, which heads, how read; where rollouts start.

One record of the model serves every candidate. Each is a method with options, so the one that is chosen can be asked
for by name: ``explain(model, x, method="raw_attention", layers=3, heads=1, read="column_mean")``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.engines.attention.maps import row_normalized
from whyformer.errors import AmbiguousLayout, NotOffered
from whyformer.evaluate.contender import Contender, named
from whyformer.registry import CLASSES, get_method
from whyformer.run import Run
from whyformer.types import Site

Array = np.ndarray[Any, Any]

SPACES = ("attention", "gradient", "rollout")
READINGS = ("row", "column", "column_mean", "column_max")


@dataclass(frozen=True)
class Candidate:
    """One way to explain, and what it costs."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    signed: bool = False
    cost_class: str = CLASSES[0]

    @property
    def name(self) -> str:
        return named(self.method, self.options)


def cost_class_of(method: str, options: dict[str, Any]) -> str:
    entry = get_method(method)
    forwards, backwards = entry.cost(10, **entry.checked(options))
    return CLASSES[2] if forwards > 1 or backwards > 1 else CLASSES[1] if backwards else CLASSES[0]


@dataclass(frozen=True, eq=False)
class Field:
    """Everyone who stands: candidates, and per input their scores (M, P)."""

    candidates: list[Candidate]
    scores: list[Array]
    excluded: dict[str, str]
    aside: dict[str, list[Array]]  # measured, but not to be chosen
    spaced: int = 0  # so many of the candidates, the first, are readings of attention
    measured: dict[str, Contender] = field(default_factory=dict)  # of the others, what they took


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
    shapes = {site.attention_BHQK.shape for site in sites}
    if len(shapes) > 1:
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


def scores_of_each(runs: Sequence[Run], spaces: Sequence[str], alone: Any) -> tuple[list[Candidate], list[Array]]:
    """Over several runs; ``alone(run, row)`` makes a run of one input, for batches whose layout is not clear."""
    candidates: list[Candidate] = []
    scores: list[Array] = []
    for run in runs:
        try:
            candidates, some = scores_of(run, spaces)
        except AmbiguousLayout:
            if run.batch.size == 1:
                raise
            some = []
            for row in range(run.batch.size):
                candidates, one = scores_of(alone(run, row), spaces)
                some += one
        scores += some
    if len({s.shape[0] for s in scores}) > 1:
        raise NotOffered("inputs differ in their number of layers or heads, so their aggregations cannot be compared.")
    return candidates, scores
