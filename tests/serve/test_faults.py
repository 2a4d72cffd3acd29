"""What would go wrong in silence: another model's answers, other inputs, jobs that nobody wants, broken files."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.models.case import seeded
from tests.serve.served import SMALL, TEXT, asked, client, explainer, png, served
from tests.serve.test_jobs import ROOT, held, over
from tests.support.processors import pair_tokenizer
from whyformer.serve.app import Served
from whyformer.serve.jobs import Jobs
from whyformer.serve.models import Models, ServedModel
from whyformer.serve.store import Entry, Store
from whyformer.verbs import Explainer


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


def another_bert() -> Explainer:
    import transformers as t

    config = t.BertConfig(**SMALL, vocab_size=32, num_labels=3, initializer_range=0.5)
    return Explainer(seeded(lambda: t.BertForSequenceClassification(config), 3.0), pair_tokenizer())


def test_another_model_of_the_same_name_is_not_asked_about_an_old_result(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.sqlite")
    first = served("text", store=store)
    result = explained(client(first))["id"]
    first.jobs.close()
    other = Served(Models([ServedModel("text", "text", another_bert())]), store, Jobs())
    for about in ("trust", "heads"):
        refused = client(other).post(f"/api/{about}", json={"result": result, "wait": 60})
        assert refused.status_code == 422 and "says something else now" in refused.json()["error"]
    assert client(other).get(f"/api/results/{result}").status_code == 200  # what was said then is still there
    other.jobs.close()


def test_an_edit_is_of_the_same_model(whole: Served) -> None:
    ask = client(whole)
    table = explained(ask, "table")["id"]
    refused = ask.post("/api/explain", json=asked(edited_from=table))
    assert refused.status_code == 422 and "of the model 'table'" in refused.json()["error"]


def test_side_by_side_are_results_of_one_input_and_one_model(whole: Served) -> None:
    """Patches and columns have the same names whatever picture or row they are of."""
    ask = client(whole)
    images = [ask.post("/api/images", content=png(side, side)).json()["image"] for side in (48, 56)]
    pictures = [explained(ask, "image", input={"image": image})["id"] for image in images]
    row = whole.models["table"].samples[0]
    rows = [explained(ask, "table", input={"row": row | {"age": age}})["id"] for age in (30, 60)]
    for pair in (pictures, rows):
        refused = ask.post("/api/compare", json={"results": pair})
        assert refused.status_code == 422 and "inputs that differ" in refused.json()["error"]
    assert ask.post("/api/compare", json={"results": [pictures[0], pictures[0]]}).status_code == 200
    twin = Served(
        Models([*whole.models.by_name.values(), ServedModel("twin", "text", explainer("text"))]),
        whole.store,
        whole.jobs,
    )
    both = [explained(client(twin), model=name)["id"] for name in ("text", "twin")]
    refused = client(twin).post("/api/compare", json={"results": both})
    assert refused.status_code == 422 and "different models" in refused.json()["error"]


def test_classes_of_one_name_are_told_apart_by_their_number() -> None:
    import transformers as t

    config = t.BertConfig(
        **SMALL, vocab_size=32, id2label={0: "same", 1: "same", 2: "other"}, label2id={"same": 1, "other": 2}
    )
    model = ServedModel(
        "text", "text", Explainer(seeded(lambda: t.BertForSequenceClassification(config)), pair_tokenizer())
    )
    whole = Served(Models([model]), Store(None), Jobs())
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
    with pytest.raises(Exception, match="deleted meanwhile"):
        whole.store.add(Entry("text", "heads", "", "", "", {}, [{}], parent=result))


def test_a_model_that_ends_the_program_ends_its_job_only() -> None:
    def leaving() -> None:
        raise SystemExit(3)

    jobs = Jobs()
    gone, next_one = jobs.add("m", "leaving", leaving), jobs.add("m", "next", lambda: 42)
    over(gone, next_one)
    assert gone.state == "failed" and "SystemExit" in gone.error and next_one.answer == 42
    jobs.close()


def test_a_visitor_is_answered_while_a_model_works(whole: Served) -> None:
    ask = client(whole)
    gate, _ = held(whole.jobs, "text")
    for path in ("/", "/api/models", "/api/methods?model=text", "/api/results", "/api/jobs"):
        assert ask.get(path).status_code == 200
    assert ask.post("/api/predict", json={"model": "image", "input": {"sample": 0}}).status_code == 200  # another model
    gate.on.set()


# The file


def test_a_damaged_result_is_said_to_be_one(tmp_path: Path) -> None:
    whole = served("text", store=Store(tmp_path / "store.sqlite"))
    ask = client(whole)
    result = explained(ask)["id"]
    with sqlite3.connect(tmp_path / "store.sqlite") as file:
        file.execute("UPDATE results SET body = ?", [b"\x00damaged"])
    file.close()
    for path in (f"/api/results/{result}", f"/api/results/{result}/export?format=json"):
        refused = ask.get(path)
        assert refused.status_code == 422 and "cannot be read" in refused.json()["error"]
    assert ask.delete(f"/api/results/{result}").status_code == 200
    whole.jobs.close()
    whole.store.close()


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
