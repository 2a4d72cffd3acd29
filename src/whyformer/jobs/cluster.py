"""The engine of many machines: actors of Ray explain parts, and the driver commits what they send back.

Ray executes, and nothing more: the plan and the log of commits are the same as on one machine.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from whyformer.errors import BadInput
from whyformer.explainer import CoreExplainer
from whyformer.extras import require
from whyformer.jobs.folder import Written
from whyformer.jobs.processes import Gone, Pool, Staff
from whyformer.jobs.source import Part
from whyformer.jobs.worker import Work, Worker


class RemoteWorker:
    """A worker in a process of its own, on its GPU where it was given one."""

    def __init__(self, model: Any, processor: Any, attention_at: dict[str, str], work: Work) -> None:
        if torch.cuda.is_available() and os.environ.get("CUDA_VISIBLE_DEVICES"):
            model = model.to("cuda")
        self.worker = Worker(CoreExplainer(model, processor, attention_at=attention_at), work)

    def ready(self) -> bool:
        return True

    def explained(self, part: Part, proven: bool) -> Written:
        return self.worker.whole(part, proven)


def run_on_ray(
    explainer: CoreExplainer,
    work: Work,
    parts: Iterator[Part],
    commit: Callable[[Written], object],
    *,
    proven: bool = False,
    workers: int | None = None,
    address: str | None = None,
) -> None:
    """Explain parts on a cluster: the one at ``address``, the one that is connected already, or one started here."""
    require("ray", why="engine='ray'")
    import ray

    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address, workers)
    try:
        Pool(_Actors(ray, explainer, work, workers), proven).run(parts, commit)
    finally:
        if ours:
            ray.shutdown()


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        if address is None:
            ray.init(num_cpus=workers or os.cpu_count(), include_dashboard=False, **options)
        else:
            ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or ["it does not answer"])[0]
        raise BadInput(f"no Ray cluster could be reached at address={address!r} ({reason}).") from error


class _Actors(Staff):
    """Actors of Ray, each with a CPU, and with a GPU where the cluster has some."""

    def __init__(self, ray: Any, explainer: CoreExplainer, work: Work, workers: int | None) -> None:
        self.ray = ray
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        self.size = workers or max(1, gpus or int(resources.get("CPU", 1)))
        model = explainer.model
        if any(p.device.type != "cpu" for p in model.parameters()):
            model = copy.deepcopy(model).cpu()  # a worker may have another device, or none
        self.model = ray.put(model)
        self.rest = (explainer.processor, explainer.attention_at, work)
        self.actor = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_restarts=0)(RemoteWorker)

    def start(self) -> tuple[Any, Any]:
        worker = self.actor.remote(self.model, *self.rest)
        return worker, worker.ready.remote()

    def give(self, worker: Any, part: Part, proven: bool) -> Any:
        return worker.explained.remote(part, proven)

    def wait(self, answers: Sequence[Any], seconds: float) -> Sequence[Any]:
        done: Sequence[Any] = self.ray.wait(list(answers), num_returns=1, timeout=seconds)[0]
        return done

    def read(self, answer: Any) -> Any:
        errors = self.ray.exceptions
        try:
            return self.ray.get(answer)
        except errors.RayTaskError as error:  # the worker lives, and says what is wrong
            raise error.cause from None
        except errors.RayError as error:
            raise Gone(str(error)) from error

    def end(self, worker: Any) -> None:
        self.ray.kill(worker)
