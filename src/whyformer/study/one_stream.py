"""Study a model of plain self-attention: the row that feeds its head, where its text starts, and whether it leaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from whyformer.capture.audit import Leak, audit
from whyformer.capture.capture import observe
from whyformer.capture.inputs.embedding import SwapEmbedding
from whyformer.capture.lineage import trace
from whyformer.capture.paths import module_names
from whyformer.capture.probe import Readout, readout_of, readout_rows
from whyformer.capture.roles import Observe
from whyformer.errors import CaptureError
from whyformer.head import Head
from whyformer.schedule import kind_of, schedule_of
from whyformer.study.facts import Study, input_length
from whyformer.study.several import study_several
from whyformer.subjects.base import Batch, Subject
from whyformer.subjects.image import ImageSubject
from whyformer.subjects.text import TextSubject


def study_one(subject: Subject, one: Batch) -> Study:
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
        return study_several(subject, one, study, schedule)
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
