"""A lineage that finds the rows that feed the head in the same pass.

Which attention is the last one is known only at the end. So every attention that may be starts a graph of its own, and
what autograd saved since the one before is let go: at the end there is the graph from the last attention to the logits,
as if it had been known to be the last, and never more than one block of activations.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.lineage import Lineage
from whyformer.capture.probe import Ending, Reached


class Tail(Lineage):
    """Marks every tensor, and keeps the graph behind the latest attention, from call ``start`` on."""

    def __init__(self, batch: int, names: dict[int, str], inputs: list[tuple[Tensor, str]], start: int = 0) -> None:
        super().__init__(batch, names, inputs)
        self.start = start
        self.ending: Ending | None = None
        self._saved: dict[int, Tensor] = {}  # by autograd, since the latest attention
        self._count = 0

    def pack(self, tensor: Tensor) -> int:
        """What autograd saves is held here, under a number."""
        self._count += 1
        self._saved[self._count] = tensor
        return self._count

    def unpack(self, number: int) -> Tensor:
        return self._saved[number]

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = self.ending
        out = super().__torch_function__(func, types, args, kwargs)
        if self.ending is not None and self.ending is before:
            self.ending.see(func.__name__, args, kwargs, out)
        return out

    def _sdpa(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        with torch.no_grad():
            out = super()._sdpa(func, args, kwargs)
        return self._started(out)

    def _claim(self, *how: Any) -> Any:
        with torch.no_grad():
            out = super()._claim(*how)
        return self._started(out)

    def _started(self, out: Tensor) -> Tensor:
        """The result at the start of a graph; a copy is handed on, since models may write into it."""
        if len(self.sites) <= self.start:
            return out
        self._saved.clear()
        torch.set_grad_enabled(True)
        self.ending = Ending(self.sites[-1], out.requires_grad_())
        return self._noted(out.clone(), out)

    def reached(self, logits: Tensor) -> Reached | None:
        """Rows of the last attention that reach the logits; None if this pass cannot tell."""
        ending, self.ending = self.ending, None
        try:
            found = ending.reached(logits) if ending is not None and logits.requires_grad else None
            return found if found is not None and found.rows else None
        except (RuntimeError, KeyError):  # cut, without derivative, or in need of what was let go (checkpoints)
            return None
        finally:
            self._saved.clear()


def trace(
    forward: Callable[[], Tensor], names: dict[int, str], inputs: list[tuple[Tensor, str]]
) -> tuple[Lineage, frozenset[int], Reached | None]:
    """One forward pass on a single input: its sites, the attention calls that reach the output, and their last rows.

    A model that has fewer attention calls than layers leaves its rows open; so does one that cannot run with gradients
    (weights of inference mode, functions without derivatives), which runs once more without them.
    """
    tail = Tail(1, names, inputs, start=likely_last(names))
    try:
        with torch.no_grad(), torch.autograd.graph.saved_tensors_hooks(tail.pack, tail.unpack), tail:
            logits = forward()
    except Exception:  # whatever is wrong with the model itself is said by the second pass
        plain = Lineage(1, names, inputs)
        with torch.no_grad(), plain:
            logits = forward()
        return plain, plain.reaching(logits), None
    return tail, tail.reaching(logits), tail.reached(logits)


def likely_last(names: dict[int, str]) -> int:
    """A guess at the number of the last attention call: as if each of the model's layers had one.

    It decides what a study costs, never what it finds: too small, graphs are kept in vain; too large, the rows take a
    pass of their own.
    """
    layers = [re.match(r"\D*?(?:^|\.)(\d+)\.", name) for name in names.values()]
    return max((int(found[1]) for found in layers if found), default=0)
