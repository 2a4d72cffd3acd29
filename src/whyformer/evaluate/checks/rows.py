"""The attention rows of one input that a check changes: which layers, heads and queries, and which keys they weigh.

V variant · R query row. Special tokens keep their weights; what the ordinary tokens share among themselves is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer.capture.impose import Impose
from whyformer.capture.paths import module_names
from whyformer.errors import AmbiguousLayout, NotOffered, one_of
from whyformer.evaluate.checks.divergence import probabilities
from whyformer.relevance import chosen_layers
from whyformer.run import Run

ROWS = ("readout", "all")
Choice = str | int | Sequence[int]


@dataclass(frozen=True)
class LayerRows:
    """The rows of one layer."""

    layer: int
    heads: tuple[int, ...]
    rows: tuple[int, ...]  # query rows of the site
    own_HRK: Tensor  # the model's own weights
    free_RK: Tensor  # keys whose weights may change: real, ordinary, and not hidden from the row
    read_R: Tensor  # how much each row feeds the head; sums to 1

    @property
    def share_HRK(self) -> Tensor:
        """The model's own distribution over the free keys; uniform where none of them has any weight."""
        inside = self.own_HRK * self.free_RK
        total = inside.sum(-1, keepdim=True)
        return torch.where(total > 0, inside / total.clamp(min=torch.finfo(total.dtype).tiny), self.even_HRK)

    @property
    def even_HRK(self) -> Tensor:
        """The same share for every free key."""
        even = self.free_RK / self.free_RK.sum(-1, keepdim=True).clamp(min=1)
        return even.expand(self.own_HRK.shape)

    def full(self, share_VHRK: Tensor) -> Tensor:
        """Distributions over the free keys → whole rows: their sum is what it was, the other keys keep theirs."""
        mass = (self.own_HRK * self.free_RK).sum(-1, keepdim=True)
        return self.own_HRK * ~self.free_RK + mass * share_VHRK

    def shown(self, rows_VHRK: Tensor) -> Tensor:
        """(V, K) what a reader would be shown: heads averaged, the rows that feed the head, ordinary tokens."""
        read = torch.einsum("r,vrk->vk", self.read_R, rows_VHRK.mean(1)) * self.free_RK.any(0)
        return read / read.sum(-1, keepdim=True).clamp(min=torch.finfo(read.dtype).tiny)


def rows_of(run: Run, layers: Choice = "last", heads: Choice = "all", rows: str = "readout") -> list[LayerRows]:
    """The rows to change. ``layers``: "last", "all", a number or list; ``heads``: "all", a number or list;
    ``rows``: "readout", those that feed the head in the last layer, or "all".
    """
    one_of("rows", rows, ROWS)
    if run.subject.mixes_rows:
        raise NotOffered("attention runs over the rows of a table too: there is no one row of attention to change.")
    sites = run.record().sites
    picked = chosen_layers("mean" if layers == "all" else layers, len(sites))
    found = []
    for layer in picked:
        site = sites[layer]
        own = site.attention_BHQK[0].float()
        chosen = range(site.heads) if heads == "all" else chosen_layers(heads, site.heads)
        first, count = site.first_query, own.shape[1]
        weight = run.readout_BN[0, first : first + count].float()
        if rows == "all":
            weight = run.keep_BN[0, first : first + count].float()
        queries = weight.nonzero()[:, 0]
        ordinary = run.keep_BN[0] & ~run.special_BN[0]
        own = own[list(chosen)][:, queries]
        free = ordinary & (own > 0).any(0)
        found.append(
            LayerRows(
                layer,
                tuple(chosen),
                tuple(queries.tolist()),
                own,
                free,
                weight[queries] / weight[queries].sum(),
            )
        )
    if max(int(f.free_RK.sum(-1).max()) for f in found) < 2:
        raise NotOffered("fewer than two ordinary units share attention here: there is nothing to change.")
    return found


def logits_with(run: Run, places: Sequence[LayerRows], maps: Sequence[Tensor]) -> Tensor:
    """(V, C) logits of V copies of the input, each with its own rows (V, H, R, K) imposed at the places."""
    by_layer = {place.layer: (place, rows) for place, rows in zip(places, maps, strict=True)}

    def rewrite(layer: int, first: int, attention_BHQK: Tensor) -> Tensor:
        if layer not in by_layer:
            return attention_BHQK
        place, rows = by_layer[layer]
        here = [(i, h - first) for i, h in enumerate(place.heads) if 0 <= h - first < attention_BHQK.shape[1]]
        if not here:
            return attention_BHQK
        given, at = (torch.tensor(list(t), device=rows.device) for t in zip(*here, strict=True))
        queries = torch.tensor(place.rows, device=rows.device)
        changed = attention_BHQK.clone()
        changed[:, at[:, None], queries] = rows[:, given].to(changed.dtype)
        return changed

    size = len(maps[0])
    copies = run.batch.select([0] * size)
    run.forwards_B[0] += size
    try:
        with Impose(size, module_names(run.subject.model), run.study.batch_axes, rewrite=rewrite):
            return run.head.logits(copies)
    except AmbiguousLayout:
        if size == 1:
            raise
    # Batch and heads could not be told apart at this batch size; one copy at a time leaves no doubt.
    run.forwards_B[0] -= size
    return torch.cat([logits_with(run, places, [m[i : i + 1] for m in maps]) for i in range(size)])


@torch.no_grad()
def outputs_with(run: Run, places: Sequence[LayerRows], maps: Sequence[Tensor]) -> Tensor:
    """(V, C) probabilities, in batches."""
    size = len(maps[0])
    parts = [range(i, min(i + run.batch_size, size)) for i in range(0, size, run.batch_size)]
    return torch.cat([probabilities(logits_with(run, places, [m[p.start : p.stop] for m in maps])) for p in parts])
