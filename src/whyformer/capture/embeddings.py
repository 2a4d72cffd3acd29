"""Reach the word embeddings of a running model: look at them, or put others in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class SwapEmbedding(TorchFunctionMode):
    """Replace the embedding of the input ids by ``replace(embedding)`` on its way into the model.

    The lookup is recognised by the model's own input embedding table, or by the ids that are looked up.
    """

    def __init__(self, ids: Tensor, table: nn.Module | None, replace: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.ids = ids
        self.table = table
        self.replace = replace
        self.weight_used: Tensor | None = None  # the table that the ids were looked up in, once they were

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        swapped = self.swapped(out, *operands(args, kwargs)) if func.__name__ == "embedding" else None
        return out if swapped is None else swapped

    def swapped(self, out: Tensor, indices: Tensor, weight: Tensor) -> Tensor | None:
        """What the lookup gives instead of ``out``; None where it is not the one that is waited for."""
        if self.weight_used is not None:
            return None
        length, replacement = self.ids.shape[1], None
        if self._is_input(indices, weight, self.ids):
            replacement = self._other(out)
        elif self._is_input(indices, weight, self.ids.t()):  # models that put the sequence first
            replacement = self._other(out.transpose(0, 1)).transpose(0, 1)
        elif indices.ndim == 2 and indices.shape[1] > length and self._is_input(indices[:, :length], weight, self.ids):
            # models that pad their input themselves (Longformer)
            replacement = torch.cat([self._other(out[:, :length]), out[:, length:]], 1)
        self.weight_used = None if replacement is None else weight
        return replacement

    def _other(self, embedding: Tensor) -> Tensor:
        other = self.replace(embedding)
        # A leaf must not be written into, and some models do that (CTRL scales what it looked up in place).
        return other.clone() if other.is_leaf and other.requires_grad else other

    def _is_input(self, indices: Tensor, weight: Tensor, ids: Tensor) -> bool:
        # The table's weight is asked for now: an offloaded one is another tensor in each pass.
        if indices.shape != ids.shape or (self.table is not None and weight is not self.table.weight):
            return False
        return indices is ids or torch.equal(indices, ids)


class SwapEmbeddings(TorchFunctionMode):
    """Several streams of ids at once. A lookup serves the first that waits for it: two streams may hold equal ids."""

    def __init__(self, swaps: Sequence[SwapEmbedding]) -> None:
        super().__init__()
        self.swaps = swaps

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__ != "embedding":
            return out
        lookup = operands(args, kwargs)
        return next((s for s in (swap.swapped(out, *lookup) for swap in self.swaps) if s is not None), out)


def operands(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> tuple[Tensor, Tensor]:
    """Ids and table of an embedding lookup."""
    named = dict(zip(("input", "weight"), args, strict=False)) | (kwargs or {})
    return named["input"], named["weight"]


def input_table(model: nn.Module) -> nn.Module | None:
    """The model's own word embedding, where it says which one that is."""
    getter = getattr(model, "get_input_embeddings", None)
    if getter is None:
        return None
    try:
        table = getter()
    except (NotImplementedError, AttributeError):
        return None
    return table if isinstance(table, nn.Embedding) else None


class ShiftEmbedding(TorchFunctionMode):
    """Move the word embeddings by what ``delta(ids)`` says, at every lookup in their table.

    Entered before an explanation starts: the method itself sees the moved embeddings. The shift is a function of the
    ids, so that every pass, variant and batch of an explanation moves alike.
    """

    def __init__(self, table: nn.Embedding, delta: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.table, self.delta = table, delta

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__ != "embedding":
            return out
        ids, weight = operands(args, kwargs)
        return out + self.delta(ids).to(out) if weight is self.table.weight else out
