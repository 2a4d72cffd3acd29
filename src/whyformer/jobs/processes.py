"""Several processes here, each with a copy of the model: one per GPU, or each with a share of the CPU's threads.

They are started anew (spawned), get the model as bytes, and answer parts in the order in which they got them.
"""

from __future__ import annotations

import io
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from typing import Any

import torch

from whyformer.errors import BadInput, JobStopped
from whyformer.explainer import Explainer
from whyformer.jobs.folder import Written
from whyformer.jobs.local import run_here
from whyformer.jobs.partition import Part
from whyformer.jobs.pool import Gone, Pool, Staff
from whyformer.jobs.worker import Work, Worker

CLOSED = (EOFError, ConnectionError, BrokenPipeError)  # the other end of a pipe is gone
AT_START = (
    "a worker ended before it was ready; its own words are above. In a script, call explain_dataset with workers under "
    "if __name__ == '__main__': each of them reads the script, too."
)


def run_in_processes(
    explainer: Explainer,
    work: Work,
    parts: Iterator[Part],
    commit: Callable[[Written], object],
    *,
    workers: int,
    proven: bool = False,
) -> None:
    """Explain parts in ``workers`` processes, and commit each as it is done."""
    Pool(_Processes(explainer, work, workers), proven).run(parts, commit)


def devices_of(device: torch.device, workers: int, gpus: int) -> list[str]:
    """Where each worker has its model: GPUs in turn, beginning with the model's own, where it is on one."""
    if device.type != "cuda" or not gpus:
        return [str(device)] * workers
    return [f"cuda:{((device.index or 0) + number) % gpus}" for number in range(workers)]


def threads_of(workers: int) -> int:
    """Of torch, for each worker: those of this process, shared out."""
    return max(1, torch.get_num_threads() // workers)


@dataclass(eq=False)
class _Answer:
    """What a process will say; ``said``: whether it went well, and the result or the error."""

    worker: _Process
    said: tuple[bool, Any] | None = None


@dataclass(eq=False)
class _Process:
    """A process, the pipe to it, and the answers that it owes, the oldest first."""

    process: Any
    pipe: Any
    device: str
    owed: deque[_Answer] = field(default_factory=deque)
    ready: bool = False  # it answered once

    def owing(self) -> _Answer:
        answer = _Answer(self)
        self.owed.append(answer)
        return answer

    def hear(self, said: tuple[bool, Any]) -> None:
        self.ready = True
        self.owed.popleft().said = said

    def bury(self) -> None:
        """It is dead, and answers nothing any more."""
        self.process.join(5)
        self.pipe.close()
        code = self.process.exitcode
        error: Exception = Gone(f"a process ended, with {code}")
        if not self.ready and (code or 0) > 0:  # nobody killed it: the next would end in the same way
            error = JobStopped(AT_START)
        while self.owed:
            self.owed.popleft().said = False, error


class _Processes(Staff):
    def __init__(self, explainer: Explainer, work: Work, workers: int) -> None:
        self.size = workers
        self.bytes = _saved((explainer.model, explainer.processor, explainer.attention_at, work))
        device = next((p.device for p in explainer.model.parameters()), torch.device("cpu"))
        self.free = deque(devices_of(device, workers, torch.cuda.device_count()))
        self.context = get_context("spawn")

    def start(self) -> tuple[Any, Any]:
        here, there = self.context.Pipe()
        device = self.free.popleft()
        process = self.context.Process(target=_serve, args=(there, device, threads_of(self.size)), daemon=True)
        process.start()
        there.close()  # its end is its own: when it dies, reading here comes to an end
        worker = _Process(process, here, device)
        with suppress(*CLOSED):  # where it died at once, its answer says so
            here.send_bytes(self.bytes)
        return worker, worker.owing()

    def give(self, worker: Any, part: Part, proven: bool) -> Any:
        with suppress(*CLOSED):
            worker.pipe.send((part, proven))
        return worker.owing()

    def wait(self, answers: Sequence[Any], seconds: float) -> Sequence[Any]:
        workers = {answer.worker.pipe: answer.worker for answer in answers}
        for pipe in connection.wait(list(workers), seconds):
            worker: _Process = workers[pipe]
            try:
                worker.hear(worker.pipe.recv())
            except CLOSED:
                self.free.append(worker.device)
                worker.bury()
        return [answer for answer in answers if answer.said is not None]

    def read(self, answer: Any) -> Any:
        went_well, said = answer.said
        if went_well:
            return said
        raise said

    def end(self, worker: Any) -> None:
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()


def _saved(what: Any) -> bytes:
    """As bytes, from which a worker reads the weights onto its device; none is copied on a GPU."""
    stream = io.BytesIO()
    try:
        torch.save(what, stream)
    except Exception as error:  # whatever the parts of a model say when they are pickled
        raise BadInput(
            f"the model cannot be sent to other processes ({type(error).__name__}: {error}): use engine='local' "
            "without workers."
        ) from error
    return stream.getvalue()


# In the other process


def _serve(pipe: connection.Connection, device: str, threads: int) -> None:
    """Read the model, say so, and answer parts until None comes, or whoever asks is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    torch.set_num_threads(threads)
    try:
        model, processor, attention_at, work = torch.load(
            io.BytesIO(pipe.recv_bytes()), map_location=device, weights_only=False
        )
        worker = Worker(Explainer(model, processor, attention_at=attention_at), work)
        pipe.send((True, None))
        run_here(worker, _received(pipe, worker), lambda written: pipe.send((True, written)))
    except CLOSED:
        return
    except Exception as error:
        with suppress(*CLOSED):
            pipe.send((False, _sent(error)))


def _received(pipe: connection.Connection, worker: Worker) -> Iterator[Part]:
    """Parts as they come. Somebody always waits for the next: else a large one would block who sends it."""
    while (asked := pipe.recv()) is not None:
        part, proven = asked
        worker.proven = worker.proven or proven
        yield part


def _sent(error: Exception) -> Exception:
    """The error, or its words where it does not come out of a pickle as it went in."""
    try:
        same = pickle.loads(pickle.dumps(error))
    except Exception:
        same = None
    return error if str(same) == str(error) else JobStopped(f"a worker stopped ({type(error).__name__}: {error}).")
