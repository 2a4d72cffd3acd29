"""Passes of a study: the model on the one input that is studied, counted."""

from __future__ import annotations

from torch import Tensor

from whyformer.head import Head
from whyformer.subjects.base import Batch, Subject


class Passes:
    """Runs the input that is studied, or a variant of it, and counts how often."""

    def __init__(self, subject: Subject, one: Batch) -> None:
        self.one, self.count = one, 0
        self._head = Head(subject, one)

    def __call__(self, variant: Batch | None = None) -> Tensor:
        self.count += 1
        return self._head.logits(self.one if variant is None else variant)
