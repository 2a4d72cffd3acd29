"""Learned methods in datasets, on the command line and behind the server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

import whyformer as wf
from tests.learned.small import bert, learned_bert, texts, tokenizer
from whyformer import registry
from whyformer.cli.main import app
from whyformer.errors import BadInput
from whyformer.explainer import CoreExplainer
from whyformer.jobs.worker import Work, Worker
from whyformer.registry import learned_methods
from whyformer.serve.app import Served, application
from whyformer.serve.jobs import Jobs
from whyformer.serve.models import Models, ServedModel
from whyformer.serve.store import Store
from whyformer.verbs import Explainer

RUN = CliRunner()


def test_datasets(tmp_path: Path) -> None:
    model, learned = learned_bert()
    some = texts(6, seed=7)
    dataset = wf.explain_dataset(
        model, some, out=tmp_path / "why", tokenizer=tokenizer(), method=learned, progress=False
    )
    expected = wf.explain(model, some, tokenizer(), method=learned)
    found = {e.units.text: e for e in dataset}
    for one in expected:
        assert np.allclose(found[one.units.text].scores, one.scores, atol=1e-4)


def test_other_processes_need_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, learned = learned_bert()
    unsaved = replace(learned, units="word")
    asked = {"out": tmp_path / "why", "tokenizer": tokenizer(), "workers": 2, "progress": False}
    with pytest.raises(BadInput, match="save it"):
        wf.explain_dataset(model, texts(4), method=unsaved, **asked)
    path = learned.save(tmp_path / "mine.learned")
    monkeypatch.delitem(registry._LEARNED, learned.name)  # as in a new process
    Worker(CoreExplainer(model, tokenizer()), Work((learned.name,), learned=(str(path), "")))
    assert learned.name in learned_methods()


def test_command_line(tmp_path: Path) -> None:
    lines, out = tmp_path / "texts.txt", tmp_path / "mine.learned"
    lines.write_text("\n".join(texts(32)))
    made = RUN.invoke(app, ["learn", str(lines), "--linear", "--forwards", "500", "--out", str(out)])
    assert made.exit_code == 0, made.output
    assert "Certificate: 10 held-out inputs" in made.output and "Weight of each head" in made.output
    shown = RUN.invoke(app, ["explain", "a good film", "--method", str(out)])
    assert shown.exit_code == 0 and "learned:" in shown.output
    few = RUN.invoke(app, ["learn", str(lines), "--column", "text", "--out", str(out), "--forwards", "10"])
    assert few.exit_code == 2
    missing = RUN.invoke(app, ["explain", "a good film", "--method", str(tmp_path / "none.learned")])
    assert missing.exit_code == 1 and "no file of that name" in missing.output


def test_server(tmp_path: Path) -> None:
    model, learned = learned_bert()
    path = learned.save(tmp_path / "mine.learned")
    served = ServedModel("bert", "text", Explainer(model, tokenizer()))
    listed = {method["name"] for method in served.methods()}
    assert learned.name in listed and "grad_sam" in listed
    other = ServedModel("other", "text", Explainer(bert(1), tokenizer()))
    assert learned.name not in {method["name"] for method in other.methods()}
    made = application(Served(Models([served]), Store(None), Jobs()))
    with TestClient(made, base_url="http://localhost") as client:
        question = {"model": "bert", "input": {"text": "a good film"}, "wait": 20}
        answer = client.post("/api/explain", json=question | {"method": learned.name})
        assert answer.status_code == 200, answer.text
        for asked in ({"method": str(path)}, {"method": "shap", "options": {"guide": f"{path}+alone"}}):
            refused = client.post("/api/explain", json=question | asked)
            assert refused.status_code >= 400 and "--learned" in refused.text
