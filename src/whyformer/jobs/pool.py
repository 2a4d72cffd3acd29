"""Parts for several workers: who has which, and what becomes of them when a worker dies.

Where workers are (processes here, actors of Ray) is for their ``Staff`` to know. A worker that dies, with its process
or its machine, is replaced, and its parts are given to others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from whyformer.errors import BadInput, JobStopped
from whyformer.jobs.folder import Written
from whyformer.jobs.partition import Part

IN_FLIGHT = 2  # parts per worker: one that it explains, and one that waits for it
ATTEMPTS = 3  # of a part whose worker dies
PATIENCE = 600.0  # seconds without any worker


class Gone(Exception):
    """A worker died before it answered."""


class Staff(ABC):
    """Where workers run. Workers, and the answers that they owe, are whatever tells them apart."""

    size: int

    @abstractmethod
    def start(self) -> tuple[Any, Any]:
        """A new worker, and the answer that says it is ready."""

    @abstractmethod
    def give(self, worker: Any, part: Part, proven: bool) -> Any:
        """A part for a worker: the answer that will hold what it made of it."""

    @abstractmethod
    def wait(self, answers: Sequence[Any], seconds: float) -> Sequence[Any]:
        """Those of the answers that are there, or never will be; none where time ran out."""

    @abstractmethod
    def read(self, answer: Any) -> Any:
        """What the worker says. Its error, where it lives and says what is wrong; ``Gone`` where it died."""

    @abstractmethod
    def end(self, worker: Any) -> None:
        """Away with a worker, whatever it does."""


class Pool:
    """Workers, the parts that each has, and those that wait to be given to one."""

    def __init__(self, staff: Staff, proven: bool) -> None:
        self.staff, self.proven = staff, proven
        self.starting: dict[Any, Any] = {}  # what it will say → worker
        self.busy: dict[Any, tuple[Any, Part]] = {}  # what will come → worker, part
        self.load: dict[Any, int] = {}  # of the workers that are ready
        self.again: deque[Part] = deque()
        self.attempts: dict[int, int] = {}

    def run(self, parts: Iterator[Part], commit: Callable[[Written], object]) -> None:
        """Explain parts in whatever order they get done, and commit each as it is."""
        try:
            for _ in range(self.staff.size):
                self._start()
            waiting: Iterator[Part] | None = parts
            while True:
                waiting = self._feed(waiting)
                if waiting is None and not self.busy and not self.again:
                    return
                done = self.staff.wait([*self.busy, *self.starting], PATIENCE)
                if not done and not self.busy:
                    raise JobStopped(
                        f"no worker could be started in {PATIENCE:.0f} seconds. What is done is safe: give the "
                        "job a free CPU (and GPU, where there are some), and run the same again to go on."
                    )
                for answer in done:
                    try:
                        self._heard(answer, self.staff.read(answer), commit)
                    except Gone as error:
                        self._lost(answer, error)
        finally:
            for worker in [*self.load, *self.starting.values()]:
                self.staff.end(worker)

    def _start(self) -> None:
        worker, answer = self.staff.start()
        self.starting[answer] = worker

    def _feed(self, parts: Iterator[Part] | None) -> Iterator[Part] | None:
        """Give parts to the workers that have room; None when the input has ended."""
        while room := [worker for worker, load in self.load.items() if load < IN_FLIGHT]:
            part = self.again.popleft() if self.again else next(parts, None) if parts is not None else None
            if part is None:
                return None
            worker = min(room, key=self.load.__getitem__)
            self.load[worker] += 1
            self.busy[self.staff.give(worker, part, self.proven)] = worker, part
        return parts

    def _heard(self, answer: Any, said: Any, commit: Callable[[Written], object]) -> None:
        if answer in self.starting:
            self.load[self.starting.pop(answer)] = 0
            return
        worker, _ = self.busy.pop(answer)
        if worker in self.load:
            self.load[worker] -= 1
        self.proven = self.proven or said.explanations > 0
        commit(said)

    def _lost(self, answer: Any, error: Exception) -> None:
        """A worker is gone: another one takes its place, and its parts wait for whoever has room."""
        if answer in self.starting:
            del self.starting[answer]
            self._count(-1, error)
            self._start()
            return
        worker, part = self.busy.pop(answer)
        self._count(part.number, error)
        self.again.append(part)
        if self.load.pop(worker, None) is not None:
            self._start()

    def _count(self, number: int, error: Exception) -> None:
        self.attempts[number] = self.attempts.get(number, 0) + 1
        if self.attempts[number] >= ATTEMPTS * (self.staff.size if number < 0 else 1):
            what = "starting them" if number < 0 else f"explaining part {number}"
            raise JobStopped(
                f"workers died {self.attempts[number]} times {what} ({str(error).strip().splitlines()[0]}). What is "
                "done is safe: is their memory too small? Use fewer workers or smaller batches, and run it again."
            )


def require_whole(model: nn.Module, why: str) -> None:
    """Refuse a model that is not on one device: workers get copies."""
    places = {p.device for p in model.parameters()}
    if len(places) > 1 or any(place.type == "meta" for place in places):
        raise BadInput(
            f"{why} gives each worker a copy of the model, and this one is spread over devices or offloaded: use "
            "engine='local' without workers, which explains it as it is, or load it as a whole."
        )
