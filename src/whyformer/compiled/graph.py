"""Record a computation on a device once and replay it: CUDA graphs, and what cannot be part of one."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from whyformer.capture.functions import Args, Function, Kwargs
from whyformer.loan.digests import product_precision

Compute = Callable[[], Tensor]  # reads tensors that stay where they are, and never synchronises with the host


class Graph(Protocol):
    """A recorded computation. ``output`` is overwritten by each replay."""

    output: Tensor
    bytes: int  # of the device's memory

    def replay(self) -> None:
        """Run again on the current values of the static inputs."""


class HostAsked(RuntimeError):
    """The computation synchronises with the host, so it cannot be recorded."""


# Functions that synchronise with the device, or copy host values that a replay would not copy again.
ASKING = (
    "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "nonzero_numpy", "masked_select", "unique_dim",
    "_unique", "_unique2", "unique_consecutive", "allclose", "repeat_interleave", "lift_fresh",
)  # fmt: skip
INDEXING = ("index", "index_put", "index_put_")
FETCHING = ("tolist", "cpu", "numpy", "__array__")
COPYING = ("_to_copy", "copy_", "copy")


class Unasked(TorchDispatchMode):
    """Raise on every call that would abort a recording, and name it."""

    # A recording that CUDA itself aborts leaves torch's allocator in an undefined state, so computations are tried
    # under this mode first.

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.kind = device.type

    def __torch_dispatch__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        there = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.device.type == self.kind]
        if there and name in ASKING and func._overloadname != "self_int":  # a number of repeats is no tensor
            raise HostAsked(f"{name} copies values between device and host")
        if there and name in INDEXING and any(t.dtype is torch.bool for t in args[1] if isinstance(t, Tensor)):
            raise HostAsked("indexing by a boolean mask synchronises with the host")
        out = func(*args, **kwargs)
        if name in COPYING and len({t.device.type for t in (*tree_leaves(args), out) if isinstance(t, Tensor)}) > 1:
            raise HostAsked("a tensor is copied between device and host")
        return out


class Unfetched(TorchFunctionMode):
    """The same for calls that do not reach the dispatcher where the device is the CPU."""

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in FETCHING:
            raise HostAsked(f"{name} copies values from the device to the host")
        return func(*args, **(kwargs or {}))


def cause_of(error: BaseException) -> str:
    """Return what aborted a recording, and where in the model."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [""]
    ours = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    where = f", in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {lines[0][:200]}{where}"


class _Rehearsing(threading.local):
    active = False


REHEARSING = _Rehearsing()
_ONE = threading.Lock()  # rehearsal at a time


@contextlib.contextmanager
def rehearsed(device: torch.device) -> Iterator[None]:
    """Compute in this thread as if it were recorded, and raise on what would abort the recording."""
    with _ONE:
        # Libraries query this, and skip what would synchronise with the host.
        whether = torch.cuda.is_current_stream_capturing
        torch.cuda.is_current_stream_capturing = lambda: REHEARSING.active or whether()  # unchanged for other threads
        REHEARSING.active = True
        try:
            with Unasked(device), Unfetched():
                yield
        finally:
            REHEARSING.active = False
            torch.cuda.is_current_stream_capturing = whether


class Products(TorchDispatchMode):
    """Compute a linear layer as one product with its bias, or as a product and a sum: the faster one of its shape."""

    # For few rows in float32, the kernel that adds the bias as well may take twice as long as one that does not.

    TIMES = 20  # in one graph: one by one, launch time would be measured

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.kind = device.type
        self.apart: dict[tuple[Any, ...], bool] = {}  # by shapes: are product and sum faster?

    def __torch_dispatch__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        biased = func is torch.ops.aten.addmm.default and args[0].ndim == 1 and args[0].device.type == self.kind
        if not biased or kwargs:  # factors of its own besides
            return func(*args, **(kwargs or {}))
        shapes = tuple((t.shape, t.stride(), t.dtype) for t in args)
        if shapes not in self.apart:
            if torch.cuda.is_current_stream_capturing():  # too late to measure anything
                return func(*args)
            self.apart[shapes] = self.duration(_product_and_sum, args) < self.duration(func, args)
        return _product_and_sum(*args) if self.apart[shapes] else func(*args)

    def duration(self, product: Callable[..., Tensor], operands: tuple[Tensor, ...]) -> float:
        """Return the milliseconds of ``TIMES`` products in a replayed graph."""
        graph, stream, current = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            product(*operands)  # kernels and workspaces are chosen in the first
            stream.synchronize()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for _ in range(self.TIMES):
                    product(*operands)
            finally:
                graph.capture_end()
            best = float("inf")
            for _ in range(4):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                graph.replay()
                end.record()
                end.synchronize()
                best = min(best, begin.elapsed_time(end))
        current.wait_stream(stream)
        return best


def _product_and_sum(bias: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return torch.mm(left, right).add_(bias)


class CudaGraph:
    """A CUDA graph. Its memory is of a pool that graphs share: they are replayed one at a time."""

    def __init__(self, compute: Compute, device: torch.device, pool: Any) -> None:
        with torch.cuda.device(device):
            # Kernels and workspaces are chosen in the first passes, and what a model keeps for later is made in them.
            stream, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)
            stream.wait_stream(current)
            products = Products(device)
            with torch.cuda.stream(stream):
                with products:
                    compute()
                with rehearsed(device), products:
                    self.output = torch.empty_like(compute())
            current.wait_stream(stream)
            torch.cuda.empty_cache()  # as a recording begins: what is reserved after it is its own
            before = torch.cuda.memory_reserved(device)
            self._graph = torch.cuda.CUDAGraph()
            # Only this thread is held to the rules of a recording: others go on with their own work on the device.
            recording = torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local")
            with recording, products:
                self.output.copy_(compute())
            self.bytes = max(0, torch.cuda.memory_reserved(device) - before)

    def replay(self) -> None:
        self._graph.replay()


# By the kind of device.
RECORDERS: dict[str, Callable[[Compute, torch.device, Any], Graph]] = {"cuda": CudaGraph}


def new_pool(device: torch.device) -> Any:
    """Memory for graphs that are replayed one at a time."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


def tolerance(dtype: torch.dtype, device: torch.device) -> float:
    """Return the relative tolerance between an explanation and its replay."""
    if dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(device.type):
        return 1e-2 if product_precision("cuda") in (True, "tf32") else 1e-3
    return 1e-1
