"""The engine of many machines: actors of Ray explain parts, and the driver commits what they send back.

Ray executes, and nothing more: the plan and the log of commits are the same as on one machine. A worker that dies, with
its process or its node, is replaced, and its parts are given to others.
"""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from whyformer.errors import BadInput, JobStopped, MissingExtra
from whyformer.explainer import Explainer
from whyformer.jobs.plan import Part
from whyformer.jobs.store import Written
from whyformer.jobs.worker import Work, Worker

IN_FLIGHT = 2  # parts per worker: one that it explains, and one that waits for it
ATTEMPTS = 3  # of a part whose worker dies
PATIENCE = 600.0  # seconds without any worker


class RemoteWorker:
    """A worker in a process of its own, on its GPU where it was given one."""

    def __init__(self, model: Any, processor: Any, attention_at: dict[str, str], work: Work) -> None:
        if torch.cuda.is_available() and os.environ.get("CUDA_VISIBLE_DEVICES"):
            model = model.to("cuda")
        self.worker = Worker(Explainer(model, processor, attention_at=attention_at), work)

    def ready(self) -> bool:
        return True

    def explained(self, part: Part, proven: bool) -> Written:
        self.worker.proven = self.worker.proven or proven
        return self.worker.explained(self.worker.prepared(part))


def run_on_ray(
    explainer: Explainer,
    work: Work,
    parts: Iterator[Part],
    commit: Callable[[Written], object],
    *,
    proven: bool = False,
    workers: int | None = None,
    address: str | None = None,
) -> None:
    """Explain parts on a cluster: the one at ``address``, the one that is connected already, or one started here."""
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray", "engine='ray'") from None
    places = {p.device for p in explainer.model.parameters()}
    if len(places) > 1 or any(place.type == "meta" for place in places):
        raise BadInput(
            "engine='ray' gives each worker a copy of the model, and this one is spread over devices or offloaded: use "
            "engine='local', which explains it as it is, or load it as a whole."
        )
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address, workers)
    try:
        _Pool(ray, explainer, work, workers, proven).run(parts, commit)
    finally:
        if ours:
            ray.shutdown()


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        if address is None:
            ray.init(num_cpus=workers or os.cpu_count(), include_dashboard=False, **how)
        else:
            ray.init(address=address, **how)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or ["it does not answer"])[0]
        raise BadInput(f"no Ray cluster could be reached at address={address!r} ({reason}).") from error


class _Pool:
    """Workers, the parts that each has, and those that wait to be given to one."""

    def __init__(self, ray: Any, explainer: Explainer, work: Work, workers: int | None, proven: bool) -> None:
        self.ray, self.proven = ray, proven
        resources = ray.cluster_resources()
        self.gpus = int(resources.get("GPU", 0))
        self.size = workers or max(1, self.gpus or int(resources.get("CPU", 1)))
        model = explainer.model
        if any(p.is_cuda for p in model.parameters()):
            model = copy.deepcopy(model).cpu()  # a worker may have another device, or none
        self.model = ray.put(model)
        self.rest = (explainer.processor, explainer.attention_at, work)
        self.actor = ray.remote(num_cpus=1, num_gpus=1 if self.gpus else 0, max_restarts=0)(RemoteWorker)
        self.starting: dict[Any, Any] = {}  # what it will say → worker
        self.busy: dict[Any, tuple[Any, Part]] = {}  # what will come → worker, part
        self.load: dict[Any, int] = {}  # of the workers that are ready
        self.again: deque[Part] = deque()
        self.attempts: dict[int, int] = {}

    def run(self, parts: Iterator[Part], commit: Callable[[Written], object]) -> None:
        errors = self.ray.exceptions
        try:
            for _ in range(self.size):
                self._start()
            waiting: Iterator[Part] | None = parts
            while True:
                waiting = self._feed(waiting)
                if waiting is None and not self.busy and not self.again:
                    return
                done, _ = self.ray.wait([*self.busy, *self.starting], num_returns=1, timeout=PATIENCE)
                if not done and not self.busy:
                    raise JobStopped(
                        f"no worker could be started in {PATIENCE:.0f} seconds. What is done is safe: give the "
                        "cluster a free CPU (and GPU, where it has some), and run the same again to go on."
                    )
                for reference in done:
                    try:
                        self._heard(reference, self.ray.get(reference), commit)
                    except errors.RayTaskError as error:  # the worker lives, and says what is wrong
                        raise error.cause from None
                    except errors.RayError as error:
                        self._lost(reference, error)
        finally:
            for worker in [*self.load, *self.starting.values()]:
                self.ray.kill(worker)

    def _start(self) -> None:
        worker = self.actor.remote(self.model, *self.rest)
        self.starting[worker.ready.remote()] = worker

    def _feed(self, parts: Iterator[Part] | None) -> Iterator[Part] | None:
        """Give parts to the workers that have room; None when the input has ended."""
        while room := [worker for worker, load in self.load.items() if load < IN_FLIGHT]:
            part = self.again.popleft() if self.again else next(parts, None) if parts is not None else None
            if part is None:
                return None
            worker = min(room, key=self.load.__getitem__)
            self.load[worker] += 1
            self.busy[worker.explained.remote(part, self.proven)] = worker, part
        return parts

    def _heard(self, reference: Any, said: Any, commit: Callable[[Written], object]) -> None:
        if reference in self.starting:
            self.load[self.starting.pop(reference)] = 0
            return
        worker, _ = self.busy.pop(reference)
        self.load[worker] -= 1
        self.proven = self.proven or said.explanations > 0
        commit(said)

    def _lost(self, reference: Any, error: Exception) -> None:
        """A worker is gone: another one takes its place, and its parts wait for whoever has room."""
        if reference in self.starting:
            del self.starting[reference]
            self._count(-1, error)
            self._start()
            return
        worker, part = self.busy.pop(reference)
        self._count(part.number, error)
        self.again.append(part)
        if self.load.pop(worker, None) is not None:
            self._start()

    def _count(self, number: int, error: Exception) -> None:
        self.attempts[number] = self.attempts.get(number, 0) + 1
        if self.attempts[number] >= ATTEMPTS * (self.size if number < 0 else 1):
            what = "starting them" if number < 0 else f"explaining part {number}"
            raise JobStopped(
                f"workers died {self.attempts[number]} times {what} ({str(error).strip().splitlines()[0]}). What is "
                "done is safe: is their memory too small? Use fewer workers or smaller batches, and run it again."
            )
