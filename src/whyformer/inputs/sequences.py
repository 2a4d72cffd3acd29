"""Which arguments of a home-made model are sequences of their own, found by running it once.

A second argument of whole numbers may be a sequence (what a decoder is fed, the second of two texts), may describe the
tokens of the first one (segments, positions), or may be a number beside them. Names do not tell these apart: ``trg`` is
as good as ``tgt``. What the model does with it does: vectors that enter an attention without the other's are a stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whyformer.capture.functions import ATTENTION, PRODUCTS, tensors_in
from whyformer.capture.trail import Notes
from whyformer.errors import WhyformerError
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.loan.borrow import known_about
from whyformer.targets import logits_of

DESCRIBE = frozenset(("token_type_ids", "position_ids"))  # of the tokens beside them, in every model
NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StreamOrigin:
    """The arguments whose positions a tensor holds, all that it was made of, and whether attention was among that."""

    positions: frozenset[str]
    behind: frozenset[str]
    attended: bool = False


class Flow(TorchFunctionMode):
    """Follow arguments through a model: which of them attend by themselves, and which are put together before that."""

    def __init__(self, arguments: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.entered: set[str] = set()  # their positions ask or are asked in some attention
        self.joined: set[str] = set()  # put together with another one before any attention
        self.asked: list[tuple[frozenset[str], frozenset[str]]] = []  # (queries, keys) of different arguments
        self._origins = Notes[StreamOrigin]()
        for name, tensor in arguments.items():
            self._origins.put(tensor, StreamOrigin(frozenset((name,)), frozenset((name,))))

    def behind(self, tensor: Tensor) -> frozenset[str]:
        """The arguments that a tensor was made of."""
        origin = self._origins.get(tensor)
        return NOBODY if origin is None else origin.behind

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        operands = tensors_in((*args, *(kwargs or {}).values()))
        known = [(t, origin) for t in operands if (origin := self._origins.get(t)) is not None]
        name = func.__name__
        if not known or name.startswith("new_") or name.endswith("_like"):
            return out
        origin = self._made(name, known)
        for tensor in tensors_in([out]) or ([args[0]] if name == "__setitem__" else []):
            self._origins.put(tensor, origin)
        return out

    def _made(self, name: str, known: list[tuple[Tensor, StreamOrigin]]) -> StreamOrigin:
        origins = [origin for _, origin in known]
        behind = NOBODY.union(*(origin.behind for origin in origins))
        attended = any(origin.attended for origin in origins)
        vectors = [origin for tensor, origin in known if tensor.ndim > 2]
        if name in ATTENTION or (name in PRODUCTS and len(vectors) > 1):
            query, key = origins[0].positions, origins[min(1, len(origins) - 1)].positions
            self.entered |= query | key
            if not query & key:
                self.asked.append((query, key))
            return StreamOrigin(query, behind, True)
        positions = NOBODY.union(*(origin.positions for origin in origins))
        # After attention, what was read of one sequence may be added to what was read of another.
        ids = name in {"cat", "concat", "concatenate"} and all(tensor.ndim == 2 for tensor, _ in known)
        if len(positions) > 1 and not attended and (ids or len(vectors) > 1):
            self.joined |= positions
        return StreamOrigin(positions if not attended else origins[0].positions, behind, attended)


@dataclass(frozen=True)
class Sequences:
    """own: arguments that are sequences, the one that is asked first. unscored: others that reach the answer.

    passes: how many it took to find that out.
    """

    own: tuple[str, ...]
    unscored: tuple[str, ...]
    passes: int


def sequences_of(modality: Modality, inputs: Any) -> Sequences | None:
    """What the model does with each argument of whole numbers, found out once; None for one argument, or if it fails.

    modality: any that calls the model with tensors.
    """
    try:
        one = Modality.adopt(modality, inputs).select([0])
    except WhyformerError:  # raised again, in context, when the inputs are adopted
        return None
    numbers = {k: v for k, v in one.tensors.items() if not v.is_floating_point() and v.dtype != torch.bool}
    numbers = {k: v for k, v in numbers.items() if "mask" not in k and k not in DESCRIBE}
    if len(numbers) < 2:
        return None
    facts, key = known_about(modality.model), ("sequences", tuple((k, v.ndim) for k, v in one.tensors.items()))
    if key not in facts:
        facts[key] = _found(modality, one, numbers)
    found: Sequences | None = facts[key]
    return found


def _found(modality: Modality, one: Batch, numbers: Mapping[str, Tensor]) -> Sequences | None:
    flow = Flow(numbers)
    try:
        with torch.no_grad(), flow:
            logits = logits_of(modality.call(one))
    except WhyformerError:
        return None
    seen = flow.behind(logits)
    own = [k for k in numbers if k in flow.entered - flow.joined and k in seen and numbers[k].ndim == 2]
    asked = {key for query, keys in flow.asked for key in keys if query <= set(own)}
    own.sort(key=lambda name: name not in asked)
    passes, unscored = 1, []
    for name, tensor in numbers.items():
        if name in own or name == modality.main:
            continue
        # Code that no mode sees into (TorchScript, numpy) hides the way of an argument, not its effect.
        if name not in seen:
            passes += 1
            other = torch.zeros_like(tensor) if bool(tensor.any()) else torch.ones_like(tensor)
            if not _changes(modality, one.with_tensors(**{name: other}), logits):
                continue
        unscored.append(name)
    return Sequences(tuple(own), tuple(unscored), passes)


def _changes(modality: Modality, other: Batch, logits: Tensor) -> bool:
    try:
        with torch.no_grad(), Flow({}):  # torch's fused encoder, which is left aside under a mode, rounds differently
            return not torch.equal(logits_of(modality.call(other)), logits)
    except WhyformerError:  # the model reads it, or it would take any number
        return True
