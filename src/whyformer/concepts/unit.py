"""What is maximised: a class, a neuron, a neuron at one token, or the mean of a layer."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch import Tensor

from whyformer.concepts.layer import Tap, layer_name
from whyformer.errors import BadInput
from whyformer.head import Head
from whyformer.outputs import resolve_targets
from whyformer.study import study_of
from whyformer.subjects.base import Batch, Subject

FORMS = 'a class, ("neuron", layer, index), ("token", layer, position, index) or ("layer", layer)'
LENGTHS = {"neuron": 3, "token": 4, "layer": 2}


class Unit:
    """Open it to read the unit's value from passes of the model."""

    def __init__(self, subject: Subject, example: Batch, unit: Any) -> None:
        self.subject, self.unit = subject, unit
        self.layer = ""
        self.target = -1
        self._stack = ExitStack()
        self._tap: Tap | None = None
        head = Head(subject, example)
        if isinstance(unit, tuple):
            if not unit or LENGTHS.get(unit[0]) != len(unit):
                raise BadInput(f"unit={unit!r}: {FORMS}.")
            study = None if isinstance(unit[1], str) else study_of(subject, example)[0]
            self.layer = layer_name(subject.model, unit[1], study)
            place = " ".join(map(str, unit[2:]))
            self.name = f"{unit[0]} {place} of {self.layer}" if place else f"mean of {self.layer}"
        else:
            if unit is None:
                raise BadInput(f"unit: {FORMS}.")
            logits_BC = head.logits(example)
            self.target = resolve_targets(unit, logits_BC, head.labels(), head.positions, head.token_id)[0].index
            self.name = f"class {head.name(self.target) or self.target}"

    def __enter__(self) -> Unit:
        if self.layer:
            self._tap = self._stack.enter_context(Tap(self.subject.model, self.layer))
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def value(self, batch: Batch) -> Tensor:
        """A single number, differentiable."""
        logits_BC = Head(self.subject, batch).logits(batch)
        if self._tap is None:
            return logits_BC[0, self.target]
        found = self._tap.take()[0]
        if self.unit[0] == "layer":
            return found.mean()
        *place, index = self.unit[2:]
        try:
            return found[place[0], index] if place else found[..., index].mean()
        except IndexError:
            raise BadInput(
                f"unit={self.unit!r}: {self.layer} gives activations of shape {tuple(found.shape)}."
            ) from None
