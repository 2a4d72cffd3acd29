"""Memory that tensors hold, counted storage by storage: the same on every machine, whatever else it does."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def set_apart() -> None:
    """Exclude what is alive by now, of other tests and of libraries, from ``gc.get_objects()``.

    Counts of live objects then do not change when garbage of another test is collected; and going through all objects
    took longer than the calls.
    """
    gc.collect()
    gc.freeze()


class LiveBytes(TorchDispatchMode):
    """Bytes of the tensors made inside ``with LiveBytes(model):`` that are alive, and the most there were at once."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        own = [*model.parameters(), *model.buffers()]
        self._ignored = {StorageWeakRef(t.untyped_storage()) for t in own}
        self._live: dict[StorageWeakRef, int] = {}
        self.peak = 0

    @property
    def now(self) -> int:
        self._live = {storage: size for storage, size in self._live.items() if not storage.expired()}
        return sum(self._live.values())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                storage = StorageWeakRef(tensor.untyped_storage())
                if storage not in self._ignored:
                    self._live[storage] = tensor.untyped_storage().nbytes()
        self.peak = max(self.peak, self.now)
        return out


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the most bytes that tensors made by ``run`` took at a time; what kernels use inside is not seen."""
    with LiveBytes(nn.Module()) as live:
        run()
    return live.peak
