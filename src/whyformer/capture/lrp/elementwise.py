"""Which tensors carry relevance, which were computed element by element from one, and which weigh others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from whyformer.capture import functions as fn
from whyformer.capture.trail import Notes

# Which tensors are functions, element by element, of one and the same tensor, and which weigh others.
#
# Activations are often written out: ``0.5 * x * (1 + tanh(…x…))``, ``x * sigmoid(1.702 * x)``. Rules for products would
# take such a line apart. So every tensor that was computed element by element from a single tensor carries that
# tensor's mark: a product of two tensors with the same mark is a piece of an activation, a product of two others is a
# gate.
#
# Of two factors the gate is the one that an activation or a softmax made, and that was only moved, chosen from or
# normalised since: act(Wx) of a gated MLP, the weights a router gives its experts.

# Curved: f(x) is not proportional to x. Of these the rules know BENDS as activations.
BENDS = fn.ACTIVATIONS | fn.RARE_ACTIVATIONS
CURVED = BENDS | fn.CLAMPS | frozenset("exp expm1 log log1p abs reciprocal __rdiv__".split())
STRAIGHT = (fn.CASTS | fn.DROPOUTS | fn.RARE_DROPOUTS) | frozenset(
    "add sub rsub __rsub__ mul div neg negative positive contiguous clone".split()
)
# A clamp is curved and makes no gate: GPT-OSS clamps what is gated as well.
WEIGHING = (CURVED - fn.CLAMPS) | {"softmax"}
MOVES = (fn.LAYOUTS | fn.PIECES | fn.REPEATS | fn.LISTED) | frozenset(
    "topk sort gather take_along_dim index_select select narrow __getitem__ where masked_fill masked_select scatter "
    "scatter_add index_put roll flip broadcast_to".split()
)
LIKE = frozenset("type_as to view_as reshape_as expand_as".split())  # another tensor says what type or shape it gets


def carrying(values: Any) -> list[Tensor]:
    """Return the tensors that depend on the input, lists and tuples opened: those that require a gradient."""
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
    """Where a tensor was computed from, element by element."""

    origin: object  # a token of the tensor: that may be gone by now
    curved: bool = False  # f(x) is not proportional to x
    weighs: bool = False  # it weighs what it is multiplied with


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

    def follow(self, name: str, operands: Sequence[Tensor], out: Any) -> None:
        """``out`` is ``name`` of these operands, constants left out."""
        operands = operands[:1] if name in LIKE else operands
        if name in MOVES or name == "softmax":
            weighs = name in WEIGHING or all(self.of(t).weighs for t in operands)
            for moved in carrying((out,)) if weighs else ():
                self._origins.put(moved, Origin(object(), weighs=True))
        if not isinstance(out, Tensor) or not operands or (name not in CURVED and name not in STRAIGHT):
            return
        origins = [self.of(t) for t in operands]
        if any(o.origin is not origins[0].origin for o in origins):
            weighs = all(o.weighs for o in (origins[:1] if name == "div" else origins))
            self._origins.put(out, Origin(object(), weighs=weighs))  # out may be an operand, written in place
            return
        several = len(origins) > 1 and name in {"mul", "div"}
        curved = several or name in CURVED or any(o.curved for o in origins)
        weighs = several or name in WEIGHING or any(o.weighs for o in origins)
        self._origins.put(out, Origin(origins[0].origin, curved, weighs))
