"""Which tensors are functions, element by element, of one and the same tensor.

Activations are often written out: ``0.5 * x * (1 + tanh(…x…))``, ``x * sigmoid(1.702 * x)``. Rules for products would
take such a line apart. So every tensor that was computed element by element from a single tensor carries that tensor's
mark: a product of two tensors with the same mark is a piece of an activation, a product of two others is a gate.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

# Curved: f(x) is not proportional to x. These are also the functions that the rules know as activations.
ACTIVATIONS = frozenset(
    "relu relu6 gelu silu mish elu celu selu leaky_relu prelu rrelu hardtanh hardswish hardsigmoid softplus softsign "
    "tanh tanhshrink hardshrink softshrink sigmoid logsigmoid erf special_erf special_expit pow square".split()
)
CURVED = ACTIVATIONS | frozenset("exp expm1 log log1p abs clamp clamp_min clamp_max clip reciprocal __rdiv__".split())
STRAIGHT = frozenset(
    "add sub rsub __rsub__ mul div neg negative positive to type type_as float double half bfloat16 contiguous clone "
    "dropout dropout1d dropout2d alpha_dropout feature_dropout".split()
)
_SPELLINGS = {
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "subtract": "sub",
    "swish": "silu",
    "special_softmax": "softmax",
    "__pow__": "pow",
    "float_power": "pow",
}


def carrying(values: Any) -> list[Tensor]:
    """The tensors among these that depend on the input, lists and tuples opened.

    Parameters are frozen and the input is a leaf, so these are the ones that require a gradient.
    """
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            if value.requires_grad:
                found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(carrying(value))
    return found


def plain_name(name: str) -> tuple[str, bool]:
    """One name per function, and whether it writes into its first operand: ``mul_`` → ("mul", True)."""
    in_place = name.endswith("_") and not name.endswith("__")
    name = name[:-1] if in_place else name
    return _SPELLINGS.get(name, name), in_place


def out_of_place(name: str) -> Callable[..., Any]:
    """The function that gives back what ``name_`` would write: ``relu`` of ``relu_``."""
    found: Callable[..., Any] = getattr(Tensor, name, None) or getattr(F, name)
    return found


@dataclass(frozen=True, slots=True)
class Origin:
    """The tensor something was computed from (a token: it may be gone by now), and whether f(x) is curved in it."""

    origin: object
    curved: bool = False


class Elementwise:
    """Marks by tensor identity; a mark dies with its tensor."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[weakref.ref[Tensor], Origin]] = {}

    def of(self, tensor: Tensor) -> Origin:
        entry = self._marks.get(id(tensor))
        if entry is not None and entry[0]() is tensor:
            return entry[1]
        return self._put(tensor, Origin(object()))

    def _put(self, tensor: Tensor, mark: Origin) -> Origin:
        self._marks[id(tensor)] = (weakref.ref(tensor), mark)
        return mark

    def follow(self, name: str, operands: Sequence[Tensor], out: Tensor) -> None:
        """``out`` is ``name`` of these operands, constants left out."""
        if name not in CURVED and name not in STRAIGHT:
            return
        marks = [self.of(t) for t in operands]
        if not marks:
            return
        if any(m.origin is not marks[0].origin for m in marks):
            self._put(out, Origin(object()))  # out may be an operand, written in place
            return
        several = len(marks) > 1 and name in {"mul", "div"}
        self._put(out, Origin(marks[0].origin, several or name in CURVED or any(m.curved for m in marks)))
