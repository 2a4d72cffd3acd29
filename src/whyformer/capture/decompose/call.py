"""One function call of a model that is being decomposed, as its rule sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from whyformer.capture.decompose.shares import HALF, MIXED, OWN, Shares, settled

Found: TypeAlias = "Shares | Sequence[Shares | None] | None"
Rule = Callable[["Call"], Found]
Function = Callable[..., Any]
STRANGER = "a sum or join with something that is neither a hidden state nor a parameter: it came around the layers"


@dataclass
class Call:
    """One function call of the model: operands as leaves, and the shares of those that have some."""

    name: str
    func: Function
    leaves: list[Any]
    spec: TreeSpec
    shares: dict[int, Shares]  # by leaf
    out: Any
    bias: str | None  # how biases are shared
    holdable: int  # numbers a result may have and be kept: those of the stream of hidden states

    @classmethod
    def of(cls, name: str, func: Function, args: Any, kwargs: Any, find: Callable[[Any], Shares | None]) -> Call:
        leaves, spec = tree_flatten((args, kwargs))
        found = {i: s for i, leaf in enumerate(leaves) if (s := find(leaf)) is not None}
        return cls(name, func, leaves, spec, found, None, None, 0)

    def again(self, replaced: dict[int, Any]) -> Any:
        """The same call with other operands; constants join in the precision of the shares."""
        leaves = [replaced[i] if i in replaced else _full(leaf) for i, leaf in enumerate(self.leaves)]
        args, kwargs = tree_unflatten(leaves, self.spec)
        return self.func(*args, **kwargs)

    def arguments(self, *names: str) -> list[Any]:
        """Arguments by the order of their names, None where not given."""
        args, kwargs = tree_unflatten(self.leaves, self.spec)
        given = dict(zip(names, args, strict=False)) | kwargs
        return [given.get(n) for n in names]

    def of_operand(self, operand: Any) -> Shares | None:
        """Shares of one of the arguments."""
        for i, shares in self.shares.items():
            if self.leaves[i] is operand:
                return shares
        return None

    def is_stranger(self, constant: Any) -> bool:
        """Whether a constant that joins the stream is no bias: it came around the layers, or along with the input.

        Before the first attention everything belongs to its position, so nothing is strange there.
        """
        if self.stage == OWN or not isinstance(constant, Tensor) or isinstance(constant, nn.Parameter):
            return False
        return constant.numel() > 1 and bool(constant.any())

    def settle(self, shares: Shares) -> Shares:
        return settled(shares, self.bias, self.holdable)

    def lost(self, why: str = "") -> Shares:
        """A result that cannot be split, which matters only to those who need its shares."""
        shape = tuple(self.out.shape) if isinstance(self.out, Tensor) else ()
        return Shares(self.sources, shape, None, lost=why or f"torch's {self.name}()")

    def all_lost(self, why: str) -> Found:
        return self.lost(why) if isinstance(self.out, Tensor) else [self.lost(why) for _ in self.out]

    def hold(self, found: Shares) -> Shares:
        """Attention results are computed at once, so that no chain of promises grows over the layers."""
        if found.size <= self.holdable:
            found.hold()
        return found

    def settle_own(self, shares: Shares) -> Shares:
        """Before the first attention every bias belongs to the position it is added at."""
        return self.settle(shares) if shares.stage == OWN else shares

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
        return MIXED if MIXED in stages else OWN if stages == {OWN} else ""


def _full(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.dtype in HALF else leaf


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
