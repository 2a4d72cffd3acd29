"""Nothing is lost: whatever stops a job, the next run goes on, and every row is there once, with the same bits."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

import whyformer as wf
from tests.jobs.sentences import HOW, census_explainer, killed_driver, numbers, sentences
from tests.support import folders
from whyformer import files
from whyformer.demo.census import adult_rows
from whyformer.errors import BadInput, JobStopped
from whyformer.jobs.folder import COMMITS, EXPLANATIONS, MANIFEST, Commit, Written, read_commits
from whyformer.jobs.processes import ATTEMPTS, Gone, Pool, _sent, _serve, devices_of
from whyformer.jobs.source import Part, Row
from whyformer.jobs.worker import Work

TEXTS = sentences(24)


@pytest.fixture(scope="module")
def undisturbed(explainer: wf.Explainer, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    wf.explain_dataset(explainer, TEXTS, out=folder, **HOW)
    return numbers(folder)


def stopping(after: int) -> Iterator[str]:
    """The rows, until something goes wrong where they come from."""
    yield from TEXTS[:after]
    raise ConnectionError("the line is dead")


def test_a_stopped_job_goes_on(explainer: wf.Explainer, tmp_path: Path, undisturbed: Any) -> None:
    with pytest.raises(ConnectionError):
        wf.explain_dataset(explainer, stopping(18), out=tmp_path, **HOW)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / EXPLANATIONS).iterdir()}
    assert 1 <= len(before) <= 4 and len(numbers(tmp_path)) < len(undisturbed)
    wf.explain_dataset(explainer, TEXTS, out=tmp_path, **HOW)
    assert numbers(tmp_path) == undisturbed
    assert all(path.stat().st_mtime_ns == when for path, when in before.items()), "what is done is not done again"


def test_a_driver_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    out, rows, explainer = tmp_path / "out", adult_rows()[:24], census_explainer()
    wf.explain_dataset(explainer, rows, out=tmp_path / "undisturbed", **HOW)
    undisturbed = numbers(tmp_path / "undisturbed")
    with killed_driver(out), pytest.raises(BadInput, match="another job is writing"):
        wf.explain_dataset(explainer, rows, out=out, **HOW)
    assert len(numbers(out)) < len(undisturbed)
    wf.explain_dataset(explainer, rows, out=out, **HOW)
    assert numbers(out) == undisturbed


def test_what_a_crash_leaves_behind_is_cleared_away(explainer: wf.Explainer, tmp_path: Path, undisturbed: Any) -> None:
    wf.explain_dataset(explainer, TEXTS, out=tmp_path, **HOW)
    parts = sorted((tmp_path / EXPLANATIONS).iterdir())
    parts[1].write_bytes(parts[1].read_bytes()[:100])  # cut short
    parts[2].unlink()
    (tmp_path / EXPLANATIONS / "part-000003.parquet.unfinished").write_bytes(b"half")
    lines = (tmp_path / COMMITS).read_bytes().splitlines(keepends=True)
    (tmp_path / COMMITS).write_bytes(b"".join(lines[:-1]) + lines[-1][:20])  # half a line
    wf.explain_dataset(explainer, TEXTS, out=tmp_path, **HOW)
    assert numbers(tmp_path) == undisturbed
    assert sorted(p.name for p in (tmp_path / EXPLANATIONS).iterdir()) == [p.name for p in parts]


@pytest.mark.parametrize("at", [2, 3])  # the manifest is the first; then a file and a line of the log per part
def test_a_full_disk_stops_with_a_word(
    at: int, explainer: wf.Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Any
) -> None:
    calls, real = 0, os.fsync

    def full(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    with monkeypatch.context() as patch, pytest.raises(JobStopped, match=r"No space left.* rows are saved"):
        patch.setattr(os, "fsync", full)
        wf.explain_dataset(explainer, TEXTS, out=tmp_path, **HOW)
    assert not list(tmp_path.rglob("*.unfinished"))
    for commit in read_commits(tmp_path):  # a part is committed once its file is there
        assert (tmp_path / EXPLANATIONS / f"part-{commit.part:06d}.parquet").stat().st_size == commit.bytes
    wf.explain_dataset(explainer, TEXTS, out=tmp_path, **HOW)
    assert numbers(tmp_path) == undisturbed


def test_a_disk_that_is_full_at_the_summary(
    explainer: wf.Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are safe then, and half a summary is none."""

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(JobStopped, match=r"all 24 rows are saved.*No space left"):
        patch.setattr(files, "write_file", full)
        wf.explain_dataset(explainer, TEXTS, out=tmp_path, **(HOW | {"top": 2}))
    assert not list(tmp_path.glob("*summary*"))
    assert wf.explain_dataset(explainer, TEXTS, out=tmp_path, **(HOW | {"top": 2})).summary.rows == 24
    assert {path.name for path in tmp_path.glob("*summary*")} == {"summary.json", "summary.html"}


def test_something_else_is_refused(explainer: wf.Explainer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    wf.explain_dataset(explainer, TEXTS, out=out, **HOW)
    trained = folders.bert()
    with torch.no_grad():
        trained.classifier.weight[0, 0] += 1e-3
    changes: list[tuple[Any, dict[str, Any], str]] = [
        (wf.Explainer(trained, explainer.processor), {}, "weights was"),
        (explainer, {"method": "grad_sam"}, r'method was \["generic_attention", "grad_sam"\] and is \["grad_sam"\]'),
        (explainer, {"reduce": "key"}, "options was"),
        (explainer, {"target": "negative"}, 'target was null and is "negative"'),
        (explainer, {"part_rows": 5}, "part_rows was 4 and is 5"),
        (explainer, {"batch_tokens": 64}, "batch_tokens was 1024 and is 64"),
        (explainer, {"seed": 1}, "seed was 0 and is 1"),
    ]
    for x, how, words in changes:
        with pytest.raises(BadInput, match=words):
            wf.explain_dataset(x, TEXTS, out=out, **(HOW | how))
    for texts, words in (
        ([*TEXTS[:5], "good", *TEXTS[6:]], "rows 4 to 7 are different"),
        (TEXTS[:20], "it has fewer rows"),
    ):
        with pytest.raises(BadInput, match=words):
            wf.explain_dataset(explainer, texts, out=out, **HOW)
    wf.explain_dataset(explainer, TEXTS, out=out, **(HOW | {"part_rows": None}))  # as the folder has it


def test_a_folder_with_other_things_is_left_alone(explainer: wf.Explainer, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"contains other files \(thesis.txt\)"):
        wf.explain_dataset(explainer, TEXTS, out=tmp_path, **HOW)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / MANIFEST).write_text("{}")
    for read, folder, words in (
        (wf.load, tmp_path, "is a folder: name a file in it"),
        (wf.jobs.ExplainedDataset, tmp_path, "not an explained dataset"),
        (wf.load, tmp_path / "job", "cannot be read"),
    ):
        with pytest.raises(BadInput, match=words):
            read(folder)


def test_nothing_is_written_into_planted_folders(explainer: wf.Explainer, tmp_path: Path) -> None:
    """Two of many attacks: tests/hostile/test_planted.py."""
    (out := tmp_path / "out").mkdir()
    (out / "manifest.json.unfinished").symlink_to(target := tmp_path / "target")
    (cache := tmp_path / "cache").mkdir()
    cache.chmod(0o777)
    with pytest.raises(BadInput, match=r"contains a link \(manifest.json.unfinished\)"):
        wf.explain_dataset(explainer, TEXTS, out=out, **HOW)
    with pytest.raises(BadInput, match="can be changed by other users"):
        wf.compare(explainer, TEXTS[:2], method=["grad_sam"], cache=cache, progress=False)
    assert not target.exists() and not [*cache.iterdir()]


def test_progress_for_logs(explainer: wf.Explainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wf.explain_dataset(explainer, [*TEXTS, ""], out=tmp_path, progress="json", **HOW)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines][-1] == "done" and lines[0]["event"] == "part"
    assert (lines[-1]["rows"], lines[-1]["of"], lines[-1]["errors"], lines[-1]["seconds_left"]) == (25, 25, 1, 0.0)
    assert lines[-1]["rows_per_second"] > 0
    wf.explain_dataset(explainer, [*TEXTS, ""], out=tmp_path, progress=True, **HOW)
    assert "25 of 25 rows" in (shown := capsys.readouterr().err) and "1 error" in shown
    wf.explain_dataset(explainer, [*TEXTS, ""], out=tmp_path, **HOW)
    assert capsys.readouterr().err == ""  # no terminal


# Parts in several processes of one machine: the bits of one process, whoever is killed meanwhile.


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


def test_a_worker_says_what_is_wrong(explainer: wf.Explainer) -> None:
    """Run in this process: what cannot be sent is put into words."""
    here, there = Pipe()
    stream = io.BytesIO()
    work = Work(("grad_sam",), {"target": "postive", "scalar": "logit", "seed": 0})
    torch.save((explainer.model, explainer.processor, explainer.attention_at, work), stream)
    here.send_bytes(stream.getvalue())
    here.send((part(0), False))
    here.send(None)
    serve(there)
    assert here.recv() == (True, None)
    well, error = here.recv()
    assert not well and isinstance(error, JobStopped) and "UnknownName: unknown " in str(error)
    assert _sent(plain := BadInput("too bad")) is plain


def test_a_worker_whose_driver_is_gone_ends() -> None:
    here, there = Pipe()
    here.close()
    serve(there)


class Mortal:
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
        with pytest.raises(BadInput, match=rf"{words} gives each worker a copy.*distributed over devices"):
            wf.explain_dataset(wf.Explainer(spread, explainer.processor), TEXTS, out=tmp_path / "b", **where, **HOW)
    with pytest.raises(BadInput, match="add engine='ray'"):
        wf.explain_dataset(explainer, TEXTS, out=tmp_path / "c", address="here:6379", **HOW)
