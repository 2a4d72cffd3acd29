"""Shares: a tensor of the running model, split over the input positions it came from.

The shares x_s of a hidden state, one per source position s, and an offset (biases on their way) add up to it. They are
computed when they are needed, in chunks of sources, so that the middle of an MLP never exists for all sources at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from whyformer.capture.functions import Function
from whyformer.errors import NotOffered

Compute = Callable[[int, int], Tensor]  # first source, end → (sources, *shape)
BUDGET = 2**24  # numbers a chunk of shares may have: 64 MiB in float32
BIAS_RULES = ("absdot", "norm", "equal", "abssim")
HALF = frozenset({torch.float16, torch.bfloat16})
UNMIXED, MIXED = "unmixed", "mixed"  # stages: each position still is its own only source; just out of an attention
STRANGER = "a sum or join with something that is neither a hidden state nor a parameter: it came around the layers"
Outcome: TypeAlias = "Shares | Sequence[Shares | None] | None"
Rule = Callable[["FunctionCall"], Outcome]


class Shares:
    """One tensor's shares, by source."""

    def __init__(
        self,
        sources: int,
        shape: tuple[int, ...],
        compute: Compute | None,
        offset: Tensor | None = None,
        *,
        stage: str = "",  # where biases are settled (rules.py)
        gate: bool = False,  # it is the result of a nonlinearity
        keep: bool = False,  # computed as a whole when first needed, and kept
        lost: str = "",  # why it cannot be split
    ) -> None:
        self.sources, self.shape, self.offset = sources, shape, offset
        self.stage, self.gate, self.keep, self.lost = stage, gate, keep, lost
        self._compute = compute
        self._whole: Tensor | None = None

    @property
    def size(self) -> int:
        return self.sources * math.prod(self.shape)

    def part(self, first: int, end: int) -> Tensor:
        """(end - first, *shape) shares of some sources."""
        if self.keep or self._whole is not None:
            return self.hold()[first:end]
        return self._computed(first, end)

    def _computed(self, first: int, end: int) -> Tensor:
        if self._compute is None:
            raise NotOffered(f"decompx cannot follow the model through {self.lost}.")
        return self._compute(first, end)

    def chunks(self) -> Iterator[tuple[int, int]]:
        step = max(1, BUDGET // max(1, math.prod(self.shape)))
        for first in range(0, self.sources, step):
            yield first, min(first + step, self.sources)

    def hold(self) -> Tensor:
        """All shares, computed once and kept; what they were computed from is let go."""
        if self._whole is None:
            whole: Tensor | None = None
            for first, end in self.chunks():
                part = self._computed(first, end)
                if end - first == self.sources:
                    whole = part
                else:
                    whole = part.new_empty((self.sources, *self.shape)) if whole is None else whole
                    whole[first:end] = part
            assert whole is not None
            self._whole, self._compute = whole, None
        return self._whole


def diagonal(value: Tensor, axis: int) -> Shares:
    """The start: every position along ``axis`` is its own source."""
    sources = value.shape[axis]
    value = value.float() if value.dtype in HALF else value

    def compute(first: int, end: int) -> Tensor:
        part = value.new_zeros((end - first, *value.shape))
        positions = torch.arange(first, end, device=value.device)
        by_position = part.movedim(axis + 1, 1)
        by_position[positions - first, positions] = value.movedim(axis, 0)[positions]
        return part

    return Shares(sources, tuple(value.shape), compute, stage=UNMIXED)


def settled(shares: Shares, rule: str | None, holdable: int) -> Shares:
    """Distribute the offset over the sources by a rule (None: drop it); keep results of up to ``holdable`` numbers."""
    offset = shares.offset
    if offset is None or shares.lost:
        return shares
    stage = UNMIXED if shares.stage == UNMIXED else ""
    if rule is None and stage == UNMIXED:
        rule = "equal"  # to its own position, which is the only one there; the authors' first layer does the same
    if rule is None:
        return Shares(shares.sources, shares.shape, shares.part, stage=stage, gate=shares.gate)
    keep, proportions = shares.size <= max(holdable, BUDGET), list[Tensor]()

    def part(first: int, end: int) -> Tensor:
        if keep:
            shares.hold()
        if not proportions:  # computed when somebody needs them, once
            proportions.append(_proportions(shares, offset, rule))
        return torch.addcmul(shares.part(first, end), proportions[0][first:end, ..., None], offset)

    return Shares(shares.sources, shares.shape, part, stage=stage, gate=shares.gate, keep=keep)


def _proportions(shares: Shares, offset: Tensor, rule: str) -> Tensor:
    """(sources, …) nonnegative, adding up to one over the sources."""

    def claims(rule: str) -> Tensor:
        return torch.cat([_claim(shares.part(*chunk), offset, rule) for chunk in shares.chunks()])

    weights = claims(rule)
    # NOTE[DIFF] the authors lose a bias that no source claims (0/0 guarded by 1e-12); here those that contribute
    # anything share it alike, so that shares always add up.
    if (unclaimed := weights.sum(0) == 0).any():
        weights = torch.where(unclaimed, claims("equal"), weights)
        weights = torch.where(weights.sum(0) == 0, 1.0, weights)
    return weights / weights.sum(0)


def _claim(part: Tensor, offset: Tensor, rule: str) -> Tensor:
    """How strongly each share claims the offset: |⟨v, b⟩|, ‖v‖, being there at all, or |cos(v, b)|."""
    if rule == "absdot":
        return (part * offset).sum(-1).abs()
    norm = torch.linalg.vector_norm(part, dim=-1)
    if rule == "norm":
        return norm
    if rule == "equal":
        return (norm != 0).to(part.dtype)
    dot = (part * offset).sum(-1).abs()
    return torch.where(norm == 0, 0.0, dot / torch.where(norm == 0, 1.0, norm))  # ‖b‖ cancels


@dataclass
class FunctionCall:
    """One call of the model as its rule sees it: operands as leaves, and the shares of those that have some."""

    name: str
    func: Function
    leaves: list[Any]
    spec: TreeSpec
    shares: dict[int, Shares]  # by leaf
    out: Any
    bias: str | None  # how biases are shared
    holdable: int  # numbers a result may have and be kept: those of the stream of hidden states

    @classmethod
    def of(
        cls, name: str, func: Function, args: Any, kwargs: Any, find: Callable[[Any], Shares | None]
    ) -> FunctionCall:
        leaves, spec = tree_flatten((args, kwargs))
        shares = {i: s for i, leaf in enumerate(leaves) if (s := find(leaf)) is not None}
        return cls(name, func, leaves, spec, shares, None, None, 0)

    def again(self, replaced: dict[int, Any]) -> Any:
        """The same call with other operands; constants join in the precision of the shares."""
        halves = {i: t.float() for i, t in enumerate(self.leaves) if isinstance(t, Tensor) and t.dtype in HALF}
        replaced = halves | replaced
        args, kwargs = tree_unflatten([replaced.get(i, leaf) for i, leaf in enumerate(self.leaves)], self.spec)
        return self.func(*args, **kwargs)

    def arguments(self, *names: str) -> list[Any]:
        """Arguments by the order of their names, None where not given."""
        args, kwargs = tree_unflatten(self.leaves, self.spec)
        by_name = dict(zip(names, args, strict=False)) | kwargs
        return [by_name.get(n) for n in names]

    def of_operand(self, operand: Any) -> Shares | None:
        """Shares of one of the arguments."""
        for i, shares in self.shares.items():
            if self.leaves[i] is operand:
                return shares
        return None

    def is_stranger(self, constant: Any) -> bool:
        """Return whether a constant that joins the stream is no bias: activations, after the first attention."""
        if self.stage == UNMIXED or not isinstance(constant, Tensor) or isinstance(constant, nn.Parameter):
            return False
        return constant.numel() > 1 and bool(constant.any())

    def settle(self, shares: Shares) -> Shares:
        return settled(shares, self.bias, self.holdable)

    def lost(self, why: str = "") -> Shares:
        """A result that cannot be split, which matters only to those who need its shares."""
        shape = tuple(self.out.shape) if isinstance(self.out, Tensor) else ()
        return Shares(self.sources, shape, None, lost=why or f"torch's {self.name}()")

    def all_lost(self, why: str) -> Outcome:
        return self.lost(why) if isinstance(self.out, Tensor) else [self.lost(why) for _ in self.out]

    def mapped(
        self, shares: Shares, each: Callable[[Tensor], Tensor], offset: Tensor | None, stage: str, gate: bool = False
    ) -> Shares:
        """Shares of the result: ``each`` of those of an operand."""
        if shares.lost:
            return self.lost(shares.lost)
        part = shares.part
        return Shares(
            shares.sources, self.shape, lambda first, end: each(part(first, end)), offset, stage=stage, gate=gate
        )

    def hold(self, shares: Shares) -> Shares:
        """Attention results are computed at once, so that no chain of promises grows over the layers."""
        if not shares.lost and shares.size <= self.holdable:
            shares.hold()
        return shares

    def settle_unmixed(self, shares: Shares) -> Shares:
        """Before the first attention every bias belongs to the position it is added at."""
        return self.settle(shares) if shares.stage == UNMIXED else shares

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.out.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Shares are never in half precision."""
        return torch.float32 if self.out.dtype in HALF else self.out.dtype

    @property
    def sources(self) -> int:
        return next(iter(self.shares.values())).sources

    @property
    def stage(self) -> str:
        """Stage of a result that treats its operands alike."""
        stages = {s.stage for s in self.shares.values()}
        return MIXED if MIXED in stages else UNMIXED if stages == {UNMIXED} else ""


def expanded(part: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Shares of an operand that was broadcast to a result of this shape."""
    missing = len(shape) + 1 - part.ndim
    return part.reshape(part.shape[0], *[1] * missing, *part.shape[1:]).expand(-1, *shape)


def per_source(function: Callable[..., Tensor], parts: list[Tensor]) -> Tensor:
    """Apply a function to every source's share; all at once where torch can."""
    try:
        result: Tensor = torch.vmap(function)(*parts)
    except RuntimeError:  # e.g. boolean indexing, which vmap cannot do
        result = torch.stack([function(*members) for members in zip(*parts, strict=True)])
    return result
