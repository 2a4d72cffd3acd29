"""Several streams of positions: identified, and concatenated so that one row of scores covers all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.functions import Args, Function, Kwargs
from whyformer.errors import CaptureError, NotOverUnits
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.inputs.units import joined
from whyformer.results.types import Units
from whyformer.shapes import Array
from whyformer.study import readout
from whyformer.study.facts import Leak, Probe, Study, audit_streams
from whyformer.study.readout import Passes, Readout, Severed, direct_rows, positions_of, reached_rows, readout_of
from whyformer.study.schedule import START, Link, Schedule, unsteady, windows_of

UNFOLLOWED = (
    "the {stream} layers are not included: no attention connects them to the output; their result is inserted as "
    "tokens into another stream. Scores are those of these tokens."
)
LOST = (
    "the {stream} layers have {count} position(s) without a token in the other stream ([CLS]): their scores are hidden."
)


class Entering(Severed):
    """Keeps the last tensor with one vector per position that is made before attention call ``first``."""

    def __init__(self, names: dict[int, str], first: int, positions: int) -> None:
        super().__init__(1, names)
        self.first, self.positions = first, positions
        self.tokens: Tensor | None = None

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        if len(self.sites) <= self.first and isinstance(out, Tensor) and out.ndim == 3 and out.requires_grad:
            if tuple(out.shape[:2]) == (1, self.positions):
                self.tokens = out
        return out


def made_of(run: Passes, source: int, first: int, places_N: Tensor) -> Tensor | None:
    """Return (tokens, rows) weights of the rows of call ``source`` in each token placed in another stream, if clear.

    ``places_N`` marks these tokens (image tokens) among the positions that call ``first`` attends over.
    """
    entering = Entering(run.names, first, len(places_N))
    with torch.enable_grad(), entering:
        run()
    if entering.tokens is None or not places_N.any():
        return None
    tokens_ND, result, site = entering.tokens[0], entering.results[source], entering.sites[source]
    mix = torch.randn(tokens_ND.shape, generator=torch.Generator().manual_seed(0)).to(tokens_ND)

    def rows(chosen: Tensor) -> list[int]:
        """Rows of the source that these tokens depend on."""
        (grad,) = torch.autograd.grad((tokens_ND * mix)[chosen].sum(), result, retain_graph=True, allow_unused=True)
        return reached_rows(site, grad)

    places = places_N.nonzero()[:, 0].to(tokens_ND.device)
    others = (~places_N).nonzero()[:, 0].to(tokens_ND.device)
    used, count = rows(places), len(places)
    if not used or len(used) % count or (len(others) and rows(others)):
        return None
    group = len(used) // count  # as many neighbouring rows for each token (Qwen merges four)
    for i in {0, count // 2, count - 1}:
        if rows(places[i : i + 1]) != used[i * group : (i + 1) * group]:
            return None
    weights = torch.zeros(count, positions_of(site)[0])
    for i in range(count):
        weights[i, used[i * group : (i + 1) * group]] = 1 / group
    return weights


def lengths(modality: Modality, batch: Batch, schedule: Schedule) -> dict[str, int]:
    """Positions of each stream in this batch: as studied, except where every input has its own length."""
    parts = {stream: modality.part(stream, batch) for stream in schedule.shown}
    return {
        stream: part.place.length(view) if part.place.lengths_vary else schedule.lengths[stream]
        for stream, (part, view) in parts.items()
    }


def placed(modality: Modality, batch: Batch, schedule: Schedule) -> Schedule:
    """The schedule with its links as they are in this batch."""
    places_BN = modality.read.covered(batch) if schedule.links else None
    if places_BN is None:
        return schedule
    return replace(schedule, links=tuple(link.at(places_BN) for link in schedule.links))


def links_of(run: Passes, schedule: Schedule, feeding: Iterable[str]) -> tuple[Link, ...]:
    """Streams whose result is placed among the tokens of the main one (image tokens in a language model)."""
    places_BN, into = run.modality.read.covered(run.one), run.modality.stream
    firsts = [s.site for s in schedule.steps if s.query == into and s.used]
    if places_BN is None or not firsts:
        return ()
    links: tuple[Link, ...] = ()
    for source in sorted(schedule.streams, key=schedule.last, reverse=True):  # the nearest first: BLIP-2's queries
        last = schedule.last(source)
        if source in schedule.reduced(feeding, links).streams or not START < last < firsts[0]:
            continue
        weights = made_of(run, last, firsts[0], places_BN[0])
        if weights is not None and weights.shape[1] == schedule.lengths[source]:
            links = (*links, Link(source, into, weights))
    return links


def slices(sizes: dict[str, int]) -> dict[str, slice]:
    """Where each stream lies among all positions."""
    ranges, start = {}, 0
    for stream, size in sizes.items():
        ranges[stream] = slice(start, start + size)
        start += size
    return ranges


def keep_in(modality: Modality, batch: Batch, stream: str, size: int) -> Tensor:
    """(B, N) real positions of one stream."""
    part, view = modality.part(stream, batch)
    return part.place.keep(view, size, None)


def units_of(modality: Modality, batch: Batch, sizes: dict[str, int], grid: tuple[int, int] | None) -> list[Units]:
    each = []
    for stream, size in sizes.items():
        part, view = modality.part(stream, batch)
        units = part.place.units(view, size, None, grid)
        # A part that is the modality itself (image tokens inside a text) knows better which stream a unit is of.
        each.append(units if part is modality else [replace(u, stream=(stream,) * len(u)) for u in units])
    return [joined(parts) for parts in zip(*each, strict=True)]


def stream_probes(run: Passes, schedule: Schedule) -> list[Probe]:
    """Return for the leak audit the positions of each stream, at its first own attention, and what may change."""
    sizes, probes = schedule.lengths, []
    links = placed(run.modality, run.one, schedule).links
    for stream, length in sizes.items():
        sites = [s.site for s in schedule.steps if s.used and not s.cross and s.query == stream]
        if not sites or length < 2:
            continue
        real = list(range(length))
        if stream in schedule.shown:
            real = keep_in(run.modality, run.one, stream, length)[0].nonzero()[:, 0].tolist()
        heard: dict[int, dict[int, set[int]]] = {p: {length: {p}} for p in real}
        for link in links:
            if link.source == stream and link.placed_BNM is not None:
                for p in real:
                    places = set(link.placed_BNM[0, :, p].nonzero()[:, 0].tolist())
                    heard[p][sizes[link.into]] = heard[p].get(sizes[link.into], set()) | places
        probes.append(Probe(sites[0], heard))
    return probes


def readouts_of(run: Passes, schedule: Schedule) -> dict[str, Readout]:
    """Rules for the rows of each stream that feed the head, learned on one input."""
    modality, one, readouts = run.modality, run.one, {}
    sizes = lengths(modality, one, schedule)
    for stream, size in sizes.items():
        if size != schedule.lengths[stream]:
            raise NotOverUnits(
                f"attention runs over {schedule.lengths[stream]} positions of the {stream} stream, and the input has "
                f"{size} tokens there: positions cannot be matched with tokens."
            )
    for stream, rows in _direct(run, schedule).items():
        part, view = modality.part(stream, one)
        keep = part.place.keep(view, sizes[stream], None)[0].cpu()
        rank = {int(p): i for i, p in enumerate(keep.nonzero()[:, 0])}
        real = [rank[r] for r in rows if r in rank]
        if real:
            rule = readout_of(real, sizes[stream], len(rank), set())
            if modality.mean.generates and real == [len(rank) - 1]:  # also where a single token is first and last
                rule = Readout("last")
            if stream == modality.mean.positioned:  # which row is read is the target's choice, not the model's
                rule = Readout("rows", tuple(real))
            guessed = rule.kind == "last" and not modality.mean.generates and not any("mask" in n for n in one.tensors)
            # Without a mask an end-of-text token may only happen to be last here: look at each input.
            readouts[stream] = Readout("rows", tuple(real)) if guessed and part.place.lengths_vary else rule
    if not readouts:
        raise CaptureError(
            "no row of any stream reaches the model's output directly, so the output position was not found. Check "
            "that the logits come from the attended positions, without detach() or no_grad() in between."
        )
    return readouts


def _direct(run: Passes, schedule: Schedule) -> dict[str, list[int]]:
    """Per stream, the rows of its last attention that reach the output directly."""
    rows = direct_rows(run)
    last = {stream: schedule.last(stream) for stream in schedule.streams}
    return {stream: rows[site] for stream, site in last.items() if site != START and rows[site]}


def readout_weights(
    modality: Modality, batch: Batch, schedule: Schedule, rules: dict[str, Readout], sizes: dict[str, int]
) -> tuple[Tensor, dict[str, Readout], int]:
    """(B, N) weights of the rows that feed the head, summing to one per stream; the rules; passes that were taken."""
    parts: dict[str, Tensor] = {}
    each: list[dict[str, list[int]]] = []
    for stream, size in sizes.items():
        keep_BN = keep_in(modality, batch, stream, size)
        rule = rules.get(stream, Readout("rows"))
        fixed = rule.kind != "rows"
        parts[stream] = weights = rule.weights(keep_BN) if fixed else torch.zeros_like(keep_BN, dtype=torch.float32)
        if not fixed and stream == modality.mean.positioned and batch.positions:
            weights[range(batch.size), list(batch.positions)] = 1
        elif stream in rules and not (fixed and (modality.mean.generates or size == 1)):
            # The end-of-text token is where it is, and a head may choose its row: ask the model, input by input.
            each = each or [_direct(Passes(modality, batch.select([i])), schedule) for i in range(batch.size)]
            for row_N, keep_N, rows in zip(weights, keep_BN, each, strict=True):
                read = [row for row in rows.get(stream, []) if keep_N[row] or not fixed]
                if fixed and read in ([], row_N.nonzero()[:, 0].tolist()):
                    continue
                row_N.zero_()[read] = 1 / max(len(read), 1)
                rules = rules | {stream: replace(rule, kind="rows")}
    return torch.cat(list(parts.values()), 1), rules, len(each)


def cropped(
    maps: dict[tuple[str, str], Array], row: int, keep_N: Array, sizes: dict[str, int]
) -> dict[tuple[str, str], Array]:
    """One input's maps without padding, by (query stream, key stream)."""
    keep = {stream: keep_N[where] for stream, where in slices(sizes).items()}
    return {(s, t): m[row][keep[s]][:, keep[t]] for (s, t), m in maps.items()}


def study_several(run: Passes, study: Study, schedule: Schedule) -> Study:
    """Several streams: which rows of each feed the head."""
    if len(schedule.streams) == 1 and any(s.windows > 1 for s in study.sites):
        return _windowed(run, study)
    if len(schedule.streams) < 2 or any(s.parallel for s in study.sites):
        return study
    try:
        readouts = readouts_of(run, schedule)
        links = links_of(run, schedule, readouts)
        links = tuple(link for link in links if unsteady(study.sites, schedule, link.source) is None)
        followed = schedule.reduced(readouts, links)
        if (error := unsteady(study.sites, followed)) is not None:
            return study.refused(error)
        used = {step.query for step in schedule.steps if step.used}
        notes = [UNFOLLOWED.format(stream=s) for s in schedule.streams if s in used and s not in followed.streams]
        notes += [LOST.format(count=k.lost, stream=k.source) for k in links if k.lost]
        probes = stream_probes(run, followed)
        # Of a stream of a single token it cannot be told whether its first or its last row is read; of one that is
        # written, it is always the last.
        named = [] if run.modality.mean.generates else [s for s in followed.shown if s != "queries"]
        counts = [int(keep_in(run.modality, run.one, s, followed.lengths[s])[0].sum()) for s in named]
        # What a head picked of one stream has the form of a stream with a single position.
        cross, sizes = {s.site for s in schedule.steps if s.cross}, {*followed.lengths.values()} - {1}
        leak = audit_streams(run, probes, cross, sizes) if probes else Leak()
        length = 1 if any(count < 2 for count in counts) else study.input_length
        main = slices(lengths(run.modality, run.one, followed)).get(run.modality.stream)  # a query may come after it
        study = replace(study, front=None if main is None else main.start)
        return replace(study, readouts=readouts, schedule=followed, notes=tuple(notes), input_length=length, leak=leak)
    except CaptureError as error:
        return study.refused(error)


def _windowed(run: Passes, study: Study) -> Study:
    """Attention inside windows: which tokens they hold, if all of the last ones are pooled by the head."""
    try:
        windows = windows_of(run)
        notes = readout.require_pooled(run, len(study.sites) - 1, windows.placements[-1].tokens_WN).notes
    except CaptureError as error:
        return study.refused(error)
    # The token in the middle of the first window; of later stages, the one that it is part of may change.
    first = windows.placements[0].tokens_WN[0]
    place = next(i for i in range(len(first) // 2, len(first)) if first[i] >= 0)
    heard = {windows.sizes[0]: {int(first[place])}}
    alone = torch.zeros(1, windows.sizes[0], 1)
    alone[0, first[place]] = 1
    for stage in range(1, len(windows.sizes)):
        heard[windows.sizes[stage]] = set(windows.merged(alone, 0, stage)[0, :, 0].nonzero()[:, 0].tolist())
    leak = audit_streams(run, [Probe(0, {place: heard})], set(), {*heard})
    return replace(study, windows=windows, readout=Readout("mean"), leak=leak, notes=notes)
