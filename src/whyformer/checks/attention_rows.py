"""The attention rows of one input that a check changes: which layers, heads and queries, and which keys they weigh.

V variant · R query row · K key of that row · P position. Special tokens keep their weights; what the ordinary tokens
share among themselves is changed. With several streams, positions are those of all streams laid end to end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.roles import Impose
from whyformer.engines.attention.maps import chosen_layers
from whyformer.engines.perturbation.game import game_of_scores
from whyformer.engines.perturbation.variants import Replaced, default_replacement, input_span, left_out
from whyformer.errors import AmbiguousLayout, NotOffered
from whyformer.evaluate.games import asks_each
from whyformer.loan.borrow import module_names
from whyformer.methods.value_contributions import mixing_ratio
from whyformer.parameters import OneOf, Place, Places
from whyformer.run import Run
from whyformer.shapes import Array
from whyformer.study.streams import slices

TINY = 1e-12
SMALL_CHANGE = 0.05  # |Δp| that counts as none
FAR = 0.2  # JSD in nats from which two maps count as different
FEWEST = 3  # units below which a rank correlation is not defined


def jsd(a: Tensor, b: Tensor) -> Tensor:
    """Jensen–Shannon divergence over the last axis in nats: 0 for equal, ln 2 for disjoint distributions."""
    middle = (a + b) / 2
    return ((_kl(a, middle) + _kl(b, middle)) / 2).clamp(min=0)


def _kl(a: Tensor, b: Tensor) -> Tensor:
    # Logarithms are bounded, so that a weight of zero has a finite slope and can be searched over.
    return (a * (a.clamp(min=TINY).log() - b.clamp(min=TINY).log())).sum(-1)


def tvd(p: Tensor, q: Tensor) -> Tensor:
    """Total variation distance of two outputs, ½ Σ_c |p_c - q_c|: |Δp| for two classes."""
    # NOTE[DIFF]: Jain & Wallace average |Δp| over outputs, which for one sigmoid is the same number; Wiegreffe &
    # Pinter's code halves it once more.
    return (p - q).abs().sum(-1) / 2


def probabilities(logits_BC: Tensor) -> Tensor:
    """(B, C) softmax; a single logit becomes the two classes of a sigmoid."""
    logits = logits_BC.float()
    return logits.softmax(1) if logits.shape[1] > 1 else _both(logits.sigmoid())


def _both(yes_B1: Tensor) -> Tensor:
    """(B, 2) the probability, or share, of "no" and of "yes"."""
    return torch.cat([1 - yes_B1, yes_B1], 1)


def kendall(a: Array, b: Array) -> tuple[float, float]:
    """Kendall's τ-b and its p-value; NaN for fewer than three units or constant scores."""
    from scipy.stats import kendalltau

    if len(a) < FEWEST or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan"), float("nan")
    correlation = kendalltau(a, b)
    return float(correlation.statistic), float(correlation.pvalue)


def rank_agreement(a: Array, b: Array) -> float:
    """Spearman's ρ; 1 where both are the same numbers (also constant ones), NaN where only one of them is constant."""
    from scipy.stats import rankdata

    a, b = np.asarray(a, float), np.asarray(b, float)
    if a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-7 * max(1e-12, float(np.abs(a).max(initial=0)))):
        return 1.0
    if len(a) < FEWEST or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])


def mean_known(values: Any) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    known = np.asarray([v for v in values if not np.isnan(v)], float)
    return float(known.mean()) if len(known) else float("nan")


NOTHING = 1e-6  # a change of similarity that is none

IN_SHARES = (
    "The model compares two inputs: |Δp| is the change of their similarity as a share of the effect of all units on it."
)


def said_of(run: Run) -> Callable[[Tensor], Tensor]:
    """Return a function of (V, C) logits: (V, C) probabilities, or (V, 2) "no" and "yes" of a single value."""
    if asks_each(run.modality, run.logits.shape[1]):
        index = run.targets[0].index
        return lambda logits_VC: _both(logits_VC.float()[:, [index]].sigmoid())
    if run.modality.mean.outcome != "similarity":
        return probabilities
    # Scaled by a hundred, the sigmoid of a similarity is 1 whatever happens, so the share that is left of it counts:
    # (s - s∅) / (s(x) - s∅), with s∅ that of both inputs with every unit replaced.
    whole, empty = float(run.value_B[0]), value_of_nothing(run)
    if abs(whole - empty) < NOTHING:
        raise NotOffered("the similarity is the same with all units masked, so attention cannot change it.")
    return lambda logits_VC: _both((logits_VC.float() - empty) / (whole - empty))


def value_of_nothing(run: Run, replacement: Any = None) -> float:
    """The explained value with every ordinary unit replaced."""
    units = [i for i, special in enumerate(run.units[0].special) if not special]
    everything_away = Replaced(run, 0, [units], replacement or run.modality.mask.offered(run.batch.asked.segments)[0])
    return float(game_of_scores(run, 0, everything_away, 1).scores(np.array([[False]]))[0])


def column_of(run: Run) -> int:
    """The column of the explained class in what ``said_of`` returns."""
    classes = run.logits.shape[1]
    alone = classes == 1 or run.modality.mean.outcome == "similarity" or asks_each(run.modality, classes)
    return 1 if alone else run.targets[0].index


Rows = Annotated[str, OneOf("readout", "all")]
Choice = str | Place | Places


@dataclass(frozen=True)
class LayerRows:
    """The rows of one attention call."""

    layer: int  # number of the call
    heads: tuple[int, ...]
    rows: tuple[int, ...]  # query rows of the call
    weights_HRK: Tensor  # the model's own weights
    free_RK: Tensor  # keys whose weights may change: real, ordinary, and not hidden from the row
    read_R: Tensor  # how much each row feeds the head; sums to 1
    keys_RK: Tensor  # the position that each key is
    positions: int  # how many there are
    said: Callable[[Tensor], Tensor]  # see said_of
    asks: tuple[str, str] = ("", "")  # the streams of queries and keys

    @property
    def even_HRK(self) -> Tensor:
        """Uniform weights over the free keys."""
        even = self.free_RK / self.free_RK.sum(-1, keepdim=True).clamp(min=1)
        return even.expand(self.weights_HRK.shape)

    def full(self, share_VHRK: Tensor) -> Tensor:
        """Return whole rows from distributions over the free keys, which keep their total weight."""
        mass = (self.weights_HRK * self.free_RK).sum(-1, keepdim=True)
        return self.weights_HRK * ~self.free_RK + mass * share_VHRK

    def shown(self, rows_VHRK: Tensor) -> Tensor:
        """(V, P) what a reader would be shown: heads averaged, the rows that feed the head, ordinary tokens."""
        read_VRK = self.read_R[:, None] * rows_VHRK.mean(1)
        read = self.summed(read_VRK) * self.free_P
        return read / read.sum(-1, keepdim=True).clamp(min=torch.finfo(read.dtype).tiny)

    @property
    def free_P(self) -> Tensor:
        """Positions whose weight may change in some row."""
        return self.summed(self.free_RK[None].to(self.weights_HRK.dtype))[0] > 0

    def summed(self, values_VRK: Tensor) -> Tensor:
        """(V, P) values of keys added up over the rows, by the position they are at."""
        empty = values_VRK.new_zeros(len(values_VRK), self.positions)
        return empty.index_add(1, self.keys_RK.flatten(), values_VRK.flatten(1))

    def write(self, attention_BHQK: Tensor, rows_VHRK: Tensor, first: int) -> Tensor:
        """Return the attention of all copies with the rows of these heads in it; first: number of its first head."""
        here = [(i, h - first) for i, h in enumerate(self.heads) if 0 <= h - first < attention_BHQK.shape[1]]
        if not here:
            return attention_BHQK
        source, at = (torch.tensor(list(t), device=rows_VHRK.device) for t in zip(*here, strict=True))
        queries = torch.tensor(self.rows, device=rows_VHRK.device)
        changed = attention_BHQK.clone()
        changed[:, at[:, None], queries] = rows_VHRK[:, source].to(changed.dtype)
        return changed

    def of(self, values_BHQK: Tensor) -> Tensor:
        """(H, R, K) these heads and rows of something recorded with the attention of one input."""
        return values_BHQK[0].float()[list(self.heads)][:, list(self.rows)]


def rows_of(run: Run, layers: Choice = "last", heads: Choice = "all", rows: str = "readout") -> list[LayerRows]:
    """Return the rows to change: all, or those that feed the head. Layers are counted for each pair of streams."""
    if run.modality.read.mixes_rows:
        raise NotOffered("attention also runs over the rows of the table: there is no single attention row to change.")
    if run.windowed:
        raise NotOffered("attention runs inside windows here: no row of it has a weight for every patch.")
    run.record(multi_stream=True)  # refuses what cannot be read
    said = said_of(run)
    # Numbers of the attention calls, by the streams of queries and keys.
    by_pair = {(run.modality.stream,) * 2: list(range(len(run.record(multi_stream=True).sites)))}
    if run.multi_stream:
        by_pair = {(s, t): run.schedule.between(s, t) for s in run.stream_sizes for t in run.stream_sizes}
    every = [
        _rows_of_call(run, calls[number], asks, heads, rows, said)
        for asks, calls in by_pair.items()
        if calls
        for number in chosen_layers("mean" if layers == "all" else layers, len(calls))
    ]
    places = [f for f in every if f is not None]
    if max((int(f.free_RK.sum(-1).max()) for f in places), default=0) < 2:
        raise NotOffered("fewer than two ordinary units receive attention here: there are no weights to change.")
    return places


def _rows_of_call(
    run: Run, call: int, asks: tuple[str, str], heads: Choice, rows: str, said: Callable[[Tensor], Tensor]
) -> LayerRows | None:
    """Return the rows of one call; None if none of them feeds the head, or too few keys could change."""
    site = run.record(multi_stream=True).sites[call]
    attention = site.attention_BHQK[0].float()
    where = slices(run.stream_sizes) if run.multi_stream else {asks[0]: slice(0, run.length)}
    queries, keys = where[asks[0]], where[asks[1]]
    whole = queries.stop - queries.start
    first, count = site.first_query if attention.shape[1] != whole else 0, attention.shape[1]
    weight = (run.readout_BN if rows == "readout" else run.keep_BN)[0, queries][first : first + count].float()
    asked = weight.nonzero()[:, 0]
    if not len(asked):
        return None
    chosen = range(site.heads) if heads == "all" else chosen_layers(heads, site.heads)
    attention = attention[list(chosen)][:, asked]
    free = (run.keep_BN[0] & ~run.special_BN[0])[keys] & (attention > 0).any(0)
    if run.multi_stream and int(free.sum(-1).max()) < 2:  # object queries that look at each other
        return None
    place = torch.arange(keys.start, keys.stop, device=attention.device).expand(free.shape)
    read, everything = weight[asked] / weight[asked].sum(), run.keep_BN.shape[1]
    return LayerRows(call, tuple(chosen), tuple(asked.tolist()), attention, free, read, place, everything, said, asks)


def logits_with(run: Run, places: Sequence[LayerRows], maps: Sequence[Tensor]) -> Tensor:
    """(V, C) logits of V copies of the input, each with its own rows (V, H, R, K) imposed at the places."""
    by_layer = {place.layer: (place, rows) for place, rows in zip(places, maps, strict=True)}

    def rewrite(layer: int, first: int, attention_BHQK: Tensor) -> Tensor:
        if layer not in by_layer:
            return attention_BHQK
        place, rows = by_layer[layer]
        return place.write(attention_BHQK, rows, first)

    size = len(maps[0])
    copies = run.batch.select([0] * size)
    run.forwards_B[0] += size
    try:
        with Impose(size, module_names(run.modality.model), run.study.batch_axes, rewrite=rewrite):
            return run.output.logits(copies)
    except AmbiguousLayout:
        if size == 1:
            raise
    # Batch and heads have the same size here and cannot be distinguished; with one copy at a time they can.
    run.forwards_B[0] -= size
    return torch.cat([logits_with(run, places, [m[i : i + 1] for m in maps]) for i in range(size)])


@torch.no_grad()
def outputs_with(run: Run, places: Sequence[LayerRows], maps: Sequence[Tensor]) -> Tensor:
    """(V, C) probabilities of V copies, each with its own rows, in batches."""
    size = len(maps[0])
    parts = [range(i, min(i + run.batch_size, size)) for i in range(0, size, run.batch_size)]
    said = places[0].said
    return torch.cat([said(logits_with(run, places, [m[p.start : p.stop] for m in maps])) for p in parts])


# What attention is compared with: gradients, leave-one-out, and how much passes through it at all.


def gradient_x_input(run: Run) -> Array:
    """(U,) |Σ_d x_d · ∂s/∂x_d|, attention held constant, as the authors do; NaN without gradient."""
    constant = Impose(1, module_names(run.modality.model), run.study.batch_axes, rewrite=lambda _, __, a: a.detach())
    try:
        run.require_one_input()
        trace = run.traced(constant)
        leaf = trace.leaves[0]
        # Can the numbers of the input be shared out to units? Those of raw audio cannot.
        shared = run.modality.place.pixels or (leaf.ndim > 1 and leaf.shape[1] <= run.length)
        whole = len(trace.leaves) == 1 and shared
        inputs = leaf if whole else trace.tokens()
        (grad,) = run.differentiated(trace, [inputs])
        run.require_input_slopes()
    except NotOffered:
        return np.full(int(run.keep_BN[0].sum()), np.nan)
    detail = (inputs.detach() * grad).float()
    scores = run.modality.place.per_unit(detail, run) if whole else trace.batch_first(detail).sum(2)
    return scores[0, run.keep_BN[0]].abs().cpu().numpy()


def leave_one_out(run: Run) -> Array:
    """(U,) |Δp| when a unit is replaced; NaN where none can be."""
    count, span = len(run.units[0]), input_span(run, 0)
    try:
        if not run.modality.mask.replacements:
            return np.full(count, np.nan)
        variants = left_out(run, 0, default_replacement(run.modality, run.batch))
    except NotOffered:
        return np.full(count, np.nan)
    said, after = said_of(run), []
    for start in range(span.start, span.stop, run.batch_size):
        rows = range(start, min(start + run.batch_size, span.stop))
        present = ~np.eye(count, dtype=bool)[rows]
        drawn = [run.forward(variants.batch(present, draw), [0] * len(rows)) for draw in range(variants.draws)]
        after.append(torch.from_numpy(variants.mean([said(logits).cpu().numpy() for logits in drawn])))
    changes: Array = np.zeros(count, dtype=np.float32)  # what the model puts around a text stays
    changes[span] = tvd(torch.cat(after), said(run.logits).cpu()).numpy()
    return changes


def mixing(run: Run, place: LayerRows) -> float:
    """Kobayashi et al. 2021's mixing ratio of the rows in this layer; NaN where blocks cannot be taken apart."""
    if run.multi_stream:
        return float("nan")
    try:
        ratio = mixing_ratio(run, level="attn_res_ln")[0, place.layer]
    except NotOffered:
        return float("nan")
    first = run.record().sites[place.layer].first_query
    rows = torch.tensor(place.rows, device=ratio.device) + first
    return float((ratio[rows] * place.read_R.to(ratio)).sum())
