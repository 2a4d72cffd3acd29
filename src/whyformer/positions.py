"""Positions: where the units of a batch stand in the model's attention, and which rows feed the prediction."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from whyformer import streams
from whyformer.capture.windows import Windows
from whyformer.errors import NotOffered
from whyformer.schedule import Schedule
from whyformer.study import Study, rows_of_each
from whyformer.subjects.base import Batch, Subject
from whyformer.subjects.image import ImageSubject, patch_masks
from whyformer.subjects.table import TableSubject
from whyformer.subjects.text import TextSubject
from whyformer.types import Units


class Positions:
    """What is known about a batch before the model has run on it."""

    def __init__(self, subject: Subject, batch: Batch, study: Study) -> None:
        self.subject, self.batch, self.study = subject, batch, study

    @property
    def length(self) -> int:
        """Positions the model's attention runs over; those of several streams are laid end to end."""
        if self.several:
            return sum(self.stream_sizes.values())
        return self.study.length(self.subject, self.batch)

    @property
    def explained(self) -> range:
        """The rows of the batch that are explained; others may stand beside them (SAINT)."""
        return range(self.batch.size - self.batch.company)

    @cached_property
    def keep_BN(self) -> Tensor:
        """(B, N) real positions; False at padding."""
        if self.several:
            return streams.keep_of(self.subject, self.batch, self.stream_sizes)
        return self.subject.keep(self.batch, self.length, self.study.front)

    @cached_property
    def units(self) -> list[Units]:
        if self.several:
            return streams.units_of(self.subject, self.batch, self.stream_sizes, self.study.grid)
        return self.subject.units(self.batch, self.length, self.study.front, self.study.grid)

    @cached_property
    def readout_BN(self) -> Tensor:
        """(B, N) weights of the output rows that feed the head."""
        if self.several:
            rules = self.study.readouts
            return streams.readout_weights(self.subject, self.batch, self.schedule, rules, self.stream_sizes)
        if self.study.readout is None:
            raise NotOffered("which output position feeds the prediction is not known for this model.")
        if self.study.readout.kind == "rows" and isinstance(self.subject, TextSubject):
            return rows_of_each(self.subject, self.batch, self.study)
        return self.study.readout.weights(self.keep_BN)

    @cached_property
    def special_BN(self) -> Tensor:
        """(B, N) special tokens among the attention positions; padding is not special."""
        special = torch.zeros_like(self.keep_BN)
        for row, units in enumerate(self.units):
            special[row, self.keep_BN[row]] = torch.tensor(units.special, device=special.device)
        return special

    def per_unit(self, detail: Tensor) -> Tensor:
        """Sum a (B, …) attribution of the input's own numbers over each unit → (B, N) attention positions."""
        if isinstance(self.subject, ImageSubject):
            rows = []
            for row, units in enumerate(self.units):
                masks = patch_masks(units, detail[row][None])
                rows.append(torch.einsum("uhw,chw->u", masks.to(detail.dtype), detail[row]))
            return torch.stack(rows)
        scores = detail.flatten(2).sum(2) if detail.ndim > 2 else detail
        if isinstance(self.subject, TableSubject):
            return self.subject.placed(scores, self.batch, self.length)
        missing = self.length - scores.shape[1]
        if missing <= 0:
            return scores
        front = missing if self.study.front is None else self.study.front
        return torch.nn.functional.pad(scores, (front, missing - front))

    # Several streams

    @property
    def several(self) -> bool:
        """Several streams of tokens: methods that know the rules for them read maps by stream."""
        return self.study.several

    @cached_property
    def schedule(self) -> Schedule:
        """Who asks whom (schedule.py)."""
        assert self.study.schedule is not None
        return streams.placed(self.subject, self.batch, self.study.schedule)

    @cached_property
    def stream_sizes(self) -> dict[str, int]:
        """Positions of each stream, in the order in which they are laid end to end."""
        return streams.lengths(self.subject, self.batch, self.schedule)

    def by_stream(self, values_BN: Tensor) -> dict[str, Tensor]:
        """The columns of each stream."""
        return {stream: values_BN[:, where] for stream, where in streams.slices(self.stream_sizes).items()}

    # Windows

    @property
    def windowed(self) -> bool:
        """Attention inside windows (Swin), whose places in the image are known."""
        return self.study.windows is not None

    @property
    def windows(self) -> Windows:
        assert self.study.windows is not None
        return self.study.windows
