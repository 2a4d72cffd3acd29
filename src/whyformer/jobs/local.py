"""The engine of one process: parts are read and tokenised in a thread, ahead of the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from whyformer.jobs.folder import Written
from whyformer.jobs.partition import Part
from whyformer.jobs.worker import Prepared, Worker

AHEAD = 2  # parts that are ready before the model is


def run_here(worker: Worker, parts: Iterator[Part], commit: Callable[[Written], object]) -> None:
    """Explain parts one after the other, and commit each as it is done."""

    def ready() -> Prepared | None:
        part = next(parts, None)
        return None if part is None else worker.prepared(part)

    with ThreadPoolExecutor(1, thread_name_prefix="whyformer-reading") as reader:
        waiting: deque[Future[Prepared | None]] = deque(reader.submit(ready) for _ in range(AHEAD))
        while (prepared := waiting.popleft().result()) is not None:
            waiting.append(reader.submit(ready))
            commit(worker.explained(prepared))
