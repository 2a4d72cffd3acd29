"""Study a model of several streams, or of attention inside windows."""

from __future__ import annotations

from dataclasses import replace

import torch

from whyformer.capture.audit import Leak, Probe, audit_streams
from whyformer.capture.heads.direct_readout import direct_rows
from whyformer.capture.paths import module_names
from whyformer.capture.probe import Readout
from whyformer.capture.windows import Windows, windows_of
from whyformer.errors import CaptureError
from whyformer.head import Head
from whyformer.schedule import Schedule, is_steady, require_steady
from whyformer.streams import links_of, readouts_of, stream_probes
from whyformer.study.facts import Study
from whyformer.subjects.base import Batch, Subject

UNFOLLOWED = (
    "the model's own {stream} layers are not followed: no attention connects them to the output, their result is "
    "placed among the tokens of another stream. Scores are those of the tokens it became there."
)
LOST = (
    "the model's {stream} layers have {count} position(s) that become no token ([CLS]): what they receive is not shown."
)


def study_several(subject: Subject, one: Batch, study: Study, schedule: Schedule) -> Study:
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
        used = {step.query for step in schedule.steps if step.used}
        notes = [UNFOLLOWED.format(stream=s) for s in schedule.streams if s in used and s not in followed.streams]
        notes += [LOST.format(count=k.lost, stream=k.source) for k in links if k.lost]
        found = replace(
            study, readouts=readouts, schedule=followed, notes=tuple(notes), forwards=study.forwards + 1 + len(links)
        )
        probes = stream_probes(subject, one, followed)
        if _is_short(subject, one, followed):
            found = replace(found, input_length=1)
        return _audited(subject, one, found, probes, {s.site for s in schedule.steps if s.cross})
    except CaptureError as error:
        return study.refused(error)


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
        return study.refused(error)
    if len(rows) != windows.placements[-1].tokens_WN.shape[1]:
        return study
    found = replace(study, windows=windows, readout=Readout("mean"), forwards=study.forwards + 2)
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
