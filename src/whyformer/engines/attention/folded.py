"""The relevance engine without maps: rows are pulled through the layers, last first (capture/fold.py).

The row that feeds the head, e·(I + Ā_L)···(I + Ā_1), is evaluated from the left, so each layer's map is needed once and
as a product with a vector. What is read of single layers (Grad-SAM, raw attention) is such a product, too. With several
streams the rules of generic attention need maps themselves: those are kept, with the heads fused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from whyformer.capture.fold import Fold, FoldedSite, HeadFusion, NotFolded, Scaled
from whyformer.capture.record import folded, require_sites
from whyformer.capture.site import OffPlan
from whyformer.engines.attention.maps import Heads, Layers, chosen_layers, over_heads
from whyformer.engines.attention.streams import placed
from whyformer.errors import NotOffered
from whyformer.inputs.output import Output
from whyformer.loan.spread import recomputable, recomputing
from whyformer.results.types import Record
from whyformer.run import Attribution, Run
from whyformer.shapes import BN, AnyBQK
from whyformer.study import require_readable
from whyformer.study.interference import require_scaled_reached, require_scaled_slopes

# One pass of a run whose attentions are handed on one by one, last first, and none of them is stored.


class NotFoldable(NotOffered):
    """A model that shows only when it is run that it cannot be folded."""


@runtime_checkable
class Take(Protocol):
    """What a method does with the attentions of a folded pass; it may have to begin anew."""

    def begin(self) -> None: ...

    def __call__(self, site: FoldedSite) -> None: ...


def fold(run: Run, fusion: HeadFusion, take: Take, multi_stream: bool = False) -> None:
    """One pass whose attentions go to ``take`` with their heads fused.

    multi_stream: ``take`` knows the rules for several streams.
    """
    study, grad = run.study, fusion.gradient
    if not study.plain:
        require_readable(study, multi_stream)
    rows, batch = (run.rows_run, run.together) if grad else (run.batch.size, run.batch)
    run.asked["logits"] = (0, 0)
    _ = run.readout_BN  # may take passes of its own
    plans, of_kind, logits = study.plans, (grad, rows > 1), None
    while logits is None:
        take.begin()
        role = Fold(rows, run.module_names, study.batch_axes, fusion=fusion)
        role.rows_attend = run.batch.reference_rows > 0
        plan = plans.plans.get(of_kind) or plans.at(of_kind, study.torch_own)
        if plan is not None and plan.paths:
            role.plan = plan
        if study.plain and not run.unpadded:
            role.keep_BN = run.keep_BN if rows == run.batch.size else run.keep_BN.any(0, keepdim=True)
        role.one_stream = study.plain
        role.measures = grad and ("slopes",) not in study.undisturbed
        run.forwards_B += rows / run.batch.size
        run.backwards_B += int(grad)
        try:
            layers = recomputable(run.modality.model) if grad and run.recomputes else []
            with recomputing(layers):
                forward, at = partial(run.output.logits, batch), partial(_hand_on, run, role, take)
                logits = folded(forward, role, partial(run.scalars, ask=False), at, rows < run.batch.size)
        except NotFolded as error:
            raise NotFoldable(
                "memory='fold': attention of this model comes in a shape that can be had as a whole map only, or "
                "it writes over what it gave to an attention. Leave memory out, or say memory='full'."
            ) from error
        except OffPlan:
            plans.missed(of_kind)
    run.said(logits)
    if not role.sites or role.unclaimed:
        require_sites(Record(tuple(role.outlines), logits, role.unclaimed))
    run.require_undisturbed(logits, graph=grad)
    if grad:
        _require_slopes(run, role, logits)
        if role.spoke_BQ is not None and run.reads_elsewhere(role.sites[-1].first_query, role.spoke_BQ):
            fold(run, fusion, take, multi_stream)


def _hand_on(run: Run, role: Fold, take: Take, site: FoldedSite) -> None:
    shares = torch.stack(role.lost_B).mean(0) if role.lost_B else torch.zeros(len(run.keep_BN))
    run.lost_to_padding(shares.to(run.keep_BN.device).expand(len(run.keep_BN)))
    take(site)


def _require_slopes(run: Run, role: Fold, logits: Tensor) -> None:
    """As ``Run.require_slopes``, along a change of each attention's size, which takes no map."""
    lost = frozenset(range(len(role.sites))).difference(role.reached)
    checks = {("slopes",): role.measures, ("lost", lost): bool(lost)}
    study = run.study
    due = [check for check, needed in checks.items() if needed and check not in study.undisturbed]
    if due:
        output = Output(run.modality, run.batch, run.scalar)

        def changed(factors: dict[int, Any]) -> Tensor:
            scaled = Scaled(run.rows_run, run.module_names, study.batch_axes, factors=factors)
            scaled.rows_attend = run.batch.reference_rows > 0
            with scaled:
                return run.scalars(output.logits(run.together))

        with torch.no_grad():
            score_B = run.scalars(logits).detach()
        for check in reversed(due):
            if check[0] == "lost":
                paths = [role.sites[i].path for i in sorted(lost)]
                run.setup_forwards += require_scaled_reached(paths, score_B, changed, lost)
            else:
                passes, doubt = require_scaled_slopes(role.reached, logits, score_B, changed)
                run.setup_forwards += passes
                study.doubts.extend([doubt] * bool(doubt))
            study.undisturbed.add(check)
    run.notes.update(study.doubts)


def readable_folded(*, layers: Layers, read: str, **options: object) -> bool:
    """Is what is read of maps (``raw_attention``) a sum over them? A maximum of columns is none.

    Of a product of maps, only what has its weights on the left comes in the order of backward.
    """
    return read in ({"row", "column_mean", "column_sum"} if layers == "product" else LINEAR)


LINEAR = {"row", "column", "column_mean", "column_sum", "diagonal"}


# How heads become one map


def attention_heads(heads: Heads = "mean") -> HeadFusion:
    """fuse_h A_h."""
    return HeadFusion(lambda a, _: over_heads(a, heads), False, _weights(heads))


def raised_heads(heads: Heads = "mean") -> HeadFusion:
    """fuse_h max(0, A_h ∘ dA_h): clamped head by head."""

    def fused(attention_BHQK: Tensor, gradient_BHQK: Tensor | None) -> Tensor:
        assert gradient_BHQK is not None
        return over_heads(attention_BHQK * gradient_BHQK.clamp(min=0), heads)

    return HeadFusion(fused, True, _weights(heads))


def weighted_heads(heads: Heads = "mean") -> HeadFusion:
    """max(0, fuse_h A_h ∘ dA_h): clamped once the heads have been fused, which takes all of them at a time."""

    def fused(attention_BHQK: Tensor, gradient_BHQK: Tensor | None) -> Tensor:
        assert gradient_BHQK is not None
        return over_heads(attention_BHQK * gradient_BHQK, heads).clamp(min=0)

    return HeadFusion(fused, True)


def _weights(heads: Heads) -> Callable[[int], list[float]] | None:
    if heads in {"max", "min"} if isinstance(heads, str) else False:
        return None
    return partial(_head_weights, heads)


def _head_weights(heads: Heads, count: int) -> list[float]:
    if isinstance(heads, str):
        return [1.0 if heads == "sum" else 1 / count] * count
    chosen = [heads] if isinstance(heads, int) else list(heads)
    over_heads(torch.zeros(1, count, 1, 1), chosen)  # refuses numbers of heads that are not there
    weights = [0.0] * count
    for head in chosen:
        weights[head] += 1 / len(chosen)
    return weights


# Rows pulled through the layers


def rows_of(weights_BRN: Tensor, site: FoldedSite) -> Tensor:
    """The part of (B, R, N) weights that stands at the site's queries."""
    return weights_BRN[:, :, site.first_query : site.first_query + site.shape[2]]


def stays(rows_BRQ: Tensor, site: FoldedSite, like_BRN: Tensor) -> Tensor:
    """The residual: each query row is itself."""
    if rows_BRQ.shape == like_BRN.shape:
        return rows_BRQ
    result = torch.zeros_like(like_BRN)
    result[:, :, site.first_query : site.first_query + site.shape[2]] = rows_BRQ
    return result


# Site, (B, R, N) weights, (B, N) real positions, rows outside of which all weights are zero → the weights before it.
Layer = Callable[[FoldedSite, Tensor, Tensor, slice | None], Tensor]


def with_identity(site: FoldedSite, weights_BRN: Tensor, keep_BN: BN, span: slice | None) -> Tensor:
    """w·(I + Ā)."""
    rows = rows_of(weights_BRN, site)
    return site.pulled(rows, span) + stays(rows, site, weights_BRN)


def alone(site: FoldedSite, weights_BRN: Tensor, keep_BN: BN, span: slice | None) -> Tensor:
    """w·A."""
    return site.pulled(rows_of(weights_BRN, site), span)


def with_share(residual: float, normalize: bool) -> Layer:
    """w·rownorm((1-a)·A + a·I); without normalisation w·(A + a/(1-a)·I)."""

    def layer(site: FoldedSite, weights_BRN: Tensor, keep_BN: BN, span: slice | None) -> Tensor:
        rows = rows_of(weights_BRN, site)
        if not (normalize or residual == 1):
            return site.pulled(rows, span) + residual / (1 - residual) * stays(rows, site, weights_BRN)
        total_BRQ = (1 - residual) * site.row_sums(keep_BN) + residual
        rows = rows / total_BRQ.masked_fill(total_BRQ == 0, torch.inf)
        return (1 - residual) * site.pulled(rows, span) + residual * stays(rows, site, weights_BRN)

    return layer


class Chain:
    """The rows of ``run`` that are read, pulled through the layers from ``start_layer`` on."""

    def __init__(self, run: Run, layer: Layer, start_layer: int = 0, weights: str = "row") -> None:
        self.run, self.layer, self.start, self.weights = run, layer, start_layer, weights
        self.rows_BRN: Tensor | None = None

    def begin(self) -> None:
        self.rows_BRN = None

    def __call__(self, site: FoldedSite) -> None:
        keep_BN = self.run.attended_BN
        if self.rows_BRN is None:
            read = self.run.read_BRN if self.weights == "row" else torch.ones_like(self.run.read_BRN)
            self.rows_BRN = read.float() * keep_BN[:, None]
        if site.number < self.start:
            return
        where = slice(None) if site.inputs is None else slice(site.inputs.start, site.inputs.stop)
        keep, rows_BRN = keep_BN[where], self.rows_BRN[where]
        last = site.number == self.run.layer_count() - 1  # only there few rows have a weight
        span = _span(rows_of(rows_BRN, site)) if last else None
        self.rows_BRN[where] = self.layer(site, rows_BRN, keep, span) * keep[:, None]

    @property
    def attribution(self) -> Attribution:
        if self.rows_BRN is None:  # no attention has a gradient
            self.rows_BRN = self.run.read_BRN.float() * self.run.attended_BN[:, None]
        several = self.run.rows_read is not None
        return Attribution(self.rows_BRN[:, 0], matrix_BQK=self.rows_BRN if several else None)


def chained(run: Run, fusion: HeadFusion, layer: Layer, start_layer: int = 0, weights: str = "row") -> Attribution:
    """e·Â_L···Â_1, with ``layer`` giving w·Â of one of them."""
    chain = Chain(run, layer, start_layer % run.layer_count(start_layer), weights)
    fold(run, fusion, chain)
    return chain.attribution


# Single layers, read one by one


class Readings:
    """Σ over some layers of what is read of each: its rows, columns or diagonal."""

    def __init__(self, run: Run, layers: Sequence[int], read: str) -> None:
        self.run, self.layers, self.read = run, layers, read
        self.total_BRN: Tensor | None = None

    def begin(self) -> None:
        self.total_BRN = None

    def __call__(self, site: FoldedSite) -> None:
        read_BRN = self.run.read_BRN
        if self.total_BRN is None:
            self.total_BRN = torch.zeros_like(read_BRN, dtype=torch.float32)
        times = self.layers.count(site.number)
        if not times:
            return
        where = slice(None) if site.inputs is None else slice(site.inputs.start, site.inputs.stop)
        keep = self.run.attended_BN[where][:, None].float()
        self.total_BRN[where] += times * _read(site, read_BRN[where].float(), keep, self.read) * keep


def _span(weights_BRX: Tensor) -> slice:
    """From the first row with a weight to the last."""
    places = weights_BRX.amax((0, 1)).nonzero()[:, 0]
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def _read(site: FoldedSite, read_BRN: Tensor, keep_B1N: Tensor, read: str) -> Tensor:
    if read == "row":
        rows = rows_of(read_BRN * keep_B1N, site)
        return site.pulled(rows, _span(rows))
    if read == "column":
        return stays(site.pushed(read_BRN * keep_B1N), site, read_BRN)
    if read == "keys":  # of each query row
        return stays(site.pushed(keep_B1N), site, read_BRN)
    if read == "diagonal":
        return stays(_diagonal(site)[:, None], site, read_BRN)
    return site.pulled(rows_of(keep_B1N, site))


def _diagonal(site: FoldedSite) -> Tensor:
    parts = []
    for rows in site.blocks:
        keys, block = site.rows(rows)
        shift = site.first_query + rows.start - keys.start
        parts.append(block.diagonal(shift, 1, 2))
    return torch.cat(parts, 1)


def read_layers(run: Run, fusion: HeadFusion, layers: str | int | Sequence[int], read: str) -> Attribution:
    """The mean over the chosen layers; ``layers="product"`` multiplies all of them."""
    if layers == "product":
        attribution = chained(run, fusion, alone, weights="row" if read == "row" else "ones")
        scores_BN, matrix = attribution.scores_BN, attribution.matrix_BQK
    else:
        chosen = chosen_layers(layers, run.layer_count())
        readings = Readings(run, chosen, read)
        fold(run, fusion, readings)
        total_BRN = torch.zeros_like(run.read_BRN) if readings.total_BRN is None else readings.total_BRN / len(chosen)
        scores_BN, matrix = total_BRN[:, 0], total_BRN if run.rows_read is not None else None
    if read == "column_mean":
        scores_BN = scores_BN / run.keep_BN.sum(1, keepdim=True)
    return Attribution(scores_BN, matrix_BQK=matrix)


# Several streams


class FusedMaps:
    """The map of each attention, heads fused: what the rules for several streams multiply."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.maps: dict[int, tuple[FoldedSite, AnyBQK]] = {}

    def begin(self) -> None:
        self.maps = {}

    def __call__(self, site: FoldedSite) -> None:
        self.maps[site.number] = (site, site.whole())


def folded_maps(run: Run, fusion: HeadFusion, keep: dict[str, Tensor]) -> dict[int, AnyBQK]:
    """Maps over all positions of their two streams, of those that reach the output; padding zeroed."""
    fused = FusedMaps(run)
    fold(run, fusion, fused, multi_stream=True)
    result = {}
    for step in run.schedule.steps:
        if not step.used:
            continue
        if step.site in fused.maps:
            site, whole = fused.maps[step.site]
            result[step.site] = placed(whole, site, step, keep)
    return result
