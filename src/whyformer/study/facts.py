"""What a study says about a model and a kind of input, and what can be read with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from whyformer.brief import brief
from whyformer.capture.site import Plans
from whyformer.errors import CaptureError, NotOverUnits, PartlyCaptured
from whyformer.results.types import Record
from whyformer.study.interference import Form
from whyformer.study.leak import Leak
from whyformer.study.readout import Readout, SiteFacts
from whyformer.study.schedule import Schedule, Windows


@dataclass(frozen=True)
class Study:
    """What is known about a model and a kind of input."""

    sites: tuple[SiteFacts, ...] = ()
    readout: Readout | None = None
    grid: tuple[int, int] | None = None
    leak: Leak = field(default_factory=Leak)
    unclaimed: tuple[str, ...] = ()
    extra: int = 0  # positions that the model adds to those of the input (CLS)
    input_length: int = 0
    forwards: int = 0  # passes that the study took
    front: int | None = None  # how many of those come before the input's; None: all
    trouble: CaptureError | None = field(default=None, compare=False)
    schedule: Schedule | None = None  # streams, and who asks whom
    readouts: dict[str, Readout] = field(default_factory=dict)  # per stream, for several
    windows: Windows | None = None  # where the tokens stand, for attention inside windows
    notes: tuple[str, ...] = ()  # what every explanation has to say about this model
    fused: bool = False  # every map came out of torch's own attention function
    hidden: bool = False  # part of the model ran out of sight
    doubts: list[str] = field(default_factory=list, compare=False)  # about gradients, once they were taken
    plans: Plans = field(default_factory=Plans, compare=False)  # the calls of later passes
    read_rows: dict[Any, Tensor] = field(default_factory=dict, compare=False)  # by length: weights of unpadded rows
    undisturbed: set[Form] = field(default_factory=set, compare=False)  # batches on which looking changed nothing

    def __repr__(self) -> str:
        return brief(self)

    def refused(self, error: CaptureError, **known: Any) -> Study:
        """Return the study with the error that attention cannot be read; its traceback would keep the model alive."""
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return replace(self, trouble=error, **known)

    @cached_property
    def multi_stream(self) -> bool:
        """Several streams of tokens, whose maps were put in order."""
        return bool(self.readouts)

    @cached_property
    def rule(self) -> str:
        """Which rows feed the head, in words."""
        if self.multi_stream:
            rules = {s: "found for each input" if r.kind == "rows" else str(r) for s, r in self.readouts.items()}
            return "; ".join(f"{stream}: {rule}" for stream, rule in rules.items())
        return "" if self.readout is None else str(self.readout)

    @cached_property
    def plain(self) -> bool:
        """Self-attention over one sequence without leaks: any method may read it."""
        return self.trouble is None and bool(self.sites) and self.one_stream and not self.leak.amount

    @cached_property
    def torch_own(self) -> tuple[tuple[str, tuple[str, str]], ...]:
        """Path and streams of each attention, if all of them are torch's own function in its plain form."""
        plain = all(
            s.kind == "self" and s.windows == 1 and s.queries == s.keys and s.heads > 1 and not s.parallel
            for s in self.sites
        )
        plain = plain and 1 not in self.batch_axes.values()  # heads in front of the inputs
        return tuple((s.path, s.streams) for s in self.sites) if self.fused and plain and not self.unclaimed else ()

    @cached_property
    def batch_axes(self) -> dict[int, int]:
        """Which axis of a map counts the inputs, by site, where it is one of two."""
        return {i: s.batch_axis for i, s in enumerate(self.sites) if s.batch_axis is not None}

    @cached_property
    def one_stream(self) -> bool:
        """Plain self-attention over one sequence."""
        return (
            all(s.kind == "self" and s.windows == 1 for s in self.sites)
            and len({(s.keys, s.streams) for s in self.sites}) == 1
        )


def with_streams(record: Record, study: Study) -> Record:
    """The record with the streams (and kinds) that the study found."""
    facts = [f for f in study.sites if not f.parallel]
    if len(facts) != len(record.sites):
        return record
    sites = [replace(s, streams=f.streams, kind=f.kind) for s, f in zip(record.sites, facts, strict=True)]
    return replace(record, sites=tuple(sites))


def require_readable(study: Study, multi_stream: bool = False) -> None:
    """Raise where an attention explanation would be empty, partial, or not about the units.

    multi_stream: the method knows the rules for several streams, and for windows.
    """
    if study.trouble is not None:
        raise type(study.trouble)(*study.trouble.args)  # a new one: the study outlives the frames it would hold
    if not study.sites or study.unclaimed:
        return  # the record itself says what is missing
    ruled = multi_stream and (study.windows is not None or study.multi_stream)
    if not ruled and any(s.windows > 1 for s in study.sites):
        raise NotOverUnits(
            "attention runs inside windows of the image (Swin), so maps of different layers do not line up."
        )
    if not ruled and not study.one_stream:
        raise NotOverUnits(
            "the model has several streams of tokens (cross-attention), or layers over different numbers of them: "
            + ", ".join(sorted({f"{s.kind} {s.queries}×{s.keys}" for s in study.sites}))
            + ". A layer that asks for the keys and values of an earlier one (Gemma 3n) counts as cross-attention."
        )
    if study.leak.amount:
        raise PartlyCaptured(
            f"positions exchange information outside the captured attention (seen at {study.leak.path}: a change of "
            f"{study.leak.amount:.1e} where there should be none), so an attention map would be blind to part of the "
            "computation."
        )
