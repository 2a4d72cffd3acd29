"""What holds where nothing has been imported yet, as in a user's first line. One Python answers all questions."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import pytest
import torch

import whyformer as wf
from tests.models import CASES
from tests.support import folders
from tests.views.results import ALL
from whyformer import extend

# Each question finds what the ones before it have imported: the lightest comes first.
QUESTIONS = """
import contextlib, io, json, logging, sys
from pathlib import Path

def imported(*names):
    return [name for name in names if name in sys.modules]

said = {}
import whyformer as wf
said["import whyformer"] = imported(
    "transformers", "matplotlib", "pandas", "sklearn", "rich", "typer", "shap", "PIL", "rtdl_revisiting_models"
)
import whyformer.cli.main
said["import whyformer.cli.main"] = imported("torch", "transformers", "matplotlib")
logging.getLogger("whyformer.serve").error("failed")
import tests.models
said["import tests.models"] = imported("transformers", "rtdl_revisiting_models", "tab_transformer_pytorch")
said["kinds"] = {path.stem: type(wf.load(path)).__name__ for path in Path(sys.argv[1]).glob("*.json")}
from whyformer.demo import census
wf.Explainer(*wf.demo.load_adult()).explain(census.adult_rows()[0])
said["explain"] = imported("torch._dynamo", "triton", "transformers", "matplotlib", "pandas", "sklearn")
said["idea"] = wf.list_methods()["mean_attention"].idea
print(json.dumps(said))
"""


def block(language: str) -> str:
    """The first block of a language in the docstring of whyformer.extend."""
    found = re.search(rf"```{language}\n(.*?)```", extend.__doc__ or "", re.S)
    assert found is not None
    return found.group(1)


def install(package: Path) -> None:
    """A distribution as pip would leave it: a module with the method of the docstring, and its entry point."""
    module = re.search(r'= "([\w.]+)"', block("toml"))
    assert module is not None
    home, name = module.group(1).split(".")
    (package / home).mkdir()
    (package / home / f"{name}.py").write_text(block("python"), encoding="utf-8")
    about = package / "someone_elses-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: someone-elses\nVersion: 1.0\n", encoding="utf-8")
    group = block("toml").replace('[project.entry-points."whyformer.methods"]', "[whyformer.methods]").replace('"', "")
    (about / "entry_points.txt").write_text(group, encoding="utf-8")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    saved, package = tmp_path_factory.mktemp("saved"), tmp_path_factory.mktemp("package")
    for kind, make in ALL.items():
        make().save(saved / f"{kind.__name__}.json")
    install(package)
    path = os.pathsep.join([str(package), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", QUESTIONS, str(saved)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.fixture(scope="module")
def said(fresh: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return json.loads(fresh.stdout.splitlines()[-1])


@pytest.mark.parametrize("what", ["import whyformer", "import whyformer.cli.main", "import tests.models", "explain"])
def test_importing_and_explaining_is_light(what: str, said: dict[str, Any]) -> None:
    """What is explained is a model that is not of transformers, which would import a compiler."""
    assert said[what] == []


def test_without_a_handler_no_log_reaches_the_terminal(fresh: subprocess.CompletedProcess[str]) -> None:
    assert fresh.stderr == ""
    assert len(fresh.stdout.splitlines()) == 1, "what is said, and nothing else"


def test_every_kind_of_result_is_read(said: dict[str, Any]) -> None:
    """The homes of all kinds are known without importing them first; to declare a method is enough for that, too."""
    assert said["kinds"] == {kind.__name__: kind.__name__ for kind in ALL}
    assert said["idea"].startswith("What the position that feeds the prediction attends to")


# What the library says by the standard logging module: nothing unasked, and never by print.

SOURCE = Path(wf.__file__).parent
SPEAKING = ("cli", "__main__.py")  # what is there to talk


@contextmanager
def listening(level: int) -> Iterator[list[logging.LogRecord]]:
    """A handler of our own: those of pytest would be on every logger of every test."""
    logger, heard = logging.getLogger("whyformer"), BufferingHandler(10**6)
    before = logger.level
    logger.addHandler(heard)
    logger.setLevel(level)
    try:
        yield heard.buffer
    finally:
        logger.removeHandler(heard)
        logger.setLevel(before)


def speaks(path: Path) -> bool:
    """Whether it prints, or sets up logging for everybody."""
    text = path.read_text(encoding="utf-8")
    if "print(" not in text and "basicConfig(" not in text:
        return False
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return any(getattr(c, "id", "") == "print" or getattr(c, "attr", "") == "basicConfig" for c in calls)


def test_nothing_is_printed_outside_the_command_line() -> None:
    quiet = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in SPEAKING]
    assert len(quiet) > 200
    assert not [path for path in quiet if speaks(path)]
    assert any(map(speaks, SOURCE.rglob("*.py"))), "that of the command line is seen"


def test_loggers_are_named_for_the_package() -> None:
    for path in SOURCE.rglob("*.py"):
        for name in re.findall(r"getLogger\((.*?)\)", path.read_text(encoding="utf-8")):
            assert name == "__name__" or re.fullmatch(r'"whyformer(\.\w+)+"', name), (path, name)
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("whyformer").handlers)


def test_an_explanation_is_told_to_those_who_listen() -> None:
    case = CASES["bert"]
    model, inputs = case.build("eager"), case.inputs()
    with listening(logging.INFO) as records:
        wf.explain(model, inputs, method="generic_attention")
    assert not records
    with listening(logging.DEBUG) as records:
        wf.explain(model, inputs, method="generic_attention")
    (record,) = records
    count = len(inputs["input_ids"])
    assert record.name == "whyformer.explainer" and record.levelno == logging.DEBUG
    told = f"generic_attention: {count} inputs of {type(model).__name__}, {count} forwards"
    assert record.getMessage().startswith(told)


def test_a_change_of_plan_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from whyformer.run.session import Session

    ran = Session.run

    def short_of_memory(self: Session, rows: list[int], **how: object) -> object:
        if len(rows) > 1:
            raise torch.OutOfMemoryError("there is no more")
        return ran(self, rows, **how)

    monkeypatch.setattr(Session, "run", short_of_memory)
    with listening(logging.INFO) as records:
        wf.explain(folders.vit(), {"pixel_values": torch.zeros(2, 3, 32, 32)}, method="raw_attention")
    assert "going on with 1 inputs at a time" in records[-1].getMessage()
