"""What a study says about a model and a kind of input."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from whyformer.capture.audit import Leak
from whyformer.capture.probe import Readout, SiteFacts
from whyformer.capture.windows import Windows
from whyformer.errors import CaptureError
from whyformer.schedule import Schedule
from whyformer.subjects.base import Batch, Subject
from whyformer.subjects.table import TableSubject
from whyformer.subjects.text import TextSubject


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

    def refused(self, error: CaptureError, **known: Any) -> Study:
        """The same, with what stands against reading attention; frames of the pass would keep the model alive."""
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return replace(self, trouble=error, **known)

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


def input_length(subject: Subject, batch: Batch) -> int:
    if isinstance(subject, TableSubject):
        return subject.positions
    tensor = batch.tensors[subject.main]
    return tensor.shape[1] if tensor.ndim > 1 else 1
