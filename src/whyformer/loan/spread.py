"""Models over several devices or processes, quantised or recomputed layers, and memory.

Under tensor parallelism (parameters are DTensors) each process runs some of the heads, and between layers all of them
hold the same numbers: what the model says and gradients at its input are those of the whole model, a map of attention
is not. A stage of a pipeline is some of the layers, and says nothing by itself.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from whyformer.errors import NotOffered, PartlyCaptured
from whyformer.loan.turns import Watch

LONG = 1024  # positions; maps of shorter inputs are always stored


def _storages(tensor: Tensor) -> list[torch.UntypedStorage]:
    """Return the storages of a tensor, or of those that it wraps (spread over processes, or quantised)."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor.untyped_storage()]
    parts = (getattr(tensor, name) for name in flatten()[0])  # of a tensor over processes, also the mesh of devices
    return [storage for part in parts if isinstance(part, Tensor) for storage in _storages(part)]


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """Inside ``with``: bytes of the tensors that autograd saves, weights left out and shared memory counted once."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(self._pack, lambda tensor: tensor)
        self.total = 0
        weights = [*model.parameters(), *model.buffers()]
        self._seen = {storage.data_ptr() for weight in weights for storage in _storages(weight)}

    def __enter__(self) -> SavedBytes:  # type: ignore[override]
        super().__enter__()
        return self

    def _pack(self, tensor: Tensor) -> Tensor:
        for storage in _storages(tensor):
            if storage.data_ptr() not in self._seen:
                self._seen.add(storage.data_ptr())
                self.total += storage.nbytes()
        # The tensor itself would hold the node that holds it: a cycle through autograd, which no collector sees.
        return tensor.detach()


class MultiplyAdds(TorchDispatchMode):
    """Inside ``with``: multiply-adds of products and convolutions, also where torch's own counter hides gradients."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        out, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if name in {"mm", "bmm", "addmm", "baddbmm"}:
            self.total += out.numel() * args["add" in name].shape[-1]
        elif name in {"convolution", "convolution_backward"}:  # to what goes in: weights need no gradient
            back = name != "convolution"
            self.total += (args[0] if back else out).numel() * args[1 + back][0].numel()
        return out


STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


PEAK_ON_CPU: ContextVar[bool] = ContextVar("measure peak memory on a CPU", default=False)


@contextlib.contextmanager
def measured_on_cpu() -> Iterator[None]:
    """Inside ``with``: measure the peak memory of explanations on a CPU, too, which takes .4 ms for each batch."""
    before = PEAK_ON_CPU.set(True)
    try:
        yield
    finally:
        PEAK_ON_CPU.reset(before)


class Peak:
    """The peak of memory since it was made, in bytes above the start; 0 where it is not measured or not reported.

    On the CPU, on request, this is resident memory as the system sees it: what the process had free already is not
    seen, and what other threads take is. On a GPU it is what torch's allocator handed out.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.start: int | None = None
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.start = _allocated(device, "current")
        elif PEAK_ON_CPU.get():
            try:
                CLEAR.write_text("5")  # the highest resident size so far is set back to the present one (Linux)
                self.start = resident()
            except OSError:
                pass

    @property
    def bytes(self) -> int:
        if self.start is None:
            return 0
        highest = _allocated(self.device, "peak") if self.device.type == "cuda" else resident("VmHWM")
        return max(0, highest - self.start)


def out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out: on a CPU torch raises a plain RuntimeError."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def free_bytes(device: torch.device) -> int:
    """Return the free bytes of a device, the allocator's reserve included; 0 where the system does not report it."""
    if device.type == "cuda":
        reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + reserve
    return resident("MemAvailable", Path("/proc/meminfo"))


def _allocated(device: torch.device, when: str) -> int:
    """As torch.cuda.memory_allocated, which sorts a hundred other figures first."""
    return int(torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"][when])


def resident(field: str = "VmRSS", file: Path = STATUS) -> int:
    """Bytes of memory that the process has now, or another figure of the system; 0 where it is not reported."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)


def offloaded(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the weights of a module itself that are on the meta device, by name."""
    return [(name, p) for name, p in module._parameters.items() if p is not None and p.is_meta]


def require_loaded(model: nn.Module) -> None:
    """Raise if a model has weights on the meta device that no hook loads."""
    brought: tuple[str, ...] = ()  # paths whose hook places everything below
    for path, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        if getattr(hook, "place_submodules", False):
            brought += (f"{path}." if path else "",)
        missing = offloaded(module)
        hooked = hook is not None or module._forward_pre_hooks or "forward" in module.__dict__
        if missing and not hooked and not path.startswith(brought):
            name = f"{path}.{missing[0][0]}" if path else missing[0][0]
            raise NotOffered(
                f"{name} is on the meta device, which holds shapes and no numbers, and no hook loads it before a pass: "
                "there is nothing to explain yet. Load the weights, e.g. with from_pretrained(…) or "
                "model.load_state_dict(state, assign=True)."
            )


def execution_device(model: nn.Module) -> torch.device:
    """Return the device on which a model with offloaded weights runs."""
    for parameter in model.parameters():
        if not parameter.is_meta:
            return parameter.device
    for module in model.modules():
        device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return torch.device(device)
    return torch.device("cpu")


def recomputable(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a transformers model that support gradient checkpointing."""
    return [m for m in model.modules() if any(c.__name__ == "GradientCheckpointingLayer" for c in type(m).__mro__)]


@contextlib.contextmanager
def recomputing(layers: list[nn.Module]) -> Iterator[None]:
    """Inside ``with``: recompute these layers in the backward pass, so that only what lies between them is stored."""
    # They do so in training alone: the flag of the layer itself is set, none of its parts.
    func = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False, preserve_rng_state=False)
    told = {"gradient_checkpointing": True, "training": True, "_gradient_checkpointing_func": func}
    before = [(layer, {name: layer.__dict__.get(name, told) for name in told}) for layer in layers]
    try:
        for layer in layers:
            layer.__dict__.update(told)
        yield
    finally:
        for layer, values in before:
            for name, value in values.items():
                if value is told:  # it had none of its own
                    layer.__dict__.pop(name, None)
                else:
                    layer.__dict__[name] = value


HEADS_ELSEWHERE = (
    "the weights of {model} are spread over processes (tensor parallelism), each of which runs some of the heads: no "
    "process sees a whole map of attention. For attention, load the model in one process, e.g. with "
    "device_map='auto', which lays whole layers on its devices."
)
STAGE = (
    "the model sends tensors to another process, or waits for some ({operation}), as it runs: it is one stage of a "
    "pipeline, and a stage is not the model. Load the whole model in one process, e.g. with device_map='auto', which "
    "lays its layers on several devices."
)
BETWEEN_TWO = {"send", "recv_", "recv_any_source_"}  # operations of torch.distributed
# Has torch.distributed brought this process together with others? Asked in every call: torch's own function, unwrapped.
BESIDE_OTHERS: Callable[[], bool] = torch.distributed.is_initialized if torch.distributed.is_available() else bool
MULTIPLY = {"mm", "addmm", "bmm", "baddbmm", "convolution"}  # no model runs without one of them


def _dtensor() -> Any:
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())  # there are none before it is imported


def is_distributed(tensor: Tensor) -> bool:
    """Whether a tensor is one of torch.distributed's, over processes."""
    return isinstance(tensor, _dtensor())


def is_sharded(parameters: Iterable[Tensor]) -> bool:
    """Whether a part of some parameter is in another process."""
    kind = _dtensor()
    return any(isinstance(p, kind) and not all(s.is_replicate() for s in p.placements) for p in parameters)


def heads_elsewhere(model: nn.Module) -> PartlyCaptured | None:
    """Return the error that this process sees only some of the heads, or None."""
    if not is_sharded(model.parameters()):
        return None
    return PartlyCaptured(HEADS_ELSEWHERE.format(model=type(model).__name__))


def local_of(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds."""
    return tensor.to_local() if isinstance(tensor, _dtensor()) else tensor


def whole_of(tensor: Tensor) -> Tensor:
    """Return a whole tensor; every process has to call it."""
    return tensor.full_tensor() if isinstance(tensor, _dtensor()) else tensor


def placed_like(whole: Tensor, other: Tensor) -> Tensor:
    """Distribute a tensor that all processes hold as ``other`` is distributed."""
    kind = _dtensor()
    if not isinstance(other, kind):
        return whole
    from torch.distributed.tensor import Replicate

    mesh = other.device_mesh
    placed: Tensor = kind.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return placed


class NoStage(Watch):
    """Raise if a model exchanges tensors with one other process as it runs, which would wait forever here."""

    def __init__(self) -> None:
        super().__init__()
        self.computed = False  # did anything run?

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "c10d" and func._opname in BETWEEN_TWO:
            raise NotOffered(STAGE.format(operation=f"torch.distributed.{func._opname.rstrip('_')}"))
        self.computed = self.computed or func._opname in MULTIPLY
        return func(*args, **(kwargs or {}))
