"""Several streams of positions laid end to end, so that one row of scores covers them all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.audit import Probe
from whyformer.capture.heads.direct_readout import direct_rows
from whyformer.capture.paths import module_names
from whyformer.capture.placement import made_of
from whyformer.capture.probe import Readout, readout_of
from whyformer.errors import CaptureError, NotOverUnits
from whyformer.head import Head
from whyformer.schedule import START, Link, Schedule
from whyformer.subjects.base import Batch, Subject
from whyformer.subjects.joined import joined
from whyformer.subjects.text import TextSubject
from whyformer.types import Units

Array = np.ndarray[Any, Any]


def lengths(subject: Subject, batch: Batch, schedule: Schedule) -> dict[str, int]:
    """Positions of each stream in this batch: as studied, except for text, which has its own length."""
    found = {}
    for stream in schedule.shown:
        part, view = subject.part(stream, batch)
        studied = schedule.lengths[stream]
        found[stream] = view.tensors[part.main].shape[1] if isinstance(part, TextSubject) else studied
    return found


def placed(subject: Subject, batch: Batch, schedule: Schedule) -> Schedule:
    """The schedule with its links as they are in this batch."""
    if not schedule.links:
        return schedule
    places_BN = _places(subject, batch)
    return replace(schedule, links=tuple(link.at(places_BN) for link in schedule.links))


def links_of(subject: Subject, one: Batch, schedule: Schedule, feeding: Iterable[str]) -> tuple[Link, ...]:
    """Streams whose result is placed among the tokens of the main one (image tokens in a language model)."""
    places_BN, into = subject.places(one), subject.stream
    firsts = [s.site for s in schedule.steps if s.query == into and s.used]
    if places_BN is None or not firsts:
        return ()
    head, names = Head(subject, one), module_names(subject.model)
    links: tuple[Link, ...] = ()
    for source in sorted(schedule.streams, key=schedule.last, reverse=True):  # the nearest first: BLIP-2's queries
        last = schedule.last(source)
        if source in schedule.reduced(feeding, links).streams or not START < last < firsts[0]:
            continue
        weights = made_of(lambda: head.logits(one), names, last, firsts[0], places_BN[0])
        if weights is not None and weights.shape[1] == schedule.lengths[source]:
            links = (*links, Link(source, into, weights))
    return links


def slices(sizes: dict[str, int]) -> dict[str, slice]:
    """Where each stream lies among all positions."""
    found, start = {}, 0
    for stream, size in sizes.items():
        found[stream] = slice(start, start + size)
        start += size
    return found


def keep_of(subject: Subject, batch: Batch, sizes: dict[str, int]) -> Tensor:
    """(B, N) real positions of all streams."""
    parts = []
    for stream, size in sizes.items():
        part, view = subject.part(stream, batch)
        parts.append(part.keep(view, size, None))
    return torch.cat(parts, 1)


def units_of(subject: Subject, batch: Batch, sizes: dict[str, int], grid: tuple[int, int] | None) -> list[Units]:
    each = []
    for stream, size in sizes.items():
        part, view = subject.part(stream, batch)
        own = part.units(view, size, None, grid)
        # A part that is the subject itself (image tokens inside a text) knows better which stream a unit is of.
        each.append(own if part is subject else [replace(u, stream=(stream,) * len(u)) for u in own])
    return [joined(parts) for parts in zip(*each, strict=True)]


def stream_probes(subject: Subject, one: Batch, schedule: Schedule) -> list[Probe]:
    """For the leak audit: one position of each stream, at its first own attention, and who may hear of it."""
    sizes, probes = schedule.lengths, []
    for stream, length in sizes.items():
        own = [s.site for s in schedule.steps if s.used and not s.cross and s.query == stream]
        if not own or length < 2:
            continue
        position = length // 2
        if stream in schedule.shown:
            part, view = subject.part(stream, one)
            real = part.keep(view, length, None)[0].nonzero()[:, 0].tolist()
            position = real[len(real) // 2]
        heard: dict[int, set[int]] = {n: set() for n in sizes.values()}
        heard[length] = {position}
        for link in (link for link in schedule.links if link.source == stream):
            places = link.at(_places(subject, one)).placed_BNM
            assert places is not None
            heard[sizes[link.into]] |= set(places[0, :, position].nonzero()[:, 0].tolist())
        probes.append(Probe(own[0], position, heard))
    return probes


def _places(subject: Subject, batch: Batch) -> Tensor:
    places_BN = subject.places(batch)
    assert places_BN is not None
    return places_BN


def readouts_of(subject: Subject, one: Batch, schedule: Schedule) -> dict[str, Readout]:
    """Rules for the rows of each stream that feed the head, learned on one input."""
    sizes = lengths(subject, one, schedule)
    _require_units(sizes, schedule)
    found = {}
    for stream, rows in _direct(subject, one, schedule).items():
        part, view = subject.part(stream, one)
        keep = part.keep(view, sizes[stream], None)[0].cpu()
        rank = {int(p): i for i, p in enumerate(keep.nonzero()[:, 0])}
        real = [rank[r] for r in rows if r in rank]
        if real:
            rule = readout_of(real, sizes[stream], len(rank), set())
            if subject.generates and real == [len(rank) - 1]:  # also where a single token is first and last
                rule = Readout("last")
            if stream == subject.positioned:  # which row is read is the target's choice, not the model's
                rule = Readout("rows", tuple(real))
            guessed = rule.kind == "last" and not subject.generates and not any("mask" in n for n in one.tensors)
            # Without a mask an end-of-text token may only happen to be last here: look at each input.
            found[stream] = Readout("rows", tuple(real)) if guessed and isinstance(part, TextSubject) else rule
    if not found:
        raise CaptureError(
            "no row of any stream reaches the model's output directly, so there is none to read. Check that the logits "
            "come from the attended positions, without detach() or no_grad() in between."
        )
    return found


def _require_units(sizes: dict[str, int], schedule: Schedule) -> None:
    for stream, size in sizes.items():
        attended = schedule.lengths[stream]
        if size != attended:
            raise NotOverUnits(
                f"attention runs over {attended} positions of the {stream} stream, and the input has {size} tokens "
                "there: which position is which token is not known. Use a gradient or perturbation method."
            )


def _direct(subject: Subject, one: Batch, schedule: Schedule) -> dict[str, list[int]]:
    head = Head(subject, one)
    rows = direct_rows(lambda: head.logits(one), module_names(subject.model))
    last = {stream: schedule.last(stream) for stream in schedule.streams}
    return {stream: rows[site] for stream, site in last.items() if site != START and rows[site]}


def readout_weights(
    subject: Subject, batch: Batch, schedule: Schedule, rules: dict[str, Readout], sizes: dict[str, int]
) -> Tensor:
    """(B, N) weights of the rows that feed the head; each stream that feeds it has weights that sum to one."""
    parts: dict[str, Tensor] = {}
    each: list[dict[str, list[int]]] | None = None
    for stream, size in sizes.items():
        part, view = subject.part(stream, batch)
        keep_BN = part.keep(view, size, None)
        weights = torch.zeros(keep_BN.shape, device=keep_BN.device)
        rule = rules.get(stream)
        if rule is not None and rule.kind != "rows":
            weights = rule.weights(keep_BN)
        elif rule is not None and stream == subject.positioned and batch.positions:
            weights[range(batch.size), list(batch.positions)] = 1
        elif rule is not None:
            # No fixed rule (the end-of-text token is where it is): ask the model, input by input.
            each = each or [_direct(subject, batch.select([i]), schedule) for i in range(batch.size)]
            for i, rows in enumerate(each):
                own = rows.get(stream, [])
                weights[i, own] = 1 / max(len(own), 1)
        parts[stream] = weights
    return torch.cat(list(parts.values()), 1)


def cropped(
    maps: dict[tuple[str, str], Array], row: int, keep_N: Array, sizes: dict[str, int]
) -> dict[tuple[str, str], Array]:
    """One input's maps without padding, by (query stream, key stream)."""
    own = {stream: keep_N[where] for stream, where in slices(sizes).items()}
    return {(s, t): m[row][own[s]][:, own[t]] for (s, t), m in maps.items()}
