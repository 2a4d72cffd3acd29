"""Which models are served: what the command line loads, what a sample is, what the terminal is told."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.serve.served import explainer
from whyformer.cli.main import app
from whyformer.cli.service_commands import served_model
from whyformer.demo import load_adult
from whyformer.errors import BadInput, UnknownName
from whyformer.serve.app import address, bound
from whyformer.serve.models import Models, ServedModel
from whyformer.serve.safety import Input
from whyformer.serve.store import Store
from whyformer.verbs import Explainer


@pytest.mark.parametrize("kind", ["text", "language", "image"])
def test_a_folder_is_served_as_what_it_holds(tmp_path: Path, kind: str) -> None:
    loaded = explainer(kind)
    loaded.model.save_pretrained(tmp_path / "mine")  # type: ignore[operator]
    loaded.processor.save_pretrained(tmp_path / "mine")
    served = served_model(str(tmp_path / "mine"))
    assert (served.name, served.kind) == ("mine", kind)  # where it lies is not told
    assert served.explainer.explain(served.samples[0]).scores.size  # something to try it on was made up


def test_a_table_is_served_with_a_row_to_try() -> None:
    model, table = load_adult()
    served = ServedModel("table", "table", Explainer(model, table))
    assert set(served.samples[0]) == set(table.columns)
    row = served.opened(Input(row=dict(served.samples[0])), Store(None))
    assert served.explainer.explain(row, method="saliency").units.values is not None


def test_kinds_that_the_page_cannot_ask_are_refused() -> None:
    with pytest.raises(BadInput, match="in Python"):
        ServedModel("lxmert", "regions", explainer("text"))
    twice = Models([ServedModel("mine", "text", explainer("text")), ServedModel("mine", "image", explainer("image"))])
    assert [(name, model.kind) for name, model in twice.by_name.items()] == [("mine", "text"), ("mine #2", "image")]
    with pytest.raises(UnknownName, match="unknown model"):
        Models([])["text"]


def test_the_command_names_the_extra_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'whyformer[web]'" in CliRunner().invoke(app, ["serve"]).output


def test_the_command_refuses_before_it_loads_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # the command sets up logging for the whole process
    run = lambda *words: CliRunner().invoke(app, ["serve", *words])  # noqa: E731
    assert "16 or more" in run("--token", "short").output
    assert "no folder" in run("--store", str(tmp_path / "none" / "x.sqlite")).output
    with bound("127.0.0.1", 0) as taken, pytest.raises(BadInput, match="another --host or --port"):
        bound("127.0.0.1", taken.getsockname()[1])


def test_the_address_has_the_token_where_one_is_needed() -> None:
    assert address("127.0.0.1", 8765, None) == "http://localhost:8765/"
    assert address("0.0.0.0", 80, "word") == "http://localhost:80/?token=word"
    assert address("fe80::1", 80, "word") == "http://[fe80::1]:80/?token=word"
