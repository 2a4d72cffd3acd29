"""Measure memory: the peak of a device, and the bytes that autograd saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

LONG = 1024  # positions; below, maps are stored without thinking about it

# How much memory the graph of a forward pass keeps for its backward pass.


def _storages(tensor: Tensor) -> list[torch.UntypedStorage]:
    """Of a tensor that wraps others (spread over processes, or quantised), theirs: it has no memory of its own."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor.untyped_storage()]
    parts = (getattr(tensor, name) for name in flatten()[0])  # of a tensor over processes, also the mesh of devices
    return [storage for part in parts if isinstance(part, Tensor) for storage in _storages(part)]


class SavedBytes:
    """Inside ``with``: bytes of the tensors that autograd saves, weights left out and shared memory counted once."""

    def __init__(self, model: nn.Module) -> None:
        self.total = 0
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        weights = [*model.parameters(), *model.buffers()]
        self._seen = {storage.data_ptr() for weight in weights for storage in _storages(weight)}

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._hooks.__exit__(*exc)

    def _pack(self, tensor: Tensor) -> Tensor:
        for storage in _storages(tensor):
            if storage.data_ptr() not in self._seen:
                self._seen.add(storage.data_ptr())
                self.total += storage.nbytes()
        # The tensor itself would hold the node that holds it: a cycle through autograd, which no collector sees.
        return tensor.detach()

    def _unpack(self, tensor: Tensor) -> Tensor:
        return tensor


# The most memory a call took: of the device's allocator, or of the whole process where the model is on the CPU.


STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """Bytes above what was in use when it was made, at the highest moment since; 0 where the system does not tell.

    On the CPU this is resident memory as the system sees it: what the process had free already is not seen, and what
    other threads take is. On a GPU it is what torch's allocator handed out.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.start: int | None = _allocated(device, "current")
        else:
            try:
                CLEAR.write_text("5")  # the highest resident size so far is set back to the present one (Linux)
                self.start = _resident("VmRSS")
            except OSError:
                self.start = None

    @property
    def bytes(self) -> int:
        if self.start is None:
            return 0
        if self.device.type == "cuda":
            highest = _allocated(self.device, "peak")
        else:
            highest = _resident("VmHWM")
        return max(0, highest - self.start)


def free_bytes(device: torch.device) -> int:
    """What a device has left, the allocator's reserve included; 0 where the system does not tell."""
    if device.type == "cuda":
        reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + reserve
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), 0)


def _allocated(device: torch.device, when: str) -> int:
    """As torch.cuda.memory_allocated, which sorts a hundred other figures first."""
    return int(torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"][when])


def resident() -> int:
    """Bytes of memory that the process has now; 0 where the system does not tell."""
    return _resident("VmRSS")


def _resident(field: str) -> int:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)
