"""Jobs of a long bench, one after the other or several at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

Job = tuple[str, int]  # what, and the seed


def done_jobs(jobs: list[Job], processes: int, task: Callable[[Job], Any]) -> Iterator[tuple[Job, Any]]:
    """Jobs with their results, as they are done."""
    if processes == 1:
        yield from ((job, task(job)) for job in jobs)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(task, job): job for job in jobs}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
