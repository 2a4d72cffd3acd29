"""Study a model once: its sites, the row that feeds its head, its patch grid, and whether it leaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.borrow import memory_of
from whyformer.capture.audit import Leak, Probe, audit, audit_streams
from whyformer.capture.capture import observe
from whyformer.capture.direct_readout import direct_rows
from whyformer.capture.embedding import SwapEmbedding
from whyformer.capture.lineage import trace
from whyformer.capture.paths import module_names
from whyformer.capture.probe import Readout, SiteFacts, readout_of, readout_rows
from whyformer.capture.roles import Observe
from whyformer.capture.windows import Windows, windows_of
from whyformer.errors import CaptureError, NotOverUnits, PartlyCaptured
from whyformer.head import Head
from whyformer.schedule import Schedule, is_steady, kind_of, require_steady, schedule_of
from whyformer.streams import links_of, readouts_of, stream_probes
from whyformer.subjects.base import Batch, Subject
from whyformer.subjects.image import ImageSubject
from whyformer.subjects.table import TableSubject
from whyformer.subjects.text import TextSubject
from whyformer.types import Record

UNFOLLOWED = (
    "the model's own {stream} layers are not followed: no attention connects them to the output, their result is "
    "placed among the tokens of another stream. Scores are those of the tokens it became there."
)
LOST = (
    "the model's {stream} layers have {count} position(s) that become no token ([CLS]): what they receive is not shown."
)


@dataclass(frozen=True)
class Study:
    """What is known about a model and a kind of input."""

    sites: tuple[SiteFacts, ...]
    readout: Readout | None
    grid: tuple[int, int] | None
    leak: Leak
    unclaimed: tuple[str, ...]
    extra: int  # positions that the model adds to those of the input (CLS)
    input_length: int
    forwards: int
    front: int | None = None  # how many of those come before the input's; None: all
    trouble: CaptureError | None = field(default=None, compare=False)
    schedule: Schedule | None = None  # streams, and who asks whom
    readouts: dict[str, Readout] = field(default_factory=dict)  # per stream, for several
    windows: Windows | None = None  # where the tokens stand, for attention inside windows
    notes: tuple[str, ...] = ()  # what every explanation has to say about this model

    @property
    def several(self) -> bool:
        """Several streams of tokens, whose maps were put in order."""
        return bool(self.readouts)

    @property
    def batch_axes(self) -> dict[int, int]:
        return {i: s.batch_axis for i, s in enumerate(self.sites) if s.batch_axis is not None}

    @property
    def one_stream(self) -> bool:
        """Plain self-attention over one sequence."""
        return (
            all(s.kind == "self" and s.windows == 1 for s in self.sites)
            and len({(s.keys, s.streams) for s in self.sites}) == 1
        )

    def length(self, subject: Subject, batch: Batch) -> int:
        if not self.sites:
            return input_length(subject, batch) if self.grid is None else self.grid[0] * self.grid[1]
        if self.windows is not None:
            return self.windows.sizes[0]
        if isinstance(subject, TextSubject):
            return input_length(subject, batch) + self.extra
        return self.sites[0].keys


def study_of(subject: Subject, batch: Batch) -> tuple[Study, bool]:
    """The study of this model for this kind of input, and whether it had to be made now."""
    facts = memory_of(subject.model).facts
    mixes = subject.mixes_rows  # asked before any mode is on: the answer may take a pass
    key = _signature(subject, batch)
    if key in facts:
        return facts[key], False
    row = _longest(batch)
    if mixes:
        from whyformer.study_rows import beside_others  # it makes a Study, too

        study = beside_others(subject, batch.select([row]))
    else:
        study = _study(subject, batch.select([row]))
    if study.input_length > 1:  # a single position teaches nothing about rows
        facts[key] = study
    return study, True


def _signature(subject: Subject, batch: Batch) -> tuple[Any, ...]:
    shapes = tuple(
        (k, v.ndim, () if isinstance(subject, TextSubject) else tuple(v.shape[1:])) for k, v in batch.tensors.items()
    )
    layers = sum(1 for _ in subject.model.modules())
    return (type(subject).__name__, subject.main, shapes, subject.form(batch), layers)


def _longest(batch: Batch) -> int:
    return 0 if batch.keep_BN is None else int(batch.keep_BN.sum(1).argmax())


def input_length(subject: Subject, batch: Batch) -> int:
    if isinstance(subject, TableSubject):
        return subject.positions
    tensor = batch.tensors[subject.main]
    return tensor.shape[1] if tensor.ndim > 1 else 1


def _study(subject: Subject, one: Batch) -> Study:
    names = module_names(subject.model)
    head = Head(subject, one)
    found, reached = trace(lambda: head.logits(one), names, subject.inputs(one))
    unclaimed = tuple(str(c) for c in found.softmaxes if not c.claimed and c.looks_like_attention)
    schedule = schedule_of(found.facts, found.calls, reached, subject.stream)
    sites = tuple(
        replace(site, streams=(step.query, step.key), kind=kind_of(site, step, call))
        for site, step, call in zip(found.facts, schedule.steps, found.calls, strict=True)
    )
    length = input_length(subject, one)
    grid = found.grid if sites else _cells(subject, one)
    study = Study(sites, None, grid, Leak(), unclaimed, 0, length, 1, schedule=schedule)
    if not sites:
        return study
    if not study.one_stream:
        return _several(subject, one, study, schedule)
    extra = sites[0].keys - length if isinstance(subject, TextSubject) else 0
    try:
        with torch.enable_grad():
            rows, count, slots = readout_rows(lambda: head.logits(one), names, len(sites) - 1)
    except CaptureError as error:
        return Study(sites, None, found.grid, Leak(), unclaimed, extra, length, 2, trouble=error, schedule=schedule)
    offset = sites[-1].keys if sites[-1].queries == sites[-1].keys else 0
    front = _text_starts(subject, one, head, names) if extra > 0 and isinstance(subject, TextSubject) else None
    real = _real(subject, one, sites[0].keys, front)
    # Rows are numbered among the real positions, so that padding on the left does not count.
    rank = {int(p): i for i, p in enumerate(real.nonzero()[:, 0])}
    if offset:
        rows = [rank[r] for r in rows if r in rank]
        readout = readout_of(rows, count, len(rank), {rank[s] for s in slots if s in rank})
    else:  # the last layer asks for a few rows only; they are named by where their query came from
        readout = _few_rows(subject, one, names, len(rank))
    leak = _leak(subject, one, head, names, extra, real)
    if front is None and readout.kind == "last" and not isinstance(subject, TextSubject):
        front = 0  # the model's own token comes last
    return Study(sites, readout, found.grid, leak, unclaimed, extra, length, 4, front, schedule=schedule)


def _several(subject: Subject, one: Batch, study: Study, schedule: Schedule) -> Study:
    """Several streams: which rows of each feed the head."""
    if len(schedule.streams) == 1 and any(s.windows > 1 for s in study.sites):
        return _windowed(subject, one, study)
    if len(schedule.streams) < 2 or any(s.parallel for s in study.sites):
        return study
    try:
        readouts = readouts_of(subject, one, schedule)
        links = tuple(
            k for k in links_of(subject, one, schedule, readouts) if is_steady(study.sites, schedule, k.source)
        )
        followed = schedule.reduced(readouts, links)
        require_steady(study.sites, followed)
        notes = [UNFOLLOWED.format(stream=s) for s in schedule.streams if s not in followed.streams]
        notes += [LOST.format(count=k.lost, stream=k.source) for k in links if k.lost]
        found = replace(study, readouts=readouts, schedule=followed, notes=tuple(notes), forwards=2 + len(links))
        probes = stream_probes(subject, one, followed)
        if _is_short(subject, one, followed):
            found = replace(found, input_length=1)
        return _audited(subject, one, found, probes, {s.site for s in schedule.steps if s.cross})
    except CaptureError as error:
        return replace(study, trouble=error)


def _is_short(subject: Subject, one: Batch, schedule: Schedule) -> bool:
    """A stream of a single token, of which it cannot be told whether its first or its last row is read."""
    if subject.generates:
        return False  # always the last
    parts = {stream: subject.part(stream, one) for stream in schedule.shown}
    return any(int(p.keep(v, schedule.lengths[s], None)[0].sum()) < 2 for s, (p, v) in parts.items() if s != "queries")


def _windowed(subject: Subject, one: Batch, study: Study) -> Study:
    """Attention inside windows: which tokens they hold, if all of the last ones are pooled by the head."""
    head, names = Head(subject, one), module_names(subject.model)
    try:
        windows = windows_of(lambda: head.logits(one), names)
        rows = direct_rows(lambda: head.logits(one), names)[-1]
    except CaptureError as error:
        return replace(study, trouble=error)
    if len(rows) != windows.placements[-1].tokens_WN.shape[1]:
        return study
    found = replace(study, windows=windows, readout=Readout("mean"), forwards=3)
    return _audited(subject, one, found, [_window_probe(windows)], set())


def _window_probe(windows: Windows) -> Probe:
    """The token in the middle of the first window; of later stages, the one that it is part of may change."""
    first = windows.placements[0].tokens_WN[0]
    place = next(i for i in range(len(first) // 2, len(first)) if first[i] >= 0)
    heard = {windows.sizes[0]: {int(first[place])}}
    alone = torch.zeros(1, windows.sizes[0], 1)
    alone[0, first[place]] = 1
    for stage in range(1, len(windows.sizes)):
        heard[windows.sizes[stage]] = set(windows.merged(alone, 0, stage)[0, :, 0].nonzero()[:, 0].tolist())
    return Probe(0, place, heard)


def _audited(subject: Subject, one: Batch, study: Study, probes: list[Probe], cross: set[int]) -> Study:
    head, names = Head(subject, one), module_names(subject.model)
    leak = audit_streams(lambda: head.logits(one), names, probes, cross) if probes else Leak()
    return replace(study, leak=leak, forwards=study.forwards + (len(probes) + 1 if probes else 0))


def _cells(subject: Subject, one: Batch) -> tuple[int, int] | None:
    """Images of a model without patches are explained in about 8 × 8 cells."""
    if not isinstance(subject, ImageSubject):
        return None
    height, width = one.tensors[subject.main].shape[-2:]
    rows = min(8, height)
    return rows, max(1, min(width, round(rows * width / height)))


def rows_of_each(subject: Subject, batch: Batch, study: Study) -> Tensor:
    """(B, N) readout weights found input by input, for heads that read a position that is no fixed rule."""
    names = module_names(subject.model)
    keep = subject.keep(batch, study.length(subject, batch), study.front)
    weights = torch.zeros(keep.shape, device=keep.device)
    for row in range(batch.size):
        one = batch.select([row])
        head = Head(subject, one)
        rows, _, _ = readout_rows(partial(head.logits, one), names, len(study.sites) - 1)
        weights[row, rows] = 1 / len(rows)
    return weights


def hidden_padding(subject: Subject, batch: Batch) -> Batch:
    """Find padding that a home-made model masks by itself (``ids == 0`` in its forward), where no mask was passed.

    A candidate is a run of the embedding's padding index at either end; it is padding if nobody attends to it.
    """
    if not isinstance(subject, TextSubject) or any("mask" in name for name in batch.tensors):
        return batch
    candidates = _padding_runs(subject, batch.tensors[subject.main])
    rows = candidates.any(1).nonzero()[:, 0].tolist()
    if not rows:
        return batch
    facts = memory_of(subject.model).facts
    if "hides padding" not in facts:
        one = batch.select([rows[0]])
        found = observe(lambda: Head(subject, one).logits(one), Observe(1, module_names(subject.model)))
        maps = [site.attention_BHQK[0] for site in found.sites if site.attention_BHQK.shape[-1] == candidates.shape[1]]
        columns = [attention_HQK[:, :, candidates[rows[0]]] for attention_HQK in maps]
        facts["hides padding"] = bool(columns) and all(not c.any() for c in columns)
    return replace(batch, keep_BN=~candidates) if facts["hides padding"] else batch


def _padding_runs(subject: TextSubject, ids_BN: Tensor) -> Tensor:
    """(B, N) the runs of padding indices at the start and end of each row."""
    tables = [m for m in subject.model.modules() if isinstance(m, nn.Embedding) and m.padding_idx is not None]
    if not tables:
        return torch.zeros_like(ids_BN, dtype=torch.bool)
    pad = torch.eq(ids_BN, int(tables[0].padding_idx or 0)).int()
    return (pad.cumprod(1) + pad.flip(1).cumprod(1).flip(1)).bool()


def _few_rows(subject: Subject, one: Batch, names: dict[int, str], real: int) -> Readout:
    last = observe(lambda: Head(subject, one).logits(one), Observe(1, names)).sites[-1]
    start, count = last.first_query, last.attention_BHQK.shape[2]
    return readout_of(list(range(start, start + count)), real, real, set())


def _text_starts(subject: TextSubject, one: Batch, head: Head, names: dict[int, str]) -> int:
    """The first position of the text among the attention positions: the one that changes with the first token."""

    def values(replace_embedding: Callable[[Tensor], Tensor]) -> Tensor:
        def forward() -> Tensor:
            with SwapEmbedding(one.tensors[subject.main], subject.table(), replace_embedding):
                return head.logits(one)

        value = observe(forward, Observe(1, names), values=True).sites[0].value_BHKD
        assert value is not None
        return value

    def shift(embedding: Tensor) -> Tensor:
        other = embedding.clone()
        other[:, 0] = other[:, 0] * -1.5 + 0.1
        return other

    moved = (values(lambda e: e) != values(shift)).any(-1).any(1)[0].nonzero()[:, 0]
    return int(moved[0]) if len(moved) else 0


def _real(subject: Subject, one: Batch, keys: int, front: int | None) -> Tensor:
    return subject.keep(one, keys, front)[0].cpu()


def _leak(subject: Subject, one: Batch, head: Head, names: dict[int, str], extra: int, real: Tensor) -> Leak:
    positions = real.nonzero()[:, 0].tolist()
    if len(positions) < 2:
        return Leak()
    position = positions[len(positions) // 2]

    def forward() -> Tensor:
        return head.logits(one)

    def changed() -> Tensor:
        if not isinstance(subject, TextSubject) or extra:
            return head.logits(one)

        def shift(embedding: Tensor) -> Tensor:
            other = embedding.clone()
            other[:, position] = other[:, position] * -1.5 + 0.1
            return other

        with SwapEmbedding(one.tensors[subject.main], subject.table(), shift):
            return head.logits(one)

    return audit(forward, changed, names, position, len(real))


def with_streams(record: Record, study: Study) -> Record:
    """The record with the streams (and kinds) that the study found."""
    facts = [f for f in study.sites if not f.parallel]
    if len(facts) != len(record.sites):
        return record
    sites = [replace(s, streams=f.streams, kind=f.kind) for s, f in zip(record.sites, facts, strict=True)]
    return replace(record, sites=tuple(sites))


def require_readable(study: Study, several: bool = False) -> None:
    """Refuse attention explanations that would be empty, partial, or not about the units.

    several: the method knows the rules for several streams.
    """
    if study.trouble is not None:
        raise study.trouble
    if not study.sites:
        return  # the record itself says what is missing
    if study.unclaimed:
        return
    if several and study.windows is not None:
        _refuse_leak(study)
        return
    if any(s.windows > 1 for s in study.sites):
        raise NotOverUnits(
            "attention runs inside windows of the image (Swin), so maps of different layers do not line up. Use "
            "generic_attention, attention_rollout, raw_attention or attention_gradcam, which lay them out over the "
            "image, or a gradient or perturbation method."
        )
    if several and study.several:
        _refuse_leak(study)
        return
    if not study.one_stream:
        raise NotOverUnits(
            "the model has several streams of tokens (cross-attention), or layers over different numbers of them: "
            + ", ".join(sorted({f"{s.kind} {s.queries}×{s.keys}" for s in study.sites}))
            + ". Use "
            + ("generic_attention, attention_rollout, raw_attention or attention_gradcam, or " * study.several)
            + "a gradient or perturbation method."
        )
    _refuse_leak(study)


def _refuse_leak(study: Study) -> None:
    if study.leak.found:
        raise PartlyCaptured(
            f"positions exchange information outside the captured attention (seen at {study.leak.path}: a change of "
            f"{study.leak.amount:.1e} where there should be none), so an attention map would be blind to part of the "
            "computation. Use a gradient or perturbation method (integrated_gradients, occlusion)."
        )
