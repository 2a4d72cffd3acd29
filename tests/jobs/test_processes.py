"""Parts in several processes of one machine: the bits of one process, whoever is killed meanwhile."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

import whyformer as wf
from tests.jobs.sentences import HOW, census_explainer, numbers, sentences
from tests.support import folders
from whyformer.demo.census import adult_rows
from whyformer.errors import BadInput, JobStopped, UnknownName
from whyformer.jobs.folder import Commit, Written
from whyformer.jobs.processes import ATTEMPTS, Gone, Pool, Staff, _sent, _serve, devices_of
from whyformer.jobs.source import Part, Row
from whyformer.jobs.worker import Work

TEXTS = sentences(32)


def test_workers_give_the_bits_of_one_process_and_one_of_them_may_die(tmp_path: Path) -> None:
    processes = tmp_path / "processes"
    processes.mkdir()
    x, rows, killed = census_explainer(processes), adult_rows()[:32], []

    def disturbed() -> Iterator[dict[str, Any]]:
        for i, row in enumerate(rows):
            if i == 20:  # two parts per worker are under way: one that gave a part back is asked for the next
                killed.append(int(next(path.name for path in processes.iterdir())))
                os.kill(killed[0], signal.SIGKILL)
            yield row

    dataset = wf.explain_dataset(x, disturbed(), out=tmp_path / "several", workers=2, **HOW)
    assert dataset.rows == len(rows) and killed
    workers = {int(path.name) for path in processes.iterdir()}
    assert os.getpid() not in workers and len(workers) >= 2
    wf.explain_dataset(x, rows, out=tmp_path / "one", **HOW)
    assert numbers(tmp_path / "several") == numbers(tmp_path / "one")
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers), "none is left behind"


def test_devices_are_shared_out() -> None:
    cpu, second = torch.device("cpu"), torch.device("cuda", 1)
    assert devices_of(cpu, 3, 8) == ["cpu"] * 3
    assert devices_of(second, 4, 4) == ["cuda:1", "cuda:2", "cuda:3", "cuda:0"]
    assert devices_of(torch.device("cuda"), 3, 2) == ["cuda:0", "cuda:1", "cuda:0"]


def part(number: int) -> Part:
    texts = TEXTS[number * 4 : number * 4 + 4]
    return Part(number, tuple(Row(f"{number}-{i}", number * 4 + i, "", text) for i, text in enumerate(texts)))


def serve(pipe: Any) -> None:
    before, threads = signal.getsignal(signal.SIGINT), torch.get_num_threads()
    try:
        _serve(pipe, "cpu", 1)
    finally:
        signal.signal(signal.SIGINT, before)
        torch.set_num_threads(threads)


def served(explainer: wf.Explainer, work: Work, *asked: Any) -> list[tuple[bool, Any]]:
    """What a worker answers, run in this process."""
    here, there = Pipe()
    stream = io.BytesIO()
    torch.save((explainer.model, explainer.processor, explainer.attention_at, work), stream)
    here.send_bytes(stream.getvalue())
    for message in asked:
        here.send(message)
    serve(there)
    answers = []
    while here.poll():
        answers.append(here.recv())
    return answers


def test_a_worker_answers_in_order_and_says_what_is_wrong(explainer: wf.Explainer) -> None:
    how = {"target": None, "scalar": "logit", "seed": 0}
    ready, first, second = served(explainer, Work(("grad_sam",), how), (part(0), False), (part(1), True), None)
    assert ready == (True, None)
    assert [(well, written.commit.part, written.commit.explanations) for well, written in (first, second)] == [
        (True, 0, 4),
        (True, 1, 4),
    ]
    how["target"] = "postive"
    ready, (well, error) = served(explainer, Work(("grad_sam",), how), (part(0), False), None)
    assert not well and "postive" in str(error)


def test_errors_that_cannot_be_sent_are_put_into_words() -> None:
    plain, odd = BadInput("too bad"), UnknownName("method", "gradsam", ["grad_sam"])
    assert _sent(plain) is plain
    assert isinstance(_sent(odd), JobStopped) and "UnknownName: unknown method 'gradsam'" in str(_sent(odd))


def test_a_worker_whose_driver_is_gone_ends() -> None:
    here, there = Pipe()
    here.close()
    serve(there)


class Mortal(Staff):
    """Workers that die when ``dies`` says so, of the number of the part (None: at their start)."""

    size = 2

    def __init__(self, dies: Callable[[int | None], bool]) -> None:
        self.dies, self.workers, self.ended = dies, 0, 0
        self.owed: dict[str, int | None] = {}

    def start(self) -> tuple[Any, Any]:
        self.workers += 1
        answer = f"worker {self.workers}"
        self.owed[answer] = None
        return self.workers, answer

    def give(self, worker: Any, part: Part, proven: bool) -> Any:
        answer = f"part {part.number} of {worker}, {len(self.owed)}"
        self.owed[answer] = part.number
        return answer

    def wait(self, answers: Any, seconds: float) -> Any:
        return answers[:1]

    def read(self, answer: Any) -> Any:
        number = self.owed[answer]
        if self.dies(number):
            raise Gone("out of memory")
        return None if number is None else Written(Commit(number, "", 4, 4, 0), b"")

    def end(self, worker: Any) -> None:
        self.ended += 1


def test_parts_of_dead_workers_are_given_to_others() -> None:
    deaths = iter([True, False, False, True, True, *[False] * 100])
    staff, done = Mortal(lambda number: next(deaths)), []
    Pool(staff, False).run(map(part, range(6)), lambda written: done.append(written.commit.part))
    assert sorted(done) == list(range(6))
    assert staff.workers == 4 and staff.ended == 2, "one died at its start, one with both of its parts"


@pytest.mark.parametrize(("fatal", "words"), [(3, "explaining part 3"), (None, "starting them")])
def test_what_kills_every_worker_stops_the_job(fatal: int | None, words: str) -> None:
    staff, done = Mortal(lambda number: number == fatal), []
    with pytest.raises(JobStopped, match=rf"workers died \d times {words} \(out of memory\)"):
        Pool(staff, False).run(map(part, range(6)), lambda written: done.append(written.commit.part))
    assert 3 not in done and staff.workers <= 2 + ATTEMPTS * staff.size


def test_models_that_cannot_be_copied_are_refused(explainer: wf.Explainer, tmp_path: Path) -> None:
    model = folders.bert()
    model.register_forward_hook(lambda module, args, out: out)
    with pytest.raises(BadInput, match=r"cannot be sent to other processes .*without workers"):
        wf.explain_dataset(wf.Explainer(model, explainer.processor), TEXTS, out=tmp_path / "a", workers=2, **HOW)
    spread = folders.bert()
    spread.classifier.to("meta")
    for where, words in (({"workers": 2}, "workers=2"), ({"engine": "ray"}, "engine='ray'")):
        with pytest.raises(BadInput, match=rf"{words} gives each worker a copy.*spread over devices"):
            wf.explain_dataset(wf.Explainer(spread, explainer.processor), TEXTS, out=tmp_path / "b", **where, **HOW)
    with pytest.raises(BadInput, match="add engine='ray'"):
        wf.explain_dataset(explainer, TEXTS, out=tmp_path / "c", address="here:6379", **HOW)
