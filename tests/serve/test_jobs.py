"""Jobs take turns, are heard of, cancelled, refused where too many wait; and what would go wrong in silence."""

from __future__ import annotations

import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

from tests.serve.served import TEXT, asked, bert, client, explainer, png, refused, served
from whyformer.errors import BadInput, NotOffered
from whyformer.serve import store as store_module
from whyformer.serve.app import Served
from whyformer.serve.jobs import ENDS, Busy, Job, Jobs, Work
from whyformer.serve.models import Models, ServedModel
from whyformer.serve.store import Entry, Store
from whyformer.verbs import Explainer

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-that-nobody-may-read"
KNOWN = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    made = Jobs(most=4)
    yield made
    made.close()


def over(*some: Job) -> None:
    for job in some:
        while job.state not in ENDS:
            time.sleep(0.005)


class Gate:
    """Work that stands still until it is let on, unit by unit."""

    def __init__(self, units: int) -> None:
        self.units, self.begun, self.on = units, threading.Event(), threading.Event()

    def __call__(self) -> Iterator[None]:
        for _ in range(self.units):
            self.begun.set()
            self.on.wait(300)
            yield
        return "answer"  # type: ignore[return-value]


def held(jobs: Jobs, model: str, units: int = 1) -> tuple[Gate, Job]:
    """A job that runs, and stands still."""
    gate = Gate(units)
    job = jobs.add(model, "gate", gate, units)
    gate.begun.wait(300)
    return gate, job


def test_a_second_question_waits_for_a_unit_of_the_first_and_not_for_all(jobs: Jobs) -> None:
    told: list[str] = []

    def long() -> Iterator[None]:
        for unit in range(3):
            told.append(f"long {unit}")
            yield

    gate, first = held(jobs, "m")
    jobs.add("m", "long", long, 3)
    jobs.add("m", "short", lambda: told.append("short"))
    last = jobs.add("m", "predict", lambda: told.append("quick"), lane="quick")
    assert jobs.told(last)["ahead"] == 1
    gate.on.set()
    while len(told) < 5:
        time.sleep(0.005)
    assert told == ["quick", "long 0", "short", "long 1", "long 2"] and first.answer == "answer"


def test_too_many_are_refused_in_words(jobs: Jobs) -> None:
    gate, first = held(jobs, "m")
    waiting = [jobs.add("m", str(i), lambda: None) for i in range(4)]
    with pytest.raises(Busy, match="4 requests are waiting"):
        jobs.add("m", "one too many", lambda: None)
    assert jobs.add("other", "of another model", lambda: 1)
    jobs.cancel(waiting[0])
    assert waiting[0].state == "cancelled"
    jobs.add("m", "there is room", lambda: None)
    gate.on.set()
    over(first, *waiting)


def test_a_running_job_is_left_at_the_next_step_of_any_loop(jobs: Jobs) -> None:
    from whyformer.run.session import tracker

    begun, steps = threading.Event(), []

    def loops() -> None:
        try:
            for step in tracker(None)(range(10_000), "asking"):
                steps.append(step)
                begun.set()
                time.sleep(0.01)
        except Exception:  # as evaluate/candidate.py has it: one broken method must not lose the others
            steps.append("lost")

    job = jobs.add("m", "loops", loops)
    begun.wait(300)
    while job.steps != 10_000:
        time.sleep(0.005)
    jobs.cancel(job)
    over(job)
    assert (job.state, job.label) == ("cancelled", "asking") and "lost" not in steps and len(steps) < 9_000


@pytest.mark.parametrize(
    ("work", "error"), [(lambda: 1 / 0, "ZeroDivisionError: division by zero"), (lambda: sys.exit(3), "SystemExit: 3")]
)
def test_a_failure_is_told_and_the_next_is_served(jobs: Jobs, work: Work, error: str) -> None:
    failing = jobs.add("m", "failing", work)
    fine = jobs.add("m", "fine", lambda: 42)
    over(failing, fine)
    assert (failing.state, failing.error) == ("failed", error)
    assert fine.told()["answer"] == 42 and fine.told()["done"] == fine.told()["of"]


def test_closing_ends_all(jobs: Jobs) -> None:
    gate, running = held(jobs, "m", 100)
    waiting = jobs.add("m", "waiting", lambda: None)
    opening = threading.Thread(target=lambda: (over(waiting), gate.on.set()))  # once closing has begun
    opening.start()
    jobs.close(seconds=300)
    opening.join()
    assert (running.state, waiting.state) == ("cancelled", "cancelled") and "stopped" in waiting.error
    assert not jobs.at_work
    with pytest.raises(Busy, match="was stopped"):
        jobs.add("m", "late", lambda: None)


def test_a_job_is_heard_over_the_network_and_cancelled() -> None:
    whole = served("text")
    asking = client(whole)
    gate, job = held(whole.jobs, "text", 2)
    queued = asking.post("/api/explain", json=asked(wait=0))
    assert queued.status_code == 202 and queued.json()["ahead"] == 1
    assert [j["job"] for j in asking.get("/api/jobs").json()["jobs"]] == [job.id, queued.json()["job"]]
    cancelled = asking.delete(f"/api/jobs/{job.id}")
    assert cancelled.json()["state"] in ("running", "cancelled")
    gate.on.set()
    with asking.stream("GET", f"/api/jobs/{queued.json()['job']}/events") as events:
        lines = [line for line in events.iter_lines() if line]
    assert events.headers["content-type"].startswith("text/event-stream")
    assert lines[-2] == "event: done"
    told = json.loads(lines[-1].removeprefix("data: "))
    assert asking.get(f"/api/results/{told['answer']}").json()["model"] == "text" and job.state == "cancelled"
    assert asking.get("/api/jobs/nothing").status_code == 404
    whole.jobs.close()


def test_a_full_queue_is_a_429_with_words() -> None:
    whole = served("text", most=1)
    asking = client(whole)
    gate, _ = held(whole.jobs, "text")
    assert asking.post("/api/explain", json=asked(wait=0)).status_code == 202
    full = asking.post("/api/explain", json=asked(wait=0))
    assert full.status_code == 429 and "1 requests are waiting" in full.json()["error"] and full.headers["retry-after"]
    gate.on.set()
    whole.jobs.close()


@pytest.mark.skipif(os.name == "nt", reason="signals are of another kind there")
def test_ctrl_c_ends_the_server_while_it_listens_and_works(tmp_path: Path) -> None:
    program = (
        "import time; from whyformer.run.session import tracker; from whyformer.serve.app import Served, run\n"
        "from whyformer.serve.jobs import Jobs; from whyformer.serve.models import Models\n"
        "from whyformer.serve.store import Store\n"
        f"whole = Served(Models([]), Store(None), Jobs(), token='{TOKEN}')\n"
        "def forever():\n    for _ in tracker(None)(range(10**6), 'forever'): time.sleep(0.01)\n"
        "job = whole.jobs.add('any', 'forever', forever)\n"
        "run(whole, 0, lambda at: print(at, job.id, flush=True))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        at, job = process.stdout.readline().split()
        assert at.startswith("http://localhost:") and at.endswith(f"/?token={TOKEN}")
        port = urlsplit(at).port
        for _ in range(2000):
            try:
                events = urllib.request.urlopen(
                    urllib.request.Request(f"http://127.0.0.1:{port}/api/jobs/{job}/events", headers=KNOWN), timeout=300
                )
                break
            except OSError:
                time.sleep(0.05)
        with events:
            assert b"progress" in events.readline()
            urllib.request.urlopen(
                urllib.request.Request(f"http://127.0.0.1:{port}/?token={TOKEN}", headers=KNOWN)
            ).close()
            process.send_signal(signal.SIGINT)
            rest = events.read()
        assert b"event: cancelled" in rest and b"stopped" in rest
        assert process.wait(300) == 0
        assert TOKEN not in process.stdout.read()  # said once, in the address, and in no log


@pytest.mark.skipif(os.name == "nt", reason="signals are of another kind there")
def test_a_unit_of_work_that_does_not_end_is_not_waited_for() -> None:
    """Containers are killed ten seconds after SIGTERM."""
    program = (
        "import time; from whyformer.serve.app import Served, run\n"
        "from whyformer.serve.jobs import Jobs; from whyformer.serve.models import Models\n"
        "from whyformer.serve.store import Store\n"
        "whole = Served(Models([]), Store(None), Jobs())\n"
        "[whole.jobs.add(model, 'forever', lambda: time.sleep(10**6)) for model in 'abc']\n"
        "run(whole, 0, lambda at: print(at, flush=True))"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        at = process.stdout.readline().decode().strip()
        for _ in range(2000):
            with suppress(OSError), urllib.request.urlopen(f"{at}api/models", timeout=300):
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(9) == -signal.SIGTERM  # after two seconds, and those of a busy machine


# What would go wrong in silence: another model's answers, other inputs, jobs that nobody wants, broken files.


@pytest.fixture
def whole() -> Iterator[Served]:
    made = served("text", "image", "table")
    yield made
    made.jobs.close()


def explained(ask: TestClient, kind: str = "text", **more: Any) -> dict[str, Any]:
    told = ask.post("/api/explain", json=asked(kind, method="saliency") | more).json()
    assert "error" not in told, told
    return dict(told)


# Whose answer it is


def test_another_model_of_the_same_name_is_not_asked_about_an_old_result(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.sqlite")
    first = served("text", store=store)
    result = explained(client(first))["id"]
    first.jobs.close()
    another = ServedModel("text", "text", bert(3.0, num_labels=3, initializer_range=0.5))
    other = Served(Models([another]), store, Jobs())
    for about in ("trust", "heads"):
        refused(client(other), about, "has changed since", result=result, wait=60)
    assert client(other).get(f"/api/results/{result}").status_code == 200  # what was said then is still there
    other.jobs.close()


def test_an_edit_is_of_the_same_model(whole: Served) -> None:
    ask = client(whole)
    table = explained(ask, "table")["id"]
    refused(ask, "explain", "made with the model 'table'", **asked(edited_from=table))


def test_side_by_side_are_results_of_one_input_and_one_model(whole: Served) -> None:
    """Patches and columns have the same names whatever picture or row they are of."""
    ask = client(whole)
    images = [ask.post("/api/images", content=png(side, side)).json()["image"] for side in (48, 56)]
    pictures = [explained(ask, "image", input={"image": image})["id"] for image in images]
    row = whole.models["table"].samples[0]
    rows = [explained(ask, "table", input={"row": row | {"age": age}})["id"] for age in (30, 60)]
    for pair in (pictures, rows):
        refused(ask, "compare", "different inputs", results=pair)
    assert ask.post("/api/compare", json={"results": [pictures[0], pictures[0]]}).status_code == 200
    models = Models([*whole.models.by_name.values(), ServedModel("twin", "text", explainer("text"))])
    twin = client(Served(models, whole.store, whole.jobs))
    refused(twin, "compare", "different models", results=[explained(twin, model=m)["id"] for m in ("text", "twin")])


def test_classes_of_one_name_are_told_apart_by_their_number() -> None:
    names = bert(id2label={0: "same", 1: "same", 2: "other"}, label2id={"same": 1, "other": 2})
    whole = Served(Models([ServedModel("text", "text", names)]), Store(None), Jobs())
    ask = client(whole)
    (view,) = explained(ask)["views"]
    assert {view["predicted"], *view["choices"]} == {0, 1, 2}
    contrast = explained(ask, target=0, versus=1)
    target = ask.get(f"/api/results/{contrast['id']}/export?format=json").json()["target"]
    assert (target["index"], target["versus"]) == (0, 1)
    whole.jobs.close()


def test_trust_is_of_what_was_explained_and_not_of_what_is_predicted(whole: Served) -> None:
    ask = client(whole)
    result = explained(ask, target="yes")
    told = ask.post("/api/trust", json={"result": result["id"], "wait": 60}).json()["about"]
    twin = explainer("text").explain(TEXT, method="random", target="yes", scalar="probability")
    assert str(twin.prediction) != "yes"
    assert told["curves"]["remove"]["lines"][0]["curve"][0] == pytest.approx(twin.value, abs=1e-4)


# Jobs that nobody wants


def test_a_cancelled_job_writes_nothing(whole: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = client(whole)
    gate, _ = held(whole.jobs, "text")
    waiting = ask.post("/api/explain", json=asked(wait=0)).json()["job"]
    ask.delete(f"/api/jobs/{waiting}")
    gate.on.set()
    begun, on = threading.Event(), threading.Event()
    explain = Explainer.explain

    def stopping(self: Explainer, raw: Any, **how: Any) -> Any:
        begun.set()
        on.wait(300)
        return explain(self, raw, **how)

    monkeypatch.setattr(Explainer, "explain", stopping)
    running = ask.post("/api/explain", json=asked(wait=0, method=["saliency", "raw_attention"])).json()["job"]
    begun.wait(300)
    ask.delete(f"/api/jobs/{running}")
    on.set()
    jobs = [whole.jobs.get(each) for each in (waiting, running)]
    over(*[job for job in jobs if job is not None])
    assert [job and job.state for job in jobs] == ["cancelled", "cancelled"] and whole.store.listed() == []


def test_what_is_about_a_result_that_was_deleted_meanwhile_is_not_kept(whole: Served) -> None:
    ask = client(whole)
    result = explained(ask)["id"]
    gate, _ = held(whole.jobs, "text")
    job = whole.jobs.get(ask.post("/api/heads", json={"result": result}).json()["job"])
    assert job is not None
    ask.delete(f"/api/results/{result}")
    gate.on.set()
    over(job)
    assert job.state == "failed" and whole.store.about(result, "heads") == []
    with pytest.raises(Exception, match="deleted in the meantime"):
        whole.store.add(Entry("text", "heads", "", "", "", {}, [{}], parent=result))


def test_a_visitor_is_answered_while_a_model_works(whole: Served) -> None:
    ask = client(whole)
    gate, _ = held(whole.jobs, "text")
    for path in ("/", "/api/models", "/api/methods?model=text", "/api/results", "/api/jobs"):
        assert ask.get(path).status_code == 200
    assert ask.post("/api/predict", json={"model": "image", "input": {"sample": 0}}).status_code == 200  # another model
    gate.on.set()


# The file


BODIES: dict[str, bytes | dict[str, Any]] = {
    "junk": b"\x00damaged",
    "a bomb": zlib.compress(b'"' + b" " * 2**26 + b'"'),
    "nested": zlib.compress(b"[" * 100_000),
    "a list": zlib.compress(b"[1]"),
    "no words": {"results": ["a"]},
    "no list": {"results": None},
    "no question": {"question": [1]},
    "no reasons": {"failures": 7},
    "no count": {"beside": {"count": "x"}},
    "no number": {"beside": {"count": math.nan}},
}


@pytest.mark.parametrize("name", BODIES)
def test_a_damaged_result_is_said_to_be_one(name: str, whole: Served, tmp_path: Path) -> None:
    store = Store(tmp_path / "store.sqlite")
    ask = client(replace(whole, store=store))
    entry = Entry("text", "explanation", "saliency", "a title", "yes", {}, [])
    result, body = store.add(entry), BODIES[name]
    if isinstance(body, dict):
        body = zlib.compress(json.dumps({"question": {}, "results": []} | body).encode())
    with sqlite3.connect(tmp_path / "store.sqlite") as file:
        file.execute("UPDATE results SET body = ?", [body])
    file.close()
    with pytest.raises(NotOffered, match="cannot be read"):
        store.get(result)
    for path in (f"/api/results/{result}", f"/api/results/{result}/export?format=json"):
        told = ask.get(path)
        assert told.status_code == 422 and "cannot be read" in told.json()["error"]
    assert ask.delete(f"/api/results/{result}").status_code == 200
    store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER more AFTER DELETE ON results BEGIN DELETE FROM pins; END",
        "CREATE VIEW more AS SELECT * FROM results",
        "ALTER TABLE results ADD COLUMN more AS (zeroblob(100000000))",
        "CREATE INDEX more ON results (hex(zeroblob(100000000)))",
    ],
)
def test_a_store_with_more_in_it_than_results_is_refused(statement: str, tmp_path: Path) -> None:
    """A view that never ends in place of a table kept the server busy for good."""
    for _ in range(2):  # made, and opened again
        Store(tmp_path / "store.sqlite").close()
    with sqlite3.connect(tmp_path / "store.sqlite") as file:
        file.execute(statement)
    file.close()
    with pytest.raises(BadInput, match="is not a store of this version"):
        Store(tmp_path / "store.sqlite")


def test_bytes_in_place_of_words_cost_no_list(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.sqlite")
    for title in ("one", "two"):
        store.add(Entry("text", "explanation", "saliency", title, "yes", {}, []))
    with sqlite3.connect(tmp_path / "store.sqlite") as file:
        file.execute("UPDATE results SET title = X'ff' WHERE title = 'one'")
    file.close()
    assert [each["title"] for each in store.listed()] == ["two"]


@pytest.mark.skipif(os.name == "nt", reason="signals are of another kind there")
def test_a_server_that_is_killed_while_it_writes_leaves_a_whole_file(tmp_path: Path) -> None:
    program = (
        "import sys; from whyformer.serve.store import Entry, Store; store = Store(sys.argv[1])\n"
        "while True:\n"
        "    print(store.add(Entry('m', 'explanation', '', 't', 's', {}, [{'x': list(range(5000))}])), flush=True)"
    )
    file = tmp_path / "store.sqlite"
    command = [sys.executable, "-c", program, str(file)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [process.stdout.readline().strip() for _ in range(5)]
        process.send_signal(signal.SIGKILL)
    store = Store(file)
    listed = {each["id"] for each in store.listed(limit=10**6)}
    assert listed >= set(told) and all(store.get(each) is not None for each in listed)
    store.close()
    with sqlite3.connect(file) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    plain.close()


# Room


def entry(number: int, **more: Any) -> Entry:
    return Entry(
        "m", "explanation", "", f"number {number}", "s", {}, [{"x": os.urandom(5000).hex()}], made=number, **more
    )


def test_the_oldest_results_that_are_not_pinned_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_RESULTS", 25_000)  # four of these
    store = Store(None)
    ids = [store.add(entry(0)), store.add(entry(1))]
    assert store.pin(ids[0], True) and not store.pin("nothing", True)
    about = store.add(entry(2, parent=ids[1]))
    ids += [store.add(entry(number)) for number in (3, 4)]
    assert [each["title"] for each in store.listed()] == ["number 4", "number 3", "number 0"] and not store.get(about)
    for identity in ids[2:]:
        store.pin(identity, True)
    store.add(entry(5))
    with pytest.raises(NotOffered, match="no room"):
        for number in range(6, 8):
            store.pin(store.add(entry(number)), True)
    assert store.delete(ids[0]) and store.add(entry(9))


def test_deleting_needs_no_more_of_a_disk(tmp_path: Path) -> None:
    """SQLite copies into a journal what it changes: here there is one already, and it does not grow."""
    store = Store(tmp_path / "results.sqlite")
    ids = [store.add(entry(number)) for number in range(40)]
    used = lambda: sum(file.stat().st_size for file in tmp_path.iterdir())  # noqa: E731
    before = used()
    assert before > store_module.ROOM and all(map(store.delete, ids)) and used() == before
    store.close()
    Store(tmp_path / "results.sqlite").close()
