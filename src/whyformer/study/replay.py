"""The pass that was studied once more, with every attention saying what it said: who hears of a change?

Torch's own attentions hand over results that can be put in their place. Then positions hear of each other through
those alone, which are the same again, so that a position that was not changed must hold, wherever the model has one
vector per position, exactly (bit for bit) what it held before. This is the leak audit (leak.py) in one pass, held to
the study's own; where anything is unlike, that audit decides, which forces maps to the identity and takes two.

Of a picture positions trade places: what stood at one stands at another, in its embedding and in every result. So the
same pass tells whether the head finds its rows by what stands there. A mean over positions does not hear of that, nor
who listens to those opposite: of the cells that stay, one is changed, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from whyformer.capture.functions import FusedCall, repeat_heads, sdpa_operands
from whyformer.capture.intercept import Intercept, current_path
from whyformer.capture.site import OpenSite
from whyformer.errors import CaptureError
from whyformer.loan.memory import LONG
from whyformer.study.fingerprints import Fingerprints, Marks
from whyformer.study.readout import Reached, ReadoutFinder

Changed = Callable[[], Tensor]
RETAINED = 2**28  # bytes of results and operands; a larger model is audited as others are
LEFT = 4  # one of so many pairs of cells stays where it is


class OffReplay(CaptureError):
    """The pass is another one than was studied, or cannot be changed as was meant: it tells nothing."""


class Retained:
    """What torch's own attentions of one pass gave back, and with ``operands`` what they were given.

    ``leaf``: a weight from which the pass has a graph, so that it can be differentiated as well. Nothing is left of a
    pass that attends in another way besides, writes over it, or takes too much memory.
    """

    def __init__(self, operands: bool = False, leaf: nn.Parameter | None = None) -> None:
        self.operands, self.leaf, self.whole, self.used = operands, leaf, True, False
        self.calls: list[FusedCall] = []
        self.edges: list[GradientEdge] = []  # where the gradient of each result arrives
        self.results: list[Tensor] = []
        self.logits: Tensor | None = None
        self._versions: list[int] = []
        self._bytes = 0

    def add(self, call: dict[str, Any], result: Tensor) -> None:
        if not self.whole:
            return
        tensors = [result, *((call["query"], call["key"], call["value"]) if self.operands else ())]
        self._bytes += sum(t.numel() * t.element_size() for t in tensors)
        if self._bytes > RETAINED or any(t.is_inference() for t in tensors) or call["dropout_p"]:
            self.drop()
            return
        # Maps of long inputs may not be stored at all; and what autograd does not see, the record finds out by itself.
        node = result.grad_fn
        if self.leaf is not None and (node is None or call["key"].shape[-2] >= LONG):
            self.release()
        elif self.leaf is not None and node is not None:
            self.edges.append(GradientEdge(node, result.output_nr))
        self.results.append(result.detach())
        self._versions.append(result._version)
        if self.operands:
            query, key, value = (t.detach() for t in tensors[1:])
            self.calls.append(FusedCall(query, key, value, call["attn_mask"], call["is_causal"], call["scale"]))

    def drop(self) -> None:
        self.whole, self.results, self._versions = False, [], []
        self.release()

    def release(self) -> None:
        """Nobody reads the maps of this pass: what they are made of goes, and its graph."""
        self.operands, self.leaf, self.calls, self.edges, self.logits = False, None, [], [], None

    def drop_results(self) -> None:
        """They have served the audit."""
        self.results, self._versions = [], []

    def intact(self) -> bool:
        """Nobody wrote over the results."""
        return self.whole and self._versions == [result._version for result in self.results]

    def handed_to(self, role: Intercept, forward: Changed) -> Tensor:
        """The attentions as if they came now, in a pass that ``role`` looks into; that pass itself if they are gone."""
        logits, calls, edges = self.logits, self.calls, self.edges
        self.release()
        if logits is None or not calls or any(call.written for call in calls):
            return forward()
        self.used = True
        for number, call in enumerate(calls):
            role.attended(call, edges[number] if edges else None)
        return logits


class Positions:
    """Numbers of positions: any, until the first attention says how many there are."""

    def __init__(self) -> None:
        self.count: int | None = None

    def __contains__(self, number: object) -> bool:
        return self.count is None or number == self.count


class PatchSwap:
    """Cells of a patch embedding that trade places with those opposite, but for one of every few pairs.

    grid: rows and columns of the cells. read: positions that the head reads, whose cells are among those that move.
    first_BHKD: what the first attention read, by which it is seen where the cells stand among the positions.
    """

    def __init__(self, grid: tuple[int, int], positions: int, read: Set[int], first_BHKD: Tensor) -> None:
        self.cells, self.first_BHKD = grid[0] * grid[1], first_BHKD
        pairs = list(range(self.cells // 2))
        # The head may read any of these, wherever the cells begin.
        added = positions - self.cells
        wanted = {min(r - f, self.cells - 1 - r + f) for r in read for f in range(added + 1) if 0 <= r - f < self.cells}
        free = [pair for pair in pairs if len(read) > len(pairs) or pair not in wanted]
        chosen = torch.randperm(len(free), generator=torch.Generator().manual_seed(0))[: max(1, len(free) // LEFT)]
        stay = {free[i] for i in chosen.tolist()} if free else set()
        self.moved = [c for pair in pairs if pair not in stay for c in (pair, self.cells - 1 - pair)]
        self._witness = next(iter(sorted(stay)), 0)  # the cell that is changed
        if not stay or not self.moved or added < 0:
            raise OffReplay("too few cells")
        # Of positions, once it is seen where the cells begin.
        self.order: Tensor | None = None
        self.witness = 0

    def embedded(self, out: Tensor) -> Tensor:
        """(1, D, rows, columns) with cells in each other's places, and the witness changed."""
        order = torch.arange(self.cells)
        order[self.moved] = self.cells - 1 - order[self.moved]
        flat = out.flatten(2)[:, :, order.to(out.device)]
        flat[:, :, self._witness] = flat[:, :, self._witness] * -1.5 + 0.1
        return flat.unflatten(2, out.shape[2:])

    def located(self, value_BHKD: Tensor) -> None:
        """Find the cells among the positions: those that moved, the witness, and no other.

        The witness tells an order from its reverse, in which the same cells would move.
        """
        if value_BHKD.shape != self.first_BHKD.shape:
            raise OffReplay("another number of positions")
        moved = set((value_BHKD != self.first_BHKD).any(-1).any(1)[0].nonzero()[:, 0].tolist())
        count = value_BHKD.shape[2]
        cells_changed = {*self.moved, self._witness}
        fronts = [
            f
            for f in range(count - self.cells + 1)
            if f + self._witness in moved and moved <= {f + c for c in cells_changed}
        ]
        if len(fronts) != 1 or len(moved) < 3:
            raise OffReplay("cells that cannot be told apart")
        self.order, front = torch.arange(count, device=value_BHKD.device), fronts[0]
        cells = torch.tensor(self.moved, device=value_BHKD.device)
        self.order[front + cells] = front + self.cells - 1 - cells
        self.witness = front + self._witness
        self.first_BHKD = self.first_BHKD.new_empty(0)

    @property
    def changed(self) -> set[int]:
        """Positions that hold something else than before: those that moved, and the witness."""
        assert self.order is not None
        moved = (self.order != torch.arange(len(self.order), device=self.order.device)).nonzero()[:, 0].tolist()
        return {*moved, self.witness}


class Replayed(ReadoutFinder):
    """Every attention says what it said, but for one position, or with positions in each other's places."""

    def __init__(self, names: dict[int, str], retained: Retained, position: int | None, turn: PatchSwap | None) -> None:
        super().__init__(1, names, last=len(retained.results) - 1)
        self.retained, self.position, self.turn = retained, position, turn
        self.lengths = Positions()
        self.prints = Fingerprints(self.lengths, partial(current_path, names), len(retained.results), bits=True)

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        if self.turn is not None and func.__name__ == "conv2d" and not self.sites:
            out = self.turn.embedded(out)
        self.prints.see(func.__name__, args, out, len(self.sites))
        return out

    def at_site(self, site: OpenSite) -> None:
        self.lengths.count = site.attention.shape[site.contraction.key]
        self.prints.at_values(site.value_BHKD)

    def _sdpa(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        number, call = len(self.sites), sdpa_operands(args, kwargs)
        if number >= len(self.retained.results):
            raise OffReplay("more attentions than were studied")
        result = self.retained.results[number]
        if tuple(call["query"].shape[:-1]) != tuple(result.shape[:-1]):
            raise OffReplay("attention of another shape")
        if self.turn is None:
            assert self.position is not None
            said, position = result.clone(), self.position
        else:
            if not number:
                value = call["value"]
                self.turn.located(repeat_heads(call["query"], value) if call["enable_gqa"] else value)
            assert self.turn.order is not None
            said, position = result[..., self.turn.order, :], self.turn.witness
        # At each site, so that a model without residual connections hears of it, too.
        said[..., position, :] = said[..., position, :] * -1.5 + 0.5
        return super()._sdpa(lambda *_, **__: said, args, kwargs)

    def _claim(self, *options: Any) -> Any:
        raise OffReplay("attention of another kind")


@dataclass(frozen=True)
class Replay:
    """What a pass said that was replayed with a change."""

    unheard: int | None  # places that were compared, if no position heard of a change of another; None: it is in doubt
    reached: Reached | None  # rows that feed the head, where positions traded places
    moved: float  # by how much of itself the output changed


def replay(
    forward: Changed,
    names: dict[int, str],
    retained: Retained,
    plain: Marks,
    *,
    position: int | None = None,
    turn: PatchSwap | None = None,
) -> Replay | None:
    """Run the input again with a change; None where that is not the pass that was studied."""
    role = Replayed(names, retained, position, turn)
    try:
        with torch.no_grad(), role:
            logits = forward()
        ending, role.ending = role.ending, None
        if len(role.sites) != len(retained.results) or ending is None or not logits.requires_grad:
            return None
        reached = None if turn is None else ending.reached(logits)
    except (CaptureError, RuntimeError):  # written over, or without derivatives
        return None
    again, heard = role.prints.handed_over(), {position} if turn is None else turn.changed
    count = role.lengths.count or 0
    differing = plain.differing(again, count) if plain.way == again.way else None
    unheard = len(again) if differing is not None and differing <= heard and len(again) else None
    before, after = plain.output.flatten().double(), logits.detach().flatten().double()
    if before.shape != after.shape:
        return None
    moved = float((before - after).abs().max() / before.abs().max().clamp_min(1e-30))
    return Replay(unheard, reached, moved)


def turn_of(
    grid: tuple[int, int] | None, convolutions: int, read: Sequence[int], first_BHKD: Tensor
) -> PatchSwap | None:
    """How the cells of a picture can trade places; None where its embedding is no single convolution."""
    if grid is None or convolutions != 1 or first_BHKD.shape[2] < grid[0] * grid[1]:
        return None
    try:
        return PatchSwap(grid, first_BHKD.shape[2], set(read), first_BHKD)
    except OffReplay:
        return None
