"""What heads do, judged by where they look: positional, separator, rare-token heads."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from whyformer.parameters import BatchSize, checked
from whyformer.result import Float32, Result, dataframe
from whyformer.run import Run
from whyformer.session import Session, passing_through
from whyformer.types import Site
from whyformer.views.heads import roles_view
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd


# Where the positions of an input are: along a text, or on the grid of an image's patches.


def places(run: Run, row: int) -> Tensor:
    """(N, 1) or, on a grid, (N, 2) coordinates of one input's attention positions; NaN where there is none.

    Padding has no place; on a grid neither have special tokens. In a text, positions are counted among the real ones.
    """
    units, keep = run.units[row], run.keep_BN[row]
    real = keep.nonzero()[:, 0]
    if units.grid is None:
        result = torch.full((len(keep), 1), torch.nan, device=keep.device)
        result[real, 0] = torch.arange(len(real), device=keep.device, dtype=torch.float)
        return result
    result = torch.full((len(keep), 2), torch.nan, device=keep.device)
    patches = real[~torch.tensor(units.special, device=keep.device)]
    index = torch.arange(len(patches), device=keep.device)
    columns = units.grid[1]
    result[patches] = torch.stack([index // columns, index % columns], 1).float()
    return result


def distances(places_NA: Tensor) -> Tensor:
    """(N, N) Euclidean distance between positions, in tokens or patches; NaN where one has no place."""
    return (places_NA[:, None] - places_NA[None]).square().sum(-1).sqrt()


# What heads do, judged by where they look: positional, separator, rare-token heads.


Array = np.ndarray[Any, Any]
Offset = tuple[int, ...]

POSITIONAL = 0.9  # Voita et al. 2019: at least 90 % of the argmaxes at one relative position
SEPARATOR = 0.5  # ours: most of the attention
RARE, RARE_LIFT = 0.5, 2.0  # ours: most argmaxes, and twice what chance gives


@dataclass(frozen=True, eq=False)
class HeadRoles(Result):
    """Shares (L, H) behind each role; NaN where a layer has fewer heads, or where a role needs text."""

    what: ClassVar[str] = "head roles"
    axes: ClassVar[Mapping[str, str]] = {
        "paths": "L",
        "positional": "LH",
        "offset": "L",
        "separator": "LH",
        "first": "LH",
        "rare": "LH",
    }

    positional: Float32  # share of argmaxes at the best fixed offset
    offset: list[list[Offset]]  # that offset: tokens to the right, or (rows down, columns right) on a grid
    separator: Float32  # attention on separators: special tokens but the first position, and punctuation
    first: Float32  # attention on the first position (an attention sink, where it is large)
    rare: Float32  # share of argmaxes on the rarest token of the input
    rare_chance: float  # what a head that looks anywhere would get
    paths: tuple[str, ...]
    inputs: int

    def name(self, layer: int, head: int) -> str:
        """The role of a head by the thresholds of this file, "" where none fits."""
        if self.positional[layer, head] >= POSITIONAL:
            return f"positional {', '.join(f'{d:+d}' for d in self.offset[layer][head])}"
        if self.separator[layer, head] >= SEPARATOR:
            return "separator"
        if self.first[layer, head] >= SEPARATOR:
            return "first position"
        if self.rare[layer, head] >= max(RARE, RARE_LIFT * self.rare_chance):
            return "rare token"
        return ""

    def named(self) -> dict[tuple[int, int], str]:
        """All heads with a role."""
        layers, heads = self.positional.shape
        names = {(i, j): self.name(i, j) for i in range(layers) for j in range(heads)}
        return {at: name for at, name in names.items() if name}

    def to_frame(self) -> pd.DataFrame:
        """One row per head."""
        return dataframe(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        layers, heads = self.positional.shape
        return [
            {
                "layer": i,
                "head": j,
                "role": self.name(i, j),
                "positional": float(self.positional[i, j]),
                "offset": self.offset[i][j],
                "separator": float(self.separator[i, j]),
                "first": float(self.first[i, j]),
                "rare": float(self.rare[i, j]),
            }
            for i in range(layers)
            for j in range(heads)
            if not np.isnan(self.positional[i, j])
        ]


view_of.register(HeadRoles, roles_view)


@checked
def roles(
    model: Any,
    inputs: Any,
    *,
    processor: Any = None,
    frequencies: Mapping[str, float] | None = None,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    progress: bool | None = None,
) -> HeadRoles:
    """Where does each head look: at a fixed offset, at separators, at the first position, at rare tokens?

    Rows of special tokens are left out; a head's choice in a row is its largest weight over all real positions.
    frequencies: how often each token occurs, from a corpus; counted over the inputs by default.

    Misleads when: the inputs are few or short. Many offsets are tried, so the best of them is flattered, and in a
    handful of sentences nearly every token is a rarest one (see ``rare_chance``).
    """
    opened = passing_through(
        model, inputs, processor=processor, attention_at=attention_at, batch_size=batch_size, progress=progress
    )
    with opened as session:
        text = session.modality.stream == "text"
        counts = frequencies if frequencies is not None else _token_counts(session) if text else {}
        tally = _Tally()
        session.each(lambda run, rows: tally.add(run, counts if text else None), label="roles")
        return tally.result(session)


def _token_counts(session: Session) -> Counter[str]:
    counts: Counter[str] = Counter()
    for start in range(0, session.size, session.step):
        run = session.run(range(start, min(start + session.step, session.size)))
        for units in run.units:
            counts.update(units.labels)
    return counts


def is_punctuation(label: str) -> bool:
    bare = label.removeprefix("##").lstrip("Ġ▁ ").rstrip()
    return bool(bare) and all(unicodedata.category(c)[0] in "PS" for c in bare)


class _Tally:
    """Counts over all rows of all inputs."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = defaultdict(int)  # by layer: the last may ask for one row only
        self.offsets: dict[int, dict[Offset, Tensor]] = defaultdict(dict)
        self.sums: dict[str, dict[int, Tensor]] = {name: {} for name in ("separator", "first", "rare")}
        self.chance = 0.0
        self.text = True

    def add(self, run: Run, counts: Mapping[str, float] | None) -> None:
        self.text = counts is not None
        for layer, site in enumerate(run.record().sites):
            for row in range(run.batch.size):
                self._one(run, layer, site, row, counts)

    def _one(self, run: Run, layer: int, site: Site, row: int, counts: Mapping[str, float] | None) -> None:
        keep = run.keep_BN[row]
        special = run.special_BN[row]
        asked = torch.arange(site.attention_BHQK.shape[2], device=keep.device) + site.first_query
        chosen = keep[asked] & ~special[asked]
        if not chosen.any():  # a last layer that asks for [CLS] only
            chosen = keep[asked]
        attention_HQK = site.attention_BHQK[row].float()[:, chosen] * keep.float()
        queries = asked[chosen]
        largest_HQ = attention_HQK.argmax(-1)
        self.rows[layer] += len(queries)
        self._count_offsets(layer, places(run, row), queries, largest_HQ)
        real = keep.nonzero()[:, 0]
        _sum(self.sums["first"], layer, attention_HQK[..., real[0]].sum(1))
        if counts is None:
            return
        units = run.units[row]
        pause = torch.tensor([is_punctuation(label) for label in units.labels], device=keep.device)
        ends = special[real] & (torch.arange(len(real), device=keep.device) > 0)
        _sum(self.sums["separator"], layer, attention_HQK[..., real[pause | ends]].sum((1, 2)))
        often = [counts.get(label, 0) for label in units.labels]
        candidates = [n for n, is_special in zip(often, units.special, strict=True) if not is_special]
        least = min(candidates, default=0)
        rare = [n == least and not is_special for n, is_special in zip(often, units.special, strict=True)]
        hit = torch.isin(largest_HQ, real[torch.tensor(rare, device=keep.device)])
        _sum(self.sums["rare"], layer, hit.float().sum(1))
        if layer == 0:
            self.chance += len(queries) * sum(rare) / len(real)

    def _count_offsets(self, layer: int, places_NA: Tensor, queries: Tensor, largest_HQ: Tensor) -> None:
        moves_HQA = places_NA[largest_HQ] - places_NA[queries][None]
        tallies = self.offsets[layer]
        for head, moves in enumerate(moves_HQA):
            real = moves[~moves.isnan().any(-1)]
            for move, count in zip(*real.long().unique(dim=0, return_counts=True), strict=True):
                at = tallies.setdefault(tuple(move.tolist()), torch.zeros(len(largest_HQ)))
                at[head] += int(count)

    def result(self, session: Session) -> HeadRoles:
        widest = max(heads for _, heads in session.layers)
        positional = np.full((len(session.layers), widest), np.nan, np.float32)
        offset: list[list[Offset]] = []
        for layer, (_, heads) in enumerate(session.layers):
            moves = sorted(self.offsets[layer], key=lambda m: (sum(map(abs, m)), m))  # ties go to the nearest
            counts = torch.stack([self.offsets[layer][m] for m in moves]) if moves else torch.zeros(1, heads)
            best = counts.argmax(0)
            positional[layer, :heads] = (counts.amax(0) / max(self.rows[layer], 1)).numpy()
            offset.append([moves[int(i)] if moves else () for i in best])
        return HeadRoles(
            positional=positional,
            offset=offset,
            separator=self._means("separator", positional),
            first=self._means("first", positional),
            rare=self._means("rare", positional),
            rare_chance=self.chance / max(self.rows[0], 1),
            paths=session.paths,
            inputs=session.size,
        )

    def _means(self, name: str, like: Array) -> Array:
        result = np.full(like.shape, np.nan, np.float32)
        for layer, total in self.sums[name].items():
            result[layer, : len(total)] = (total / max(self.rows[layer], 1)).cpu().numpy()
        return result


def _sum(sums: dict[int, Tensor], layer: int, values_H: Tensor) -> None:
    sums[layer] = sums[layer] + values_H if layer in sums else values_H
