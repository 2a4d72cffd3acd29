"""Roles of heads by their attention patterns: positional, separator, rare-token, induction."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import BadInput, NotOffered
from whyformer.heads.importance_kinds import Call, calls, parts_of, place_of, rows_of, table, through
from whyformer.inputs.text import TextInput
from whyformer.parameters import BatchSize, Count, Limits, Place, Seed, checked
from whyformer.results.codec import Float32
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.run import Run
from whyformer.run.session import LoadedModel, Session, loaded_as, passing_through
from whyformer.shapes import Array
from whyformer.study.streams import slices
from whyformer.views.head_views import induction_view, roles_view
from whyformer.views.view import view_of

# What the heads of a language model do with repetition: previous-token, duplicate-token and induction heads.
#
# Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Olsson et al. 2022 (arXiv:2209.11895). The
# model reads random tokens twice, [A B C D][A B C D]: nothing but the repetition can be known.


REPETITION = ("previous_token", "duplicate_token", "induction")


@dataclass(frozen=True, eq=False)
class InductionScores(Result):
    """Mean attention (L, H) of each pattern on repeated random tokens, between 0 and 1."""

    what: ClassVar[str] = "induction scores"
    axes: ClassVar[Mapping[str, str]] = {"paths": "L", **dict.fromkeys(REPETITION, "LH")}

    previous_token: Float32
    duplicate_token: Float32
    induction: Float32
    paths: tuple[str, ...]
    length: int
    sequences: int

    def to_frame(self) -> DataFrame:
        """Return one row per head."""
        return dataframe(rows_of(**{name: getattr(self, name) for name in REPETITION}))


@checked
def induction(
    model: Any,
    *,
    processor: Any = None,
    tokenizer: Any = None,
    length: Annotated[int, Limits(2, 10**6)] = 20,
    sequences: Count = 8,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
) -> InductionScores:
    """Score each head of a causal model on ``sequences`` of ``length`` random tokens, each repeated once.

    Misleads when: a head attends there for another reason: a head that always attends ``length`` - 1 positions back
    scores as an induction head. Try two lengths.
    """
    loaded = loaded_as(LoadedModel, model, processor, attention_at)
    ids = repeated_tokens(loaded, length, sequences, seed)
    with passing_through(loaded, {"input_ids": ids}, batch_size=batch_size, progress=progress) as session:
        scores = session.gather(lambda run, rows: _scores(run, length), label="induction").mean(0)
        previous, duplicate, induced = scores.astype(np.float32)
        return InductionScores(previous, duplicate, induced, session.paths, length, sequences)


def repeated_tokens(loaded: LoadedModel, length: int, sequences: int, seed: int) -> Tensor:
    """(S, 2·length) ids, or one more with a start token where the model has one."""
    modality = TextInput(loaded.model, loaded.processor)
    embedding = modality.read.embedding
    config = getattr(loaded.model, "config", None)
    others = any(
        name.startswith(("pixel_", "visual_", "image_", "input_features")) for name in modality.read.parameters
    )
    if embedding is None or others or getattr(config, "is_encoder_decoder", False):
        raise NotOffered("random tokens are supported for models of one text with a known token embedding only.")
    special = modality.read.special_ids
    start = getattr(config, "bos_token_id", None)
    words = torch.tensor([i for i in range(embedding.num_embeddings) if i not in special])
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.stack([words[torch.randperm(len(words), generator=generator)[:length]] for _ in range(sequences)])
    if drawn.shape[1] < length:
        raise BadInput(f"length={length}: the vocabulary has only {drawn.shape[1]} tokens.")
    twice = torch.cat([drawn, drawn], 1)
    return twice if start is None else torch.cat([torch.full((sequences, 1), int(start)), twice], 1)


def _scores(run: Run, period: int) -> Tensor:
    """(b, 3, L, H)"""
    layers: list[list[Tensor]] = [[], [], []]
    for site in run.record().sites:
        attention = site.attention_BHQK.float()
        if bool(attention.triu(1).any()):
            raise NotOffered(
                f"{site.path} attends to later tokens: previous-token, duplicate-token and induction scores are for "
                "causal models. For encoders use heads.roles."
            )
        # The token before; in the second copy, the same token in the first, and the one after that.
        layers[0].append(attention.diagonal(-1, dim1=-2, dim2=-1).mean(-1))
        layers[1].append(attention.diagonal(-period, dim1=-2, dim2=-1)[..., -period:].mean(-1))
        layers[2].append(attention.diagonal(1 - period, dim1=-2, dim2=-1)[..., -period:].mean(-1))
    return torch.stack([table(kind) for kind in layers], 1)


def places(run: Run, row: int) -> Tensor:
    """(N, 1) or, on a grid, (N, 2) coordinates of positions in their stream; NaN for padding, and beside the grid."""
    units, keep = run.units[row], run.keep_BN[row]
    real = keep.nonzero()[:, 0]
    if units.grid is None:
        result = torch.full((len(keep), 1), torch.nan, device=keep.device)
        for where in slices(run.stream_sizes).values() if run.multi_stream else [slice(None)]:
            real = keep[where].nonzero()[:, 0]
            result[where][real, 0] = torch.arange(len(real), device=keep.device, dtype=torch.float)
        return result
    result = torch.full((len(keep), 2), torch.nan, device=keep.device)
    on_image = [units.is_patch(i) for i in range(len(units))]
    patches = real[torch.tensor(on_image, device=keep.device)]
    index = torch.arange(len(patches), device=keep.device)
    columns = units.grid[1]
    result[patches] = torch.stack([index // columns, index % columns], 1).float()
    return result


Offset = tuple[int, ...]

POSITIONAL = 0.9  # Voita et al. 2019: at least 90 % of the argmaxes at one relative position
SEPARATOR = 0.5  # ours: most of the attention
RARE, RARE_LIFT = 0.5, 2.0  # ours: most argmaxes, and twice what chance gives
ALIGNED = 0.5  # ours: most argmaxes, and twice what chance gives


@dataclass(frozen=True, eq=False)
class HeadRoles(Result):
    """Shares (L, H) for each role; NaN where a layer has fewer heads, or a role needs text."""

    what: ClassVar[str] = "head roles"
    later: ClassVar[tuple[str, ...]] = ("parts", "aligned")
    axes: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("paths", "parts", "offset"), "L"),
        **dict.fromkeys(("positional", "separator", "first", "rare", "aligned"), "LH"),
    }

    positional: Float32  # share of argmaxes at the best fixed offset; NaN where words ask patches
    offset: list[list[Offset]]  # that offset: tokens to the right, or (rows down, columns right) on a grid
    separator: Float32  # attention on separators: special tokens but the first position, and punctuation
    first: Float32  # attention on the first position (an attention sink, where it is large)
    rare: Float32  # share of argmaxes on the rarest token of the input
    rare_chance: float  # what a head that looks anywhere would get
    paths: tuple[str, ...]
    inputs: int
    parts: tuple[str, ...] | None = None  # encoder, decoder or cross, per layer, where there are several streams
    aligned: Float32 | None = None  # share of aligned rows of a cross head whose argmax is their source token
    aligned_chance: float = float("nan")  # what a head that looks anywhere would get

    def name(self, layer: int, head: int) -> str:
        """Return the role of a head, or "" if it has none of them."""
        if self.aligned is not None and self.aligned[layer, head] >= max(ALIGNED, RARE_LIFT * self.aligned_chance):
            return "alignment"
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
        """Return all heads that have a role."""
        layers, heads = self.positional.shape
        names = {(i, j): self.name(i, j) for i in range(layers) for j in range(heads)}
        return {at: name for at, name in names.items() if name}

    def to_frame(self) -> DataFrame:
        """Return one row per head."""
        return dataframe(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict per head: its role and the numbers behind it."""
        layers, heads = self.positional.shape
        return [
            {
                "layer": i,
                **place_of(self.parts, i),
                "head": j,
                "role": self.name(i, j),
                "positional": float(self.positional[i, j]),
                "offset": self.offset[i][j],
                **{name: float(getattr(self, name)[i, j]) for name in ("separator", "first", "rare")},
                **({} if self.aligned is None else {"aligned": float(self.aligned[i, j])}),
            }
            for i in range(layers)
            for j in range(heads)
            if not np.isnan(self.first[i, j])
        ]


Alignments = Sequence[Sequence[tuple[Place, Place]]]


@checked
def roles(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    frequencies: Mapping[str, float] | None = None,
    alignments: Alignments | None = None,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    progress: bool | None = None,
) -> HeadRoles:
    """Classify heads by what they attend to: a fixed offset, separators, the first position, rare tokens.

    Rows of special tokens are left out; the position with the largest weight in a row counts. frequencies: how often
    each token occurs, from a corpus; counted over the inputs by default. For translation models, inputs are texts or
    (text, translation) pairs, and the translation is the input of the decoder. alignments: for each input, pairs
    (position of a source token, decoder position that predicts its translation), both counted from 0 with special
    tokens; heads of the cross-attention that attend there are named "alignment".

    Misleads when: the inputs are few or short. Many offsets are tried, so the share of the best one is biased upwards,
    and in a few sentences nearly every token is a rare one (see ``rare_chance``).
    """
    options: dict[str, Any] = {"processor": processor, "attention_at": attention_at, "batch_size": batch_size}
    with through(model, inputs, progress=progress, **options) as session:
        if alignments is not None:
            count = len(alignments)
            if count != session.size:
                raise BadInput(f"{count} alignments for {session.size} inputs: give a list of pairs for each input.")
            if "cross" not in (parts_of(session.study) or ()):
                raise BadInput("alignments are for the cross-attention of an encoder-decoder, and this model has none.")
        text = session.modality.stream in READ
        if frequencies is None:  # counted over the inputs
            starts = range(0, session.size, session.step) if text else ()
            runs = (session.run(range(start, min(start + session.step, session.size))) for start in starts)
            frequencies = Counter(label for run in runs for units in run.units for label in units.labels)
        tally, counts = _Tally(alignments), frequencies if text else None
        session.each(lambda run, rows: tally.add(run, rows, counts), label="roles")
        return tally.result(session)


READ = ("text", "source")  # streams of words


def is_punctuation(label: str) -> bool:
    bare = label.removeprefix("##").lstrip("Ġ▁ ").rstrip()
    return bool(bare) and all(unicodedata.category(c)[0] in "PS" for c in bare)


class _Tally:
    """Counts over all rows of all inputs."""

    def __init__(self, alignments: Alignments | None = None) -> None:
        self.alignments = alignments
        self.rows: dict[int, int] = defaultdict(int)  # by layer: the last may ask for one row only
        self.offsets: dict[int, dict[Offset, Tensor]] = defaultdict(dict)
        self.sums: dict[str, dict[int, Tensor]] = {name: {} for name in ("separator", "first", "rare", "aligned")}
        self.aligned_rows: dict[int, int] = defaultdict(int)
        self.chance = self.aligned_chance = 0.0
        self.looked = 0  # rows that the chance of a rare token was summed over

    def add(self, run: Run, rows: list[int], counts: Mapping[str, float] | None) -> None:
        for call in calls(run):
            for row, index in enumerate(rows):
                if call is not None:
                    self._one(run, call, row, index, counts)

    def _one(self, run: Run, call: Call, row: int, index: int, counts: Mapping[str, float] | None) -> None:
        layer = call.layer
        keep, special = run.keep_BN[row], run.special_BN[row]
        asked = torch.arange(call.queries.start, call.queries.stop, device=keep.device)
        chosen = keep[asked] & ~special[asked]
        if not chosen.any():  # a last layer that asks for [CLS] only
            chosen = keep[asked]
        attention_HQK = call.site.attention_BHQK[row].float()[:, chosen] * keep[call.keys].float()
        queries = asked[chosen]
        largest_HQ = attention_HQK.argmax(-1) + call.keys.start
        self.rows[layer] += len(queries)
        places_NA, tallies = places(run, row), self.offsets[layer]
        for head, moves in enumerate(places_NA[largest_HQ] - places_NA[queries][None]):
            known = moves[~moves.isnan().any(-1)]
            for move, count in zip(*known.long().unique(dim=0, return_counts=True), strict=True):
                tallies.setdefault(tuple(move.tolist()), torch.zeros(len(largest_HQ)))[head] += int(count)
        real = keep[call.keys].nonzero()[:, 0] + call.keys.start
        _sum(self.sums["first"], layer, attention_HQK[..., real[0] - call.keys.start].sum(1))
        if self.alignments is not None and call.streams[0] != call.streams[1]:
            self._count_aligned(run, call, row, self.alignments[index])
        if counts is None:
            return
        units = run.units[row]
        here = [i for i, at in enumerate(keep.nonzero()[:, 0].tolist()) if call.keys.start <= at < call.keys.stop]
        labels, hidden = [units.labels[i] for i in here], [units.special[i] for i in here]
        pause = torch.tensor([is_punctuation(label) for label in labels], device=keep.device)
        ends = special[real] & (torch.arange(len(real), device=keep.device) > 0)
        _sum(self.sums["separator"], layer, attention_HQK[..., real[pause | ends] - call.keys.start].sum((1, 2)))
        often = [counts.get(label, 0) for label in labels]
        least = min((n for n, is_special in zip(often, hidden, strict=True) if not is_special), default=0)
        rare = [n == least and not is_special for n, is_special in zip(often, hidden, strict=True)]
        hit = torch.isin(largest_HQ, real[torch.tensor(rare, device=keep.device)])
        _sum(self.sums["rare"], layer, hit.float().sum(1))
        if layer == 0:
            self.looked += len(queries)
            self.chance += len(queries) * sum(rare) / len(real)

    def _count_aligned(self, run: Run, call: Call, row: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Rows that write a word of the source: is the largest weight on it?"""
        keep = run.keep_BN[row]
        sources = keep[call.keys].nonzero()[:, 0].tolist()
        targets = {at: i for i, at in enumerate(keep[call.queries].nonzero()[:, 0].tolist())}
        wanted: dict[int, set[int]] = defaultdict(set)
        for source, target in pairs:
            if not (0 <= source < len(sources) and target >= 0):
                raise BadInput(f"alignments name source token {source}, and that text has {len(sources)} tokens.")
            wanted[target].add(sources[source])
        largest_HQ = call.site.attention_BHQK[row].float()[:, list(targets)].argmax(-1)
        for i, at in enumerate(targets.values()):
            if wanted[at]:
                hit = torch.isin(largest_HQ[:, i], torch.tensor(sorted(wanted[at]), device=keep.device))
                _sum(self.sums["aligned"], call.layer, hit.float())
                self.aligned_rows[call.layer] += 1
                self.aligned_chance += len(wanted[at]) / len(sources)

    def result(self, session: Session) -> HeadRoles:
        widest = max(heads for _, heads in session.layers)
        positional = np.full((len(session.layers), widest), np.nan, np.float32)
        offset: list[list[Offset]] = []
        many_streams = parts_of(session.study) is not None
        for layer, (_, heads) in enumerate(session.layers):
            moves = sorted(self.offsets[layer], key=lambda m: (sum(map(abs, m)), m))  # ties go to the nearest
            counts = torch.stack([self.offsets[layer][m] for m in moves]) if moves else torch.zeros(1, heads)
            best = counts.argmax(0)
            if moves or not many_streams:  # words that ask patches have no offset
                positional[layer, :heads] = (counts.amax(0) / max(self.rows[layer], 1)).numpy()
            offset.append([moves[int(i)] if moves else () for i in best])
        aligned_rows = sum(self.aligned_rows.values())
        return HeadRoles(
            positional=positional,
            offset=offset,
            **{name: self._means(name, positional, self.rows) for name in ("separator", "first", "rare")},
            rare_chance=self.chance / max(self.looked, 1),
            paths=session.paths,
            inputs=session.size,
            parts=parts_of(session.study),
            aligned=None if self.alignments is None else self._means("aligned", positional, self.aligned_rows),
            aligned_chance=self.aligned_chance / aligned_rows if aligned_rows else float("nan"),
        )

    def _means(self, name: str, like: Array, rows: Mapping[int, int]) -> Array:
        result = np.full(like.shape, np.nan, np.float32)
        for layer, total in self.sums[name].items():
            result[layer, : len(total)] = (total / max(rows[layer], 1)).cpu().numpy()
        return result


def _sum(sums: dict[int, Tensor], layer: int, values_H: Tensor) -> None:
    sums[layer] = sums[layer] + values_H if layer in sums else values_H


view_of.register(InductionScores, induction_view)
view_of.register(HeadRoles, roles_view)
