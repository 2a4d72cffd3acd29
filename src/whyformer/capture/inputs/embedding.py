"""Reach the word embeddings of a running model: look at them, or put others in their place."""

from __future__ import annotations

from collections.abc import Callable
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
        self.weight = getattr(table, "weight", None)
        self.replace = replace
        self.found = False

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__ != "embedding" or self.found:
            return out
        indices, weight = _operands(args, kwargs)
        if self._is_input(indices, weight, self.ids):
            self.found = True
            return self.replace(out)
        if self._is_input(indices, weight, self.ids.t()):  # models that put the sequence first
            self.found = True
            return self.replace(out.transpose(0, 1)).transpose(0, 1)
        length = self.ids.shape[1]
        if indices.ndim == 2 and indices.shape[1] > length and self._is_input(indices[:, :length], weight, self.ids):
            self.found = True  # models that pad their input themselves (Longformer)
            return torch.cat([self.replace(out[:, :length]), out[:, length:]], 1)
        return out

    def _is_input(self, indices: Tensor, weight: Tensor, ids: Tensor) -> bool:
        if indices.shape != ids.shape or (self.weight is not None and weight is not self.weight):
            return False
        return indices is ids or torch.equal(indices, ids)


def _operands(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> tuple[Tensor, Tensor]:
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
