"""Which tensors are functions, element by element, of one and the same tensor.

Activations are often written out: ``0.5 * x * (1 + tanh(…x…))``, ``x * sigmoid(1.702 * x)``. Rules for products would
take such a line apart. So every tensor that was computed element by element from a single tensor carries that tensor's
mark: a product of two tensors with the same mark is a piece of an activation, a product of two others is a gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from whyformer.capture.functions import ACTIVATIONS, CASTS, CLAMPS, DROPOUTS, RARE_ACTIVATIONS, RARE_DROPOUTS
from whyformer.capture.notes import Notes

# Curved: f(x) is not proportional to x. Of these the rules know BENDS as activations.
BENDS = ACTIVATIONS | RARE_ACTIVATIONS
CURVED = BENDS | CLAMPS | frozenset("exp expm1 log log1p abs reciprocal __rdiv__".split())
STRAIGHT = (CASTS | DROPOUTS | RARE_DROPOUTS) | frozenset(
    "add sub rsub __rsub__ mul div neg negative positive contiguous clone".split()
)


def carrying(values: Any) -> list[Tensor]:
    """The tensors among these that depend on the input, lists and tuples opened.

    Parameters are frozen and the input is a leaf, so these are the ones that require a gradient.
    """
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            if value.requires_grad:
                tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors.extend(carrying(value))
    return tensors


@dataclass(frozen=True, slots=True)
class Origin:
    """The tensor something was computed from (a token: it may be gone by now), and whether f(x) is curved in it."""

    origin: object
    curved: bool = False


class Elementwise:
    """The origin of every tensor that a rule has met."""

    def __init__(self) -> None:
        self._origins = Notes[Origin]()

    def of(self, tensor: Tensor) -> Origin:
        """Where it comes from: from itself, if nothing is known."""
        origin = self._origins.get(tensor)
        if origin is None:
            origin = Origin(object())
            self._origins.put(tensor, origin)
        return origin

    def follow(self, name: str, operands: Sequence[Tensor], out: Tensor) -> None:
        """``out`` is ``name`` of these operands, constants left out."""
        if name not in CURVED and name not in STRAIGHT:
            return
        origins = [self.of(t) for t in operands]
        if not origins:
            return
        if any(o.origin is not origins[0].origin for o in origins):
            self._origins.put(out, Origin(object()))  # out may be an operand, written in place
            return
        several = len(origins) > 1 and name in {"mul", "div"}
        curved = several or name in CURVED or any(o.curved for o in origins)
        self._origins.put(out, Origin(origins[0].origin, curved))
