"""A graph for tests on the CPU: the recorded function is run again at each replay, under the rules of a recording.

What CUDA would not record (a number that the host asks for) is an error here as well, so that the tests fail where a
GPU would.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from whyformer.compiled import graph as recording
from whyformer.compiled.graph import RECORDERS, Compute, Unasked, rehearsed


class _ButOnTheCPU(Unasked):
    """attention_weights asks whether a mask hides everything, on the CPU only."""

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        frame = sys._getframe()
        while frame is not None and frame.f_code.co_name != "attention_weights":
            frame = frame.f_back  # type: ignore[assignment]
        if frame is not None:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


class EagerGraph:
    """Reads static tensors, and overwrites its output."""

    made = 0
    bytes = 0

    def __init__(self, compute: Compute, device: torch.device, pool: object) -> None:
        EagerGraph.made += 1
        compute()
        self.output_device = device
        self.compute = compute
        self.output = torch.empty_like(self._computed())

    def _computed(self) -> torch.Tensor:
        with (
            patch.object(recording, "Unasked", _ButOnTheCPU),
            rehearsed(self.output_device),
            torch.inference_mode(False),
        ):
            return self.compute()

    def replay(self) -> None:
        frozen = [p for p in self.compute.modality.model.parameters() if p.requires_grad]  # type: ignore[attr-defined]
        for parameter in frozen:  # a graph holds no model: its flags do not matter
            parameter.requires_grad_(False)
        self.output.copy_(self._computed())
        for parameter in frozen:
            parameter.requires_grad_(True)


@contextmanager
def recorded_on_cpu() -> Iterator[type[EagerGraph]]:
    """Inside ``with``: ``compiled=True`` is taken on the CPU."""
    EagerGraph.made = 0
    with patch.dict(RECORDERS, cpu=EagerGraph):
        yield EagerGraph
