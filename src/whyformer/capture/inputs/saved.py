"""How much memory the graph of a forward pass keeps for its backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class SavedBytes:
    """Inside ``with``: bytes of the tensors that autograd saves, weights left out and shared memory counted once."""

    def __init__(self, model: nn.Module) -> None:
        self.total = 0
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._seen = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._hooks.__exit__(*exc)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.total += storage.nbytes()
        return tensor

    def _unpack(self, tensor: Tensor) -> Tensor:
        return tensor
