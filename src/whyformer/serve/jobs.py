"""Jobs: requests to a model, run unit by unit in turns; they report progress and can be cancelled."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any, Literal

from whyformer.errors import WhyformerError
from whyformer.run.session import WATCH

Lane = Literal["quick", "ordinary", "idle"]
Work = Callable[[], Any]  # the answer, or a generator that yields after every unit of work and returns it

MOST_WAITING = 64  # jobs of one model; more are refused
MOST_REMEMBERED = 256  # finished jobs that can still be asked for
PATIENCE = 2.0  # seconds that are waited for a unit of work when the server closes
OFTEN = 0.1  # seconds between two words about one job
ENDS = ("done", "failed", "cancelled")
CLOSED = "the server was stopped before the job was done."

log = logging.getLogger("whyformer.serve")


class Busy(WhyformerError):
    """Too many jobs are waiting."""


class Cancelled(BaseException):
    """The job was cancelled. Not an Exception, so that code that catches any failure stops as well."""


@dataclass(eq=False)
class Job:
    """One request to one model. Only its worker thread writes to it."""

    model: str
    what: str
    work: Work = field(repr=False)
    units: int = 1
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    state: str = "waiting"
    done: int = 0  # units of work
    label: str = ""  # of the loop that is running inside a unit, and how far it is
    step: int = 0
    steps: int = 0
    error: str = ""
    answer: Any = field(default=None, repr=False)
    unwanted: bool = False

    def __post_init__(self) -> None:
        self.running: Generator[None, None, Any] | None = None
        self._listeners: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._told = 0.0

    def told(self) -> dict[str, Any]:
        """Return its state as plain data."""
        plain: dict[str, Any] = {"job": self.id, "model": self.model, "what": self.what, "state": self.state}
        plain |= {"done": self.done, "of": self.units, "label": self.label, "step": self.step, "steps": self.steps}
        return plain | {"error": self.error or None, "answer": self.answer if self.state == "done" else None}

    # The worker's side

    def track(self, steps: Sequence[Any], label: str) -> Iterator[Any]:
        """Take the place of progress bars (session.WATCH): report each step, and stop a cancelled job there."""
        for number, step in enumerate(steps):
            if self.unwanted:
                raise Cancelled
            self.label, self.step, self.steps = label, number, len(steps)
            if time.monotonic() - self._told > OFTEN:
                self.tell()
            yield step

    def advance(self) -> bool:
        """Run one unit of work; return whether there is more to do."""
        token = WATCH.set(self.track)
        try:
            if self.unwanted:
                raise Cancelled
            if self.running is None:
                self.state = "running"
                self.tell()
                begun = self.work()
                if not isinstance(begun, Generator):
                    raise StopIteration(begun)  # all of it was one unit
                self.running = begun
            next(self.running)
            self.done, self.label, self.step, self.steps = self.done + 1, "", 0, 0
            self.tell()
            return True
        except StopIteration as end:
            self.done = self.units
            self.end("done", answer=end.value)
        except Cancelled:
            self.end("cancelled", error=self.error or "cancelled.")
        except WhyformerError as error:
            self.end("failed", error=str(error))
        except BaseException as error:  # of a model's code, or a bug; an exit, too, would leave all others waiting
            log.exception("%s on %s failed", self.what, self.model)
            self.end("failed", error=f"{type(error).__name__}: {error}")
        finally:
            WATCH.reset(token)
        return False

    def end(self, state: str, answer: Any = None, error: str = "") -> None:
        if self.state in ENDS:
            return
        self.answer, self.error, self.state = answer, error, state
        if isinstance(self.running, GeneratorType) and not self.running.gi_running:
            self.running.close()  # a running one ends with its unit of work
        self.tell()

    def tell(self) -> None:
        self._told = time.monotonic()
        for loop, event in list(self._listeners):
            with suppress(RuntimeError):  # a loop that was closed meanwhile
                loop.call_soon_threadsafe(event.set)

    # The listeners' side

    def listen(self) -> asyncio.Event:
        """Return an event that is set at every change of state; only the latest state can be read."""
        event = asyncio.Event()
        self._listeners.append((asyncio.get_running_loop(), event))
        return event

    def leave(self, event: asyncio.Event) -> None:
        self._listeners = [each for each in self._listeners if each[1] is not event]

    async def ended(self, seconds: float) -> bool:
        """Wait at most so many seconds; return whether the job has ended."""
        event = self.listen()
        try:
            until = time.monotonic() + seconds
            while self.state not in ENDS and (left := until - time.monotonic()) > 0:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(event.wait(), left)
                event.clear()
        finally:
            self.leave(event)
        return self.state in ENDS


class ModelQueue:
    """The jobs of one model, and the one thread that runs it: a unit of each in turn, quick ones in between."""

    def __init__(self, model: str, most: int = MOST_WAITING) -> None:
        self.model, self.most, self.closed = model, most, False
        self.lanes: dict[str, deque[Job]] = {"quick": deque(), "ordinary": deque(), "idle": deque()}
        self.current: Job | None = None
        self._changed = threading.Condition()
        self._was_quick = False
        self.thread = threading.Thread(target=self._serve, name=f"whyformer {model}", daemon=True)
        self.thread.start()

    def add(self, job: Job, lane: Lane) -> None:
        with self._changed:
            waiting = len(self.lanes["quick"]) + len(self.lanes["ordinary"])
            if self.closed or waiting >= self.most:
                room = CLOSED if self.closed else f"{waiting} requests are waiting for {self.model!r} already"
                raise Busy(f"{room}: try again in a moment, or cancel some.")
            self.lanes[lane].append(job)
            self._changed.notify()

    def remove(self, job: Job) -> None:
        """Remove a job that was cancelled while it waited."""
        with self._changed:
            for lane in self.lanes.values():
                if job in lane:
                    lane.remove(job)

    def ahead_of(self, job: Job) -> int:
        """Return how many wait before it, the one that runs included."""
        with self._changed:
            queued = [each for lane in self.lanes.values() for each in lane]
            return queued.index(job) + (self.current is not None) if job in queued else 0

    def close(self) -> list[Job]:
        """Cancel all jobs; return those that were there."""
        with self._changed:
            self.closed = True
            left = [job for lane in self.lanes.values() for job in lane] + ([self.current] if self.current else [])
            for lane in self.lanes.values():
                lane.clear()
            self._changed.notify()
        for job in left:
            job.unwanted, job.error = True, CLOSED
            if job is not self.current:
                job.end("cancelled", error=CLOSED)
        return left

    def _next(self) -> tuple[Job, str] | None:
        with self._changed:
            self.current = None
            while not any(self.lanes.values()):
                if self.closed:
                    return None
                self._changed.wait()
            order = ("ordinary", "quick", "idle") if self._was_quick else ("quick", "ordinary", "idle")
            lane = next(name for name in order if self.lanes[name])
            self._was_quick = lane == "quick"
            self.current = self.lanes[lane].popleft()
            return self.current, lane

    def _serve(self) -> None:
        while (taken := self._next()) is not None:
            job, lane = taken
            if job.advance():
                with self._changed:
                    if not self.closed:
                        self.lanes[lane].append(job)


class Jobs:
    """The jobs of all models, by id."""

    def __init__(self, most: int = MOST_WAITING) -> None:
        self.most, self.until = most, math.inf  # when threads are no longer waited for: known once they are to end
        self.lines: dict[str, ModelQueue] = {}
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, model: str, what: str, work: Work, units: int = 1, lane: Lane = "ordinary") -> Job:
        """Queue some work; raise Busy if too many jobs are waiting."""
        job = Job(model, what, work, units)
        with self._lock:
            line = self.lines.get(model) or self.lines.setdefault(model, ModelQueue(model, self.most))
        line.add(job, lane)
        with self._lock:
            self._jobs[job.id] = job
            over = [each.id for each in self._jobs.values() if each.state in ENDS]
            for old in over[: max(0, len(self._jobs) - MOST_REMEMBERED)]:
                del self._jobs[old]
        return job

    def get(self, identity: str) -> Job | None:
        with self._lock:
            return self._jobs.get(identity)

    def told(self, job: Job) -> dict[str, Any]:
        return job.told() | {"ahead": self.lines[job.model].ahead_of(job)}

    def listed(self) -> list[dict[str, Any]]:
        """The jobs that have not ended."""
        with self._lock:
            running = [job for job in self._jobs.values() if job.state not in ENDS]
        return [self.told(job) for job in running]

    def cancel(self, job: Job) -> None:
        """Cancel a waiting job at once, a running one at the next step of its loop."""
        job.unwanted = True
        line = self.lines[job.model]
        line.remove(job)
        if line.current is not job:
            job.end("cancelled", error="cancelled.")

    def close(self, seconds: float = PATIENCE) -> None:
        """Cancel all jobs and wait for their threads, so many seconds after the first call."""
        self.until = min(self.until, time.monotonic() + seconds)
        with self._lock:
            left = {line: line.close() for line in self.lines.values()}
        for line, jobs in left.items():
            line.thread.join(max(0.0, self.until - time.monotonic()))
            for job in jobs:  # a unit that does not end: nobody waits for it
                job.end("cancelled", error=CLOSED)

    @property
    def closed(self) -> bool:
        return self.until < math.inf

    @property
    def at_work(self) -> bool:
        """Whether a thread is still inside a unit of work."""
        return any(line.thread.is_alive() for line in self.lines.values())
