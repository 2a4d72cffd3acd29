"""A model that is spread over processes: what of it is here, and what can be said from here.

Under tensor parallelism (parameters are DTensors) each process runs some of the heads, and between layers all of them
hold the same numbers: what the model says and gradients at its input are those of the whole model, a map of attention
is not. A stage of a pipeline is some of the layers, and says nothing by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.errors import NotOffered, PartlyCaptured
from whyformer.loan.turns import Watch

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


def is_sharded(parameters: Iterable[Tensor]) -> bool:
    """Is a part of some parameter in another process?"""
    kind = _dtensor()
    return any(isinstance(p, kind) and not all(s.is_replicate() for s in p.placements) for p in parameters)


def heads_elsewhere(model: nn.Module) -> PartlyCaptured | None:
    """What stands against reading attention here, and against counting heads."""
    return (
        PartlyCaptured(HEADS_ELSEWHERE.format(model=type(model).__name__)) if is_sharded(model.parameters()) else None
    )


def local_of(tensor: Tensor) -> Tensor:
    """What this process has of a tensor."""
    return tensor.to_local() if isinstance(tensor, _dtensor()) else tensor


def whole_of(tensor: Tensor) -> Tensor:
    """All of a tensor; every process has to ask for it."""
    return tensor.full_tensor() if isinstance(tensor, _dtensor()) else tensor


def placed_like(whole: Tensor, other: Tensor) -> Tensor:
    """A tensor that all processes have, for a layer that waits for one like ``other``."""
    kind = _dtensor()
    if not isinstance(other, kind):
        return whole
    from torch.distributed.tensor import Replicate

    mesh = other.device_mesh
    placed: Tensor = kind.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return placed


class NoStage(Watch):
    """Refuse a model that talks with one other process as it runs, before it waits for an answer that never comes."""

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
