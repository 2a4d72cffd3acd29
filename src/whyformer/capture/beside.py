"""What the host does beside a backward pass: while torch's own threads tell a GPU what to compute, Python only waits.

Names of units, and maps that do not depend on any gradient, are made meanwhile, in a thread of its own. On the CPU the
backward pass takes the cores itself, and nothing is gained.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch

from whyformer.loan.turns import WORKER

Work = Callable[[], object]


class _Worker:
    """One thread for all; a forked process starts its own."""

    def __init__(self) -> None:
        self.pool: ThreadPoolExecutor | None = None

    def started(self) -> ThreadPoolExecutor:
        if self.pool is None:
            self.pool = ThreadPoolExecutor(1, thread_name_prefix=WORKER)
        return self.pool

    def forget(self) -> None:
        self.pool = None


_WORKER = _Worker()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WORKER.forget)


@contextlib.contextmanager
def beside(works: Sequence[Work], device: torch.device) -> Iterator[None]:
    """Inside ``with``: a backward pass. Afterwards the works may be done, too; what they raise is raised."""
    if device.type != "cuda" or torch.is_autocast_enabled("cuda"):  # a setting of this thread alone
        yield
        return
    stream = torch.cuda.current_stream(device)

    def run() -> None:
        with torch.cuda.stream(stream):
            for work in works:
                work()

    done = _WORKER.started().submit(run)
    try:
        yield
    finally:
        began = not done.cancel()  # others may have been before it: who needs the work does it later
        if began:
            wait([done])
    if began:
        done.result()
