"""Fingerprints: a number for each position, wherever a model holds one vector per position.

Two passes are held to each other by them: where a position was not told of a change, its number is the same to the last
bit. Of activations themselves nothing stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Set
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.functions import CHOICES, POOLS, POSITIONWISE


class Marks:
    """Fingerprints of positions, (N,) numbers for each place of the model, in the order in which they were met.

    They are laid into few large blocks: hundreds of small tensors, made between activations that come and go, would
    keep the memory in between from being used again, many times their own size.
    """

    ROWS = 64

    def __init__(self) -> None:
        self._places: list[tuple[str, int, int]] = []  # path, length, row among those of this length
        self._blocks: dict[int, list[Tensor]] = {}
        self._counts: Counter[int] = Counter()
        self.way: list[tuple[int, ...]] = []  # shapes that the model met and choices that it made, in their order
        self.output = torch.zeros(1)  # what the model said

    def add(self, path: str, values_N: Tensor) -> None:
        length = len(values_N)
        row, blocks = self._counts[length], self._blocks.setdefault(length, [])
        if row == len(blocks) * self.ROWS:
            blocks.append(values_N.new_empty(self.ROWS, length))
        blocks[-1][row % self.ROWS] = values_N
        self._places.append((path, length, row))
        self._counts[length] += 1

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for path, length, row in self._places:
            yield path, self._blocks[length][row // self.ROWS][row % self.ROWS]


class Fingerprints:
    """The marks of one pass; ``see`` is told of every function that the model calls.

    lengths: numbers of positions that are looked for. last: how many attentions there will be; after them, what enters
    the head is looked at, too. path: where the model is. Numbers are random projections, which show by how much
    vectors differ.
    """

    def __init__(self, lengths: Set[int], path: Callable[[], str], last: int | None = None) -> None:
        self.lengths, self.last, self.marks = lengths, last, Marks()
        self._path = path
        self._weights: dict[int, Tensor] = {}

    def see(self, name: str, args: tuple[Any, ...], out: Any, sites: int) -> None:
        """A function with its operands and result, after so many attentions."""
        if name in CHOICES:
            indices = [t for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, Tensor)]
            self.marks.way += [tuple(t.flatten().tolist()) for t in indices if t.dtype == torch.int64]
        if name in POSITIONWISE and args:
            operand = args[1] if name == "addmm" else args[0]
            if isinstance(operand, Tensor):
                self.marks.way.append(tuple(operand.shape))
                self.add(operand)
        if self.last is not None and sites >= self.last:
            self._at_the_head(name, args, out)

    def _at_the_head(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        """What the head picks or pools, up to where positions come together."""
        operand = args[0] if args else None
        if not isinstance(operand, Tensor) or not isinstance(out, Tensor):
            return
        if name == "softmax" and any(n in self.lengths for n in out.shape):
            self.last = None  # weights of positions, each of which hears of all others
        elif name in POOLS and operand.ndim == 3 and operand.shape[1] in self.lengths:
            if operand.shape[2] == operand.shape[1]:
                return  # a map that torch's attention hands back beside its result, no vectors (WavLM)
            self.add(operand)
            if out.ndim < 2 or out.shape[1] != operand.shape[1]:
                self.last = None

    def add(self, x: Tensor) -> None:
        # Whoever watches what the model draws (loan/turns.py) is not told of these: there are more than the model's.
        unwatched = torch._C._DisableTorchDispatch() if type(x) is Tensor else None
        try:
            self._add(x)
        finally:
            del unwatched

    def _add(self, x: Tensor) -> None:
        if x.ndim == 2 and x.shape[0] in self.lengths:
            rows = x
        elif x.ndim == 3 and x.shape[0] == 1 and x.shape[1] in self.lengths:
            rows = x[0]
        elif x.ndim == 3 and x.shape[1] == 1 and x.shape[0] in self.lengths:
            rows = x[:, 0]
        else:
            return
        path, width = self._path() or "the model itself", rows.shape[1]
        if width not in self._weights:
            generator = torch.Generator().manual_seed(width)
            self._weights[width] = torch.randn(width, generator=generator, dtype=torch.float64).to(rows.device)
        self.marks.add(path, torch.mv(rows.detach().double(), self._weights[width]))

    def at_values(self, value_BHKD: Tensor) -> None:
        """What an attention reads: it may have been mixed since it was projected."""
        if len(value_BHKD) == 1 and value_BHKD.shape[2] in self.lengths:
            self.add(value_BHKD[0].transpose(0, 1).flatten(1))

    def handed_over(self) -> Marks:
        """The marks; who made them may outlive the pass, and then holds no tensor."""
        marks, self.marks = self.marks, Marks()
        self._weights.clear()
        return marks
