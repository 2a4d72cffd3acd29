"""Combine the attention maps of all layers and read the result, whatever the layout of the model.

``chain`` multiplies the maps of all layers, ``read_layers`` combines some layers without a residual, and ``read``
reads the rows that feed the head. A method supplies a formula, ``HeadFusion``: how the heads of a layer become one map.
Each function handles one stream of tokens, several streams, attention inside windows, and maps that are not stored.

If maps are not stored (capture/fold.py), the row that feeds the head, e·Â_L···Â_1, is evaluated from the left: each
layer is needed once, as a product with a vector. Rules for several streams need whole maps, with the heads fused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from whyformer.capture.fold import Fold, FoldedSite, NotFolded, Scaled
from whyformer.capture.functions import HeadFusion
from whyformer.capture.record import folded, require_sites
from whyformer.capture.site import FUSED, Plan
from whyformer.engines.attention import maps as mapped
from whyformer.errors import NotOffered
from whyformer.inputs.decoding import KeptPass
from whyformer.inputs.output import Output
from whyformer.loan.spread import recomputable, recomputing
from whyformer.results.types import Record, Site
from whyformer.run import Attribution, Run, require_undisturbed
from whyformer.shapes import BN, BQK, AnyBQK
from whyformer.study import require_readable
from whyformer.study.interference import require_reached, require_scaled_slopes
from whyformer.study.schedule import Schedule

Choice = str | int | Sequence[int]  # of layers
Take = TypeVar("Take", bound=Callable[[FoldedSite], None])
StreamRule = Callable[[Schedule, Mapping[int, AnyBQK], Mapping[str, Tensor]], mapped.Maps]

READINGS = ("row", "column", "column_mean", "column_sum", "column_max", "diagonal")

# The map of one layer: how its heads are fused.


def attention_heads(heads: mapped.Heads = "mean") -> HeadFusion:
    """fuse_h A_h."""
    return HeadFusion(lambda attention, _: mapped.over_heads(attention, heads), False, partial(_weights, heads))


def raised_heads(heads: mapped.Heads = "mean") -> HeadFusion:
    """fuse_h max(0, A_h ∘ ∂s/∂A_h): clamped before the heads are fused."""
    return HeadFusion(
        lambda attention, gradient: mapped.over_heads((gradient * attention).clamp(min=0), heads),
        True,
        partial(_weights, heads),
    )


def _weights(heads: mapped.Heads, count: int) -> list[float] | None:
    """Return the weight of each of ``count`` heads, or None if the fused map is not a weighted sum."""
    if isinstance(heads, str):
        return None if heads in {"max", "min"} else [1.0 if heads == "sum" else 1 / count] * count
    chosen = [heads] if isinstance(heads, int) else list(heads)
    mapped.over_heads(torch.zeros(1, count, 1, 1), chosen)  # raises if there is no head of that number
    each = [0.0] * count
    for head in chosen:
        each[head] += 1 / len(chosen)
    return each


# All layers


def chain(
    run: Run,
    heads: HeadFusion,
    *,
    residual: float | Tensor = 0.5,
    normalize: bool = False,
    start_layer: int = 0,
    discard: float = 0.0,
    protect_special: bool = False,
    streams: StreamRule | None = None,
) -> Attribution:
    """Multiply the maps of all layers, Â_L···Â_1, and read the rows that feed the head. Â_l is ``with_residual``.

    residual: its share a, or (B, L, N) measured shares of the other positions (``with_ratio``). The default is A + I.
    streams: the rule for several streams of tokens; without one, these and attention inside windows raise an error.
    """
    share = residual if isinstance(residual, (int, float)) else 0.0
    if streams is not None and run.windowed:
        return mapped.over_windows(
            run, heads.gradient, heads.of, lambda layer: mapped.with_residual(layer, 0, share, normalize), start_layer
        )
    if streams is not None and run.multi_stream:
        maps, chosen = stream_maps(run, heads), mapped.start_sites(run.schedule, start_layer)
        maps = {site: layer for site, layer in maps.items() if site in chosen}
        return read(run, streams(run.schedule, maps, run.by_stream(run.keep_BN)))
    if run.folds:
        return _chained(run, heads, share, normalize, start_layer)
    sites = mapped.maps_of(run.record(grad=heads.gradient), start_layer)
    padded, attended_BN, layers = not run.unpadded, run.attended_BN, list[Tensor]()
    number = len(run.study.sites) - len(sites)
    for count, site in mapped.blocks(sites, heads.gradient):
        layer, first = heads.of(site), site.first_query
        keep_BN = attended_BN.repeat(count, 1) if padded or discard else attended_BN
        if padded and (normalize or discard):  # row sums and ranks must not include padding
            layer = mapped.real(layer, keep_BN, site)
        if discard:
            special_BN = run.special_BN.repeat(count, 1) if protect_special else None
            layer = mapped.discard_smallest(layer, discard, keep_BN, site, special_BN)
        if isinstance(residual, Tensor):
            ratio_LBQ = residual[:, number : number + count, first : first + layer.shape[1]].transpose(0, 1)
            layer = mapped.with_ratio(layer, first, ratio_LBQ.flatten(0, 1))
        else:
            layer = mapped.with_residual(layer, first, share, normalize)
        layers += (mapped.real(layer, keep_BN, site) if padded else layer).chunk(count)
        number += count
    return multiplied(run, layers, sites[-1].first_query)


def multiplied(
    run: Run, layers: Sequence[AnyBQK], first_query: int, warnings: list[list[str]] | None = None
) -> Attribution:
    """Multiply maps and read the rows that feed the head; ``keep_layers`` keeps the product after each layer."""
    products = mapped.cumulative(layers) if run.keep_layers else [mapped.product(layers)]
    return read(run, products[-1], first_query, products, warnings)


def read(
    run: Run,
    whole: AnyBQK | mapped.Maps,
    first_query: int = 0,
    layers: Sequence[AnyBQK] = (),
    warnings: list[list[str]] | None = None,
) -> Attribution:
    """Read the rows that feed the head from one map of the model, or from one per pair of streams.

    The maps of ``layers`` are kept if the run asks for them and all have the same shape.
    """
    if isinstance(whole, dict):
        scores = mapped.read_streams(whole, run.by_stream(run.readout_BN), run.by_stream(run.keep_BN))
    else:
        scores = mapped.read_row(whole, run.readout_BN, first_query)
    return Attribution(scores, matrix_BQK=whole, layers_BLQK=stacked(run, layers), warnings=warnings)


def stacked(run: Run, layers: Sequence[AnyBQK]) -> Tensor | None:
    """Return (B, L, Q, K) maps if ``keep_layers`` is set; a last layer with fewer rows cannot be stacked."""
    return torch.stack(tuple(layers), 1) if run.keep_layers and len({layer.shape for layer in layers}) == 1 else None


def stream_maps(run: Run, heads: HeadFusion) -> dict[int, AnyBQK]:
    """Return the maps that reach the output over all positions of their two streams, padding zeroed, by site."""
    keep = run.by_stream(run.keep_BN)
    if not run.folds:
        return mapped.placed_maps(run.record(grad=heads.gradient, multi_stream=True), run.schedule, keep, heads.of)
    fused = fold(run, heads, _WholeMaps, multi_stream=True)
    used = [step for step in run.schedule.steps if step.used and step.site in fused]
    return {step.site: mapped.placed(fused[step.site][1], fused[step.site][0], step, keep) for step in used}


# Some layers, without a residual


def read_layers(run: Run, heads: HeadFusion, layers: Choice, reading: str, streams: bool = False) -> Attribution:
    """Read the mean of the chosen layers, or with ``layers="product"`` the product of all of them.

    reading: one of ``READINGS``, or "keys", the sum of each row, if maps are not stored. streams: several streams and
    attention inside windows are supported, by row.
    """
    if streams and run.windowed:
        return mapped.over_one_layer(run, heads.gradient, heads.of, layers)
    if streams and run.multi_stream:
        return read(run, mapped.layer_means(run.schedule, stream_maps(run, heads), layers))
    if run.folds:
        if layers == "product":
            attribution = _chained(run, heads, 0.0, normalize=False, ones=reading != "row")
        else:
            chosen = mapped.chosen_layers(layers, run.study.layer_count())
            mean_BRN = fold(run, heads, partial(_Readings, run, chosen, reading)).total_BRN / len(chosen)
            attribution = Attribution(mean_BRN[:, 0], matrix_BQK=None if run.rows_read is None else mean_BRN)
        if reading == "column_mean":
            attribution.scores_BN = attribution.scores_BN / run.keep_BN.sum(1, keepdim=True)
        return attribution
    record = run.record(grad=True) if heads.gradient else run.layers_of(partial(mapped.chosen_layers, layers))
    sites = [record.sites[i] for i in mapped.chosen_layers(layers, len(record.sites))]
    maps = [mapped.real(heads.of(site), run.attended_BN, site) for site in sites]
    square = [m for m in maps if m.shape[1] == m.shape[2]]
    whole, last = maps[-1], sites[-1]
    if layers == "product":
        whole = mapped.product(maps)
    elif reading != "row" and len(square) < len(maps):  # a last layer with fewer rows has no columns or diagonal
        if square:
            whole = torch.stack(square).mean(0)
    elif len({m.shape for m in maps}) == 1:
        whole = torch.stack(maps).mean(0)
    else:
        rows = [mapped.read_row(m, run.readout_BN, s.first_query) for m, s in zip(maps, sites, strict=True)]
        whole = torch.stack(rows).mean(0)[:, None]
    if reading != "row" and whole.shape[1] != whole.shape[2]:
        raise NotOffered(
            f"read={reading!r} needs a map with a row for every position, and the last layer of this model asks for "
            f"{whole.shape[1]} only: use read='row', or layers without the last one."
        )
    scores = _read_whole(run, whole, last, reading)
    return Attribution(scores, matrix_BQK=whole, layers_BLQK=stacked(run, maps) if len(square) == len(maps) else None)


def _read_whole(run: Run, whole_BQK: BQK, site: Site, reading: str) -> Tensor:
    if reading == "row":
        if whole_BQK.shape[1] == 1 and run.readout_BN.shape[1] != 1:
            return whole_BQK[:, 0]
        return mapped.read_row(whole_BQK, run.readout_BN, site.first_query)
    if reading == "column":
        return torch.einsum("bqk,bk->bq", whole_BQK, run.readout_BN.to(whole_BQK.dtype))
    if reading == "diagonal":
        return whole_BQK.diagonal(dim1=1, dim2=2)
    if reading == "column_max":
        return whole_BQK.amax(1)
    total_BK = whole_BQK.sum(1)
    return total_BK if reading == "column_sum" else total_BK / run.keep_BN.sum(1, keepdim=True)


def readable_folded(*, layers: mapped.Layers, read: str, **options: object) -> bool:
    """Return whether a reading is a sum over the map, which a maximum is not.

    Backward yields the last layer first, so only readings with their weights on the left apply to a product.
    """
    return read in ({"row", "column_mean", "column_sum"} if layers == "product" else {*READINGS} - {"column_max"})


# Maps that are not stored: one pass that yields the attentions one by one, last layer first


class NotFoldable(NotOffered):
    """The model turned out during the pass to need whole maps."""


def fold(run: Run, fusion: HeadFusion, begin: Callable[[], Take], multi_stream: bool = False) -> Take:
    """Run one pass and call ``begin()`` with each attention, last layer first, its heads fused. Return that object.

    A pass that leaves its plan is repeated, with a new object. multi_stream: several streams are supported.
    """
    study, grad = run.study, fusion.gradient
    if not study.plain:
        require_readable(study, multi_stream)
    rows, batch = (run.rows_run, run.together) if grad else (run.batch.size, run.batch)
    run.asked["logits"] = (0, 0)
    _ = run.readout_BN  # may take passes of its own
    text_pass = run.text_pass if grad else KeptPass()
    forward, score = partial(run.output.logits, batch), partial(run.scalars, ask=False)

    def run_once(plan: Plan | None) -> tuple[Take, Fold, Tensor]:
        take = begin()

        def hand_on(site: FoldedSite) -> None:
            shares = torch.stack(role.lost_B).mean(0) if role.lost_B else torch.zeros(len(run.keep_BN))
            run.lost_to_padding(shares.to(run.keep_BN.device).expand(len(run.keep_BN)))
            take(site)

        before = text_pass.seen(Fold)
        role = before or Fold(rows, run.module_names, study.batch_axes, fusion=fusion)
        _prepare(run, role, plan, rows, grad)
        layers = recomputable(run.modality.model) if grad and run.recomputes else []
        shared, ran = rows < run.batch.size, before is not None
        try:
            with recomputing(layers), text_pass.used_by(role):
                logits = folded(forward, role, score, hand_on, shared, ran, text_pass.more)
        except NotFolded as error:
            raise NotFoldable(
                "memory='fold': attention of this model comes in a shape that can be had as a whole map only, or "
                "it writes over what it gave to an attention. Leave memory out, or say memory='full'."
            ) from error
        run.forwards_B += 0 if ran else rows / run.batch.size
        return take, role, logits

    take, role, logits = study.plans.run((grad, rows > 1), run_once, study.torch_own)
    run.backwards_B += 1 if grad else run.of_head
    run.said(logits)
    if not role.sites or role.unclaimed:
        require_sites(Record(tuple(role.outlines), logits, role.unclaimed))
    require_undisturbed(run, logits, graph=grad)
    if grad:
        _require_slopes(run, role, logits)
    if run.reads_elsewhere(role.sites[-1].first_query, role.spoke_BQ):
        return fold(run, fusion, begin, multi_stream)
    return take


def _prepare(run: Run, role: Fold, plan: Plan | None, rows: int, grad: bool) -> None:
    """Set what a new pass, or a new score of a pass that was kept, has to look at."""
    study = run.study
    role.reached, role.spoke_BQ = {}, None
    role.rows_attend = run.batch.reference_rows > 0
    role.plan = plan if plan is not None and plan.watched is FUSED else role.plan
    if study.plain and not run.unpadded:
        role.keep_BN = run.keep_BN if rows == run.batch.size else run.keep_BN.any(0, keepdim=True)
    role.one_stream = study.plain
    role.count = None if grad else run.attentions
    role.measures = grad and ("slopes",) not in study.undisturbed


def _require_slopes(run: Run, role: Fold, logits: Tensor) -> None:
    """Check the slopes as ``Run.require_slopes`` does, by scaling whole attention outputs, which needs no map."""
    lost = frozenset(range(len(role.sites))).difference(role.reached)
    due = run.due_checks(lost, role.measures)
    if due:
        output = Output(run.modality, run.batch, run.scalar)

        def changed(factors: dict[int, Any]) -> Tensor:
            scaled = Scaled(run.rows_run, run.module_names, run.study.batch_axes, factors=factors)
            scaled.rows_attend = run.batch.reference_rows > 0
            with scaled:
                return run.scalars(output.logits(run.together))

        with torch.no_grad():
            score_B = run.scalars(logits).detach()
        for check in due:
            if check[0] == "lost":
                paths = [role.sites[i].path for i in sorted(lost)]
                run.passed(check, require_reached(paths, score_B, lambda share: changed(dict.fromkeys(lost, share))))
            else:
                run.passed(check, *require_scaled_slopes(role.reached, logits, score_B, changed))
    run.notes.update(run.study.warnings)


class _Chain:
    """Rows of weights, multiplied by the maps of the layers from ``start`` on."""

    def __init__(self, run: Run, residual: float, normalize: bool, start: int, ones: bool) -> None:
        self.run, self.residual, self.normalize, self.start, self.ones = run, residual, normalize, start, ones
        self.rows_BRN: Tensor | None = None

    def __call__(self, site: FoldedSite) -> None:
        keep_BN = self.run.attended_BN
        if self.rows_BRN is None:
            read_BRN = _weights_read(self.run)
            self.rows_BRN = (torch.ones_like(read_BRN) if self.ones else read_BRN).float() * keep_BN[:, None]
        if site.number < self.start:
            return
        where = _inputs(site)
        keep, weights_BRN = keep_BN[where], self.rows_BRN[where]
        last = site.number == self.run.study.layer_count() - 1  # only there few rows have a weight
        span = _span(_at_queries(weights_BRN, site)) if last else None
        self.rows_BRN[where] = self._before(site, weights_BRN, keep, span) * keep[:, None]

    def _before(self, site: FoldedSite, weights_BRN: Tensor, keep_BN: BN, span: slice | None) -> Tensor:
        """Return w·Â, where Â is the map of ``with_residual``."""
        share, rows = self.residual, _at_queries(weights_BRN, site)
        if self.normalize or share == 1:
            total_BRQ = (1 - share) * site.row_sums(keep_BN) + share
            rows = rows / total_BRQ.masked_fill(total_BRQ == 0, torch.inf)
            return (1 - share) * site.pulled(rows, span) + share * _in_place(rows, site, weights_BRN)
        pulled_BRN = site.pulled(rows, span)
        return pulled_BRN + share / (1 - share) * _in_place(rows, site, weights_BRN) if share else pulled_BRN


def _chained(
    run: Run, heads: HeadFusion, residual: float, normalize: bool, start_layer: int = 0, ones: bool = False
) -> Attribution:
    start = start_layer % run.study.layer_count(start_layer)
    rows_BRN = fold(run, heads, partial(_Chain, run, residual, normalize, start, ones)).rows_BRN
    if rows_BRN is None:  # no attention has a gradient
        rows_BRN = _weights_read(run).float() * run.attended_BN[:, None]
    return Attribution(rows_BRN[:, 0], matrix_BQK=None if run.rows_read is None else rows_BRN)


class _Readings:
    """The sum over some layers of what is read of each."""

    def __init__(self, run: Run, layers: Sequence[int], reading: str) -> None:
        self.run, self.layers, self.reading = run, layers, reading
        self.total_BRN = torch.zeros_like(_weights_read(run), dtype=torch.float32)

    def __call__(self, site: FoldedSite) -> None:
        times, where = self.layers.count(site.number), _inputs(site)
        if times:
            keep = self.run.attended_BN[where][:, None].float()
            self.total_BRN[where] += times * self._read(site, _weights_read(self.run)[where].float(), keep) * keep

    def _read(self, site: FoldedSite, read_BRN: Tensor, keep_B1N: Tensor) -> Tensor:
        if self.reading == "row":
            rows = _at_queries(read_BRN * keep_B1N, site)
            return site.pulled(rows, _span(rows))
        if self.reading == "column":
            return _in_place(site.pushed(read_BRN * keep_B1N), site, read_BRN)
        if self.reading == "keys":
            return _in_place(site.pushed(keep_B1N), site, read_BRN)
        if self.reading == "diagonal":
            parts = []
            for queries in site.blocks:
                keys, block = site.rows(queries)
                parts.append(block.diagonal(site.first_query + queries.start - keys.start, 1, 2))
            return _in_place(torch.cat(parts, 1)[:, None], site, read_BRN)
        return site.pulled(_at_queries(keep_B1N, site))


class _WholeMaps(dict[int, tuple[FoldedSite, AnyBQK]]):
    """The map of each attention with its heads fused, by site."""

    def __call__(self, site: FoldedSite) -> None:
        self[site.number] = site, site.whole()


def _inputs(site: FoldedSite) -> slice:
    """Return the inputs whose gradient a site holds."""
    return slice(None) if site.inputs is None else slice(site.inputs.start, site.inputs.stop)


def _at_queries(weights_BRN: Tensor, site: FoldedSite) -> Tensor:
    """Return the weights at the queries of a site, which may be fewer than the positions."""
    return weights_BRN[:, :, site.first_query : site.first_query + site.shape[2]]


def _in_place(rows_BRQ: Tensor, site: FoldedSite, like_BRN: Tensor) -> Tensor:
    """Return values of a site's queries at their positions, zero elsewhere."""
    if rows_BRQ.shape == like_BRN.shape:
        return rows_BRQ
    result = torch.zeros_like(like_BRN)
    _at_queries(result, site)[:] = rows_BRQ
    return result


def _span(weights_BRX: Tensor) -> slice:
    """Return the rows from the first to the last with a weight."""
    places = weights_BRX.amax((0, 1)).nonzero()[:, 0]
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def _weights_read(run: Run) -> Tensor:
    """(B, R, N) weights of the rows that are read: the one that feeds the head, or those that were asked for."""
    if run.rows_read is None:
        return run.readout_BN[:, None]
    return torch.nn.functional.one_hot(run.rows_read, run.length).float()[None].expand(run.batch.size, -1, -1)
