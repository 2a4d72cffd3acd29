"""Study a model whose rows look at each other (SAINT): one row beside the reference rows."""

from __future__ import annotations

from dataclasses import replace

import torch

from whyformer.capture.audit import Leak
from whyformer.capture.paths import module_names
from whyformer.capture.probe import Readout, ReadoutFinder, Survey, readout_of
from whyformer.errors import CaptureError
from whyformer.head import Head
from whyformer.schedule import START, Schedule, Step
from whyformer.study.facts import Study
from whyformer.subjects.base import Batch, Subject


def beside_others(subject: Subject, one: Batch) -> Study:
    """Column attention is studied; row attention is left aside, and the leak through it is said, not refused.

    Between two column attentions SAINT mixes all columns of a row (they are one token of the row attention). That is
    known of these models, so readings are given with a note (TableSubject.notes) in place of an error.
    """
    together = subject.in_company(one)
    head, names = Head(subject, together), module_names(subject.model)
    survey = Survey(together.size, names)
    survey.rows_attend = True
    with torch.no_grad(), survey:
        head.logits(together)
    sites = tuple(replace(site, streams=(subject.stream,) * 2, kind="self") for site in survey.facts)
    unclaimed = tuple(str(c) for c in survey.softmaxes if not c.claimed and c.looks_like_attention)
    steps = tuple(Step(i, subject.stream, subject.stream, i - 1 if i else START) for i in range(len(sites)))
    schedule = Schedule(steps, {subject.stream: sites[0].keys})
    readout = _readout(head, together, names, len(sites) - 1, sites[0].keys)
    length = sum(v.shape[1] for v in one.tensors.values())
    return Study(sites, readout, None, Leak(), unclaimed, 0, length, 3, schedule=schedule)


def _readout(head: Head, together: Batch, names: dict[int, str], last: int, keys: int) -> Readout:
    finder = ReadoutFinder(together.size, names, last)
    finder.rows_attend = True
    with torch.no_grad(), finder:
        logits = head.logits(together)
    if finder.ending is None or not logits.requires_grad:
        raise CaptureError("the last column attention does not reach the model's output.")
    with torch.enable_grad():
        reached = finder.ending.reached(logits[0])
    return readout_of(reached.rows, keys, keys, reached.slots)
