"""Each model and kind of input is studied once; the study is remembered beside the model."""

from __future__ import annotations

from typing import Any

from whyformer.borrow import memory_of, modules_of
from whyformer.study.between_rows import beside_others
from whyformer.study.facts import Study
from whyformer.study.one_stream import study_one
from whyformer.subjects.base import Batch, Subject
from whyformer.subjects.text import TextSubject


def study_of(subject: Subject, batch: Batch) -> tuple[Study, bool]:
    """The study of this model for this kind of input, and whether it had to be made now."""
    facts = memory_of(subject.model).facts
    mixes = subject.mixes_rows  # asked before any mode is on: the answer may take a pass
    key = _signature(subject, batch)
    if key in facts:
        return facts[key], False
    row = _longest(batch)
    if mixes:
        study = beside_others(subject, batch.select([row]))
    else:
        study = study_one(subject, batch.select([row]))
    if study.input_length > 1:  # a single position teaches nothing about rows
        facts[key] = study
    return study, True


def _signature(subject: Subject, batch: Batch) -> tuple[Any, ...]:
    shapes = tuple(
        (k, v.ndim, () if isinstance(subject, TextSubject) else tuple(v.shape[1:])) for k, v in batch.tensors.items()
    )
    return (type(subject).__name__, subject.main, shapes, subject.form(batch), len(modules_of(subject.model)))


def _longest(batch: Batch) -> int:
    return 0 if batch.keep_BN is None else int(batch.keep_BN.sum(1).argmax())
