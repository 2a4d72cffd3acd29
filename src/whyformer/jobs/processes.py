"""Run workers of a job: in this process, in several processes, or on a Ray cluster.

They are started anew (spawned), get the model as bytes, and answer parts in the order in which they got them.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from typing import Any

import torch
from torch import nn

from whyformer.errors import BadInput, JobStopped, require
from whyformer.explainer import CoreExplainer
from whyformer.jobs.folder import Written
from whyformer.jobs.source import Part
from whyformer.jobs.worker import ReadPart, Work, Worker

IN_FLIGHT = 2  # parts per worker: one that it explains, and one that waits for it
ATTEMPTS = 3  # of a part whose worker dies
PATIENCE = 600.0  # seconds without any worker


class Gone(Exception):
    """A worker died before it answered."""


class Pool:
    """Workers, the parts that each has, and those that wait to be given to one.

    Its staff starts ``size`` workers: ``start`` returns a worker and an answer to wait for, ``give`` hands it a part
    and returns the answer that will hold the result. ``wait`` returns the answers that have come, or never will;
    ``read`` returns what one holds, raises the worker's error, or Gone if the worker died. ``end`` kills a worker.
    """

    def __init__(self, staff: Processes | Actors, proven: bool) -> None:
        self.staff, self.proven = staff, proven
        self.pending: dict[Any, tuple[Any, Part | None]] = {}  # answer → worker and its part; None: it is starting
        self.load: dict[Any, int] = {}  # parts of each worker that is ready
        self.lost: deque[Part] = deque()
        self.attempts: dict[int, int] = {}

    def run(self, parts: Iterator[Part], commit: Callable[[Written], object]) -> None:
        """Explain parts in whatever order they get done, and commit each as it is."""
        try:
            for _ in range(self.staff.size):
                self._start()
            waiting: Iterator[Part] | None = parts
            while True:
                waiting = self._feed(waiting)
                busy = any(part is not None for _, part in self.pending.values())
                if waiting is None and not busy and not self.lost:
                    return
                done = self.staff.wait([*self.pending], PATIENCE)
                if not done and not busy:
                    raise JobStopped(
                        f"no worker could be started in {PATIENCE:.0f} seconds. Finished parts are saved: free a CPU "
                        "(and a GPU, if the job uses them) and run the job again to resume."
                    )
                for answer in done:
                    try:
                        self._heard(answer, self.staff.read(answer), commit)
                    except Gone as error:
                        self._lost(answer, error)
        finally:
            for worker in [*self.load, *(worker for worker, part in self.pending.values() if part is None)]:
                self.staff.end(worker)

    def _start(self) -> None:
        worker, answer = self.staff.start()
        self.pending[answer] = worker, None

    def _feed(self, parts: Iterator[Part] | None) -> Iterator[Part] | None:
        """Give parts to the workers that have room; None when the input has ended."""
        while room := [worker for worker, load in self.load.items() if load < IN_FLIGHT]:
            part = self.lost.popleft() if self.lost else next(parts, None) if parts is not None else None
            if part is None:
                return None
            worker = min(room, key=self.load.__getitem__)
            self.load[worker] += 1
            self.pending[self.staff.give(worker, part, self.proven)] = worker, part
        return parts

    def _heard(self, answer: Any, said: Any, commit: Callable[[Written], object]) -> None:
        worker, part = self.pending.pop(answer)
        if part is None:
            self.load[worker] = 0
            return
        if worker in self.load:
            self.load[worker] -= 1
        self.proven = self.proven or said.commit.explanations > 0
        commit(said)

    def _lost(self, answer: Any, error: Exception) -> None:
        """Replace a worker that died, and queue its parts again."""
        worker, part = self.pending.pop(answer)
        self._count(-1 if part is None else part.number, error)
        if part is not None:
            self.lost.append(part)
        if part is None or self.load.pop(worker, None) is not None:
            self._start()

    def _count(self, number: int, error: Exception) -> None:
        self.attempts[number] = self.attempts.get(number, 0) + 1
        if self.attempts[number] >= ATTEMPTS * (self.staff.size if number < 0 else 1):
            what = "starting them" if number < 0 else f"explaining part {number}"
            raise JobStopped(
                f"workers died {self.attempts[number]} times {what} ({str(error).strip().splitlines()[0]}). Finished "
                "parts are saved. A common cause is too little memory: use fewer workers or smaller batches, and run "
                "the job again."
            )


def require_whole(model: nn.Module, why: str) -> None:
    """Raise if a model is not on one device, because workers get copies."""
    devices = {p.device for p in model.parameters()}
    if len(devices) > 1 or any(device.type == "meta" for device in devices):
        raise BadInput(
            f"{why} gives each worker a copy of the model, and this one is distributed over devices or offloaded: use "
            "engine='local' without workers, or load the model onto one device."
        )


AHEAD = 2  # parts that are ready before the model is


def run_here(worker: Worker, parts: Iterator[Part], commit: Callable[[Written], object]) -> None:
    def ready() -> ReadPart | None:
        part = next(parts, None)
        return None if part is None else worker.prepared(part)

    with ThreadPoolExecutor(1, thread_name_prefix="whyformer-reading") as reader:
        waiting: deque[Future[ReadPart | None]] = deque(reader.submit(ready) for _ in range(AHEAD))
        while (prepared := waiting.popleft().result()) is not None:
            waiting.append(reader.submit(ready))
            commit(worker.explained(prepared))


CLOSED = (EOFError, ConnectionError, BrokenPipeError)  # the other end of a pipe is gone
AT_START = (
    "a worker ended before it was ready; its error output is above. In a script, call explain_dataset with workers "
    "under if __name__ == '__main__': every worker imports the script."
)


def devices_of(device: torch.device, workers: int, gpus: int) -> list[str]:
    """Return the device of each worker: GPUs in turn, from the model's own, if the model is on a GPU."""
    if device.type != "cuda" or not gpus:
        return [str(device)] * workers
    return [f"cuda:{((device.index or 0) + number) % gpus}" for number in range(workers)]


@dataclass(eq=False)
class _Process:
    """A process, the pipe to it, and the answers that it owes, the oldest first."""

    process: Any
    pipe: Any
    device: str
    owed: deque[Future[Any]] = field(default_factory=deque)
    ready: bool = False  # it answered once

    def owing(self) -> Future[Any]:
        self.owed.append(Future())
        return self.owed[-1]


class Processes:
    """Processes of this machine, started anew for the job."""

    def __init__(self, explainer: CoreExplainer, work: Work, workers: int) -> None:
        self.size = workers
        self.bytes = _saved((explainer.model, explainer.processor, explainer.attention_at, work))
        device = next((p.device for p in explainer.model.parameters()), torch.device("cpu"))
        self.free = deque(devices_of(device, workers, torch.cuda.device_count()))
        self.started: list[_Process] = []
        self.context = get_context("spawn")

    def start(self) -> tuple[Any, Any]:
        here, there = self.context.Pipe()
        device = self.free.popleft()
        threads = max(1, torch.get_num_threads() // self.size)
        process = self.context.Process(target=_serve, args=(there, device, threads), daemon=True)
        process.start()
        there.close()  # its end is its own: when it dies, reading here comes to an end
        worker = _Process(process, here, device)
        self.started.append(worker)
        with suppress(*CLOSED):  # where it died at once, its answer says so
            here.send_bytes(self.bytes)
        return worker, worker.owing()

    def give(self, worker: Any, part: Part, proven: bool) -> Any:
        with suppress(*CLOSED):
            worker.pipe.send((part, proven))
        return worker.owing()

    def wait(self, answers: Sequence[Any], seconds: float) -> Sequence[Any]:
        workers = {worker.pipe: worker for worker in self.started if worker.owed}
        for pipe in connection.wait(list(workers), seconds):
            worker: _Process = workers[pipe]
            try:
                went_well, said = worker.pipe.recv()
                worker.ready, answer = True, worker.owed.popleft()
                (answer.set_result if went_well else answer.set_exception)(said)
            except CLOSED:  # it is dead: its answers are lost
                self.free.append(worker.device)
                worker.process.join(5)
                worker.pipe.close()
                code = worker.process.exitcode
                error: Exception = Gone(f"a process ended, with {code}")
                if not worker.ready and (code or 0) > 0:  # nobody killed it: the next would end in the same way
                    error = JobStopped(AT_START)
                while worker.owed:
                    worker.owed.popleft().set_exception(error)
        return [answer for answer in answers if answer.done()]

    def read(self, answer: Any) -> Any:
        return answer.result()

    def end(self, worker: Any) -> None:
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()


def _saved(what: Any) -> bytes:
    """Serialize the model and the task for workers, which load the weights onto their devices."""
    stream = io.BytesIO()
    try:
        torch.save(what, stream)
    except Exception as error:  # whatever the parts of a model say when they are pickled
        raise BadInput(
            f"the model cannot be sent to other processes ({type(error).__name__}: {error}): use engine='local' "
            "without workers."
        ) from error
    return stream.getvalue()


def _serve(pipe: connection.Connection, device: str, threads: int) -> None:
    """Load the model, report ready, and answer parts until None comes or the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    torch.set_num_threads(threads)
    try:
        model, processor, attention_at, work = torch.load(
            io.BytesIO(pipe.recv_bytes()), map_location=device, weights_only=False
        )
        worker = Worker(CoreExplainer(model, processor, attention_at=attention_at), work)
        pipe.send((True, None))
        run_here(worker, _received(pipe, worker), lambda written: pipe.send((True, written)))
    except CLOSED:
        return
    except Exception as error:
        with suppress(*CLOSED):
            pipe.send((False, _sent(error)))


def _received(pipe: connection.Connection, worker: Worker) -> Iterator[Part]:
    """Yield parts as they come. The next is always being received: else sending a large one would block."""
    while (asked := pipe.recv()) is not None:
        part, proven = asked
        worker.proven = worker.proven or proven
        yield part


def _sent(error: Exception) -> Exception:
    """Return the error, or its message in a JobStopped if it does not survive pickling."""
    try:
        same = pickle.loads(pickle.dumps(error))
    except Exception:
        same = None
    return error if str(same) == str(error) else JobStopped(f"a worker stopped ({type(error).__name__}: {error}).")


class RemoteWorker:
    """A worker in a process of its own, on its GPU where it was given one."""

    def __init__(self, model: Any, processor: Any, attention_at: dict[str, str], work: Work) -> None:
        if torch.cuda.is_available() and os.environ.get("CUDA_VISIBLE_DEVICES"):
            model = model.to("cuda")
        self.worker = Worker(CoreExplainer(model, processor, attention_at=attention_at), work)

    def ready(self) -> bool:
        return True

    def explained(self, part: Part, proven: bool) -> Written:
        self.worker.proven = self.worker.proven or proven
        return self.worker.explained(self.worker.prepared(part))


@contextmanager
def cluster(address: str | None, workers: int | None) -> Iterator[Any]:
    """Ray, connected to the cluster at ``address``, to the one it was connected to before, or to one started here."""
    require("ray", why="engine='ray'")
    import ray

    if ray.is_initialized():
        yield ray
        return
    local: dict[str, Any] = {"num_cpus": workers or os.cpu_count(), "include_dashboard": False}
    place = local if address is None else {"address": address}
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", configure_logging=False, **place)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or ["it does not answer"])[0]
        raise BadInput(f"the Ray cluster at address={address!r} could not be reached ({reason}).") from error
    try:
        yield ray
    finally:
        ray.shutdown()


class Actors:
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
        return self.ray.wait(list(answers), num_returns=1, timeout=seconds)[0]

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
