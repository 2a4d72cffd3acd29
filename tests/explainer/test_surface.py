"""What is public: the names of the package, what methods of others are written with, and the types that users see."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from logging.handlers import BufferingHandler
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.models import CASES
from tests.support import folders
from tests.views.results import ALL
from whyformer import extend, registry
from whyformer.errors import BadInput, UnknownName

ROOMS = sorted(name for name in wf.__all__ if isinstance(getattr(wf, name), ModuleType))


def test_what_is_listed_is_what_is_there() -> None:
    assert dir(wf) == wf.__all__ == sorted(set(wf.__all__))
    assert set(wf._HOMES) | set(wf._ROOMS) | {"__version__", "list_methods", "list_metrics"} == set(wf.__all__)
    given: dict[str, object] = {}
    exec("from whyformer import *", given)
    assert set(given) - {"__builtins__"} == set(wf.__all__)
    for name, home in wf._HOMES.items():
        assert getattr(wf, name) is getattr(importlib.import_module(home), name)
    with pytest.raises(AttributeError, match="metrics"):
        wf.metrics  # noqa: B018


def test_what_type_checkers_see_is_what_is_there() -> None:
    """The imports under TYPE_CHECKING and the table of homes say the same twice; neither can be derived."""
    source = inspect.getsource(wf)
    imports = re.findall(r"^    from whyformer\.([\w.]+) import (\w+) as \2$", source, re.M)
    assert {name: f"whyformer.{home}" for home, name in imports} == wf._HOMES
    assert re.findall(r"^    from whyformer import (\w+) as \1$", source, re.M) == sorted(wf._ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_are_reached_whether_or_not_they_were_imported(room: str) -> None:
    assert wf.__getattr__(room) is getattr(wf, room) is importlib.import_module(f"whyformer.{room}")


def test_types_are_shipped() -> None:
    """``make check`` holds tests/typing/user_script.py to them; here, that no public function hides behind Any."""
    assert (files("whyformer") / "py.typed").is_file()
    functions = {name: f for name in wf.__all__ if inspect.isfunction(f := getattr(wf, name))}
    returns = {name: inspect.get_annotations(f, eval_str=False).get("return", "Any") for name, f in functions.items()}
    untyped = {name for name, hint in returns.items() if str(hint) in {"Any", "typing.Any"}}
    # What these return depends on the inputs, or on the file; shap is an optional library.
    assert untyped <= {"explain", "load", "to_shap"}
    for verb in (wf.explain, wf.Explainer.explain):  # of which inputs, its overloads say
        before = inspect.getsource(inspect.getmodule(inspect.unwrap(verb))).rpartition("@checked\n")[0]  # type: ignore[arg-type]
        seen = re.findall(r"def explain\((?:.|\n)*?\) -> (.*): \.\.\.\n", before)
        assert len(seen) > 10 and not any("Any" in hint for hint in seen)


# Methods of others


@pytest.fixture
def registered() -> Iterator[registry.Method]:
    """The method of the docstring, as if its package had been imported; gone afterwards."""
    wf.list_methods()
    before = dict(registry._METHODS)
    exec(compile(block("python"), "mean_attention.py", "exec", dont_inherit=True), {})
    (name,) = set(registry._METHODS) - set(before)
    yield registry._METHODS[name]
    del registry._METHODS[name]
    assert registry._METHODS == before


def test_the_method_of_the_docstring_explains(registered: registry.Method) -> None:
    case = CASES["bert"]
    model, inputs = case.build("eager"), case.inputs()
    results = wf.explain(model, inputs, method=registered.name, heads="max")
    record = wf.Explainer(model).record(inputs)
    for row, result in enumerate(results):
        rows = [site.attention_BHQK[row].amax(0)[0, : len(result.units)].numpy() for site in record.sites]
        np.testing.assert_allclose(result.scores, np.mean(rows, 0), atol=1e-6)
        assert (result.method, result.options) == ("mean_attention", {"heads": "max", "start_layer": 0})
        assert (result.cost.forwards, int(result.cost.backwards)) == registered.cost(len(result.units))
    with pytest.raises(UnknownName, match="start_layer"):
        wf.explain(model, inputs, method=registered.name, first_layer=1)
    with pytest.raises(BadInput, match="name such as"):
        registry.get_method(3)  # type: ignore[arg-type]


def test_extend_offers_what_it_lists() -> None:
    assert extend.__all__ == sorted(extend.__all__)
    assert all(callable(getattr(extend, name)) for name in extend.__all__)
    offered = {name for name in vars(extend) if not name.startswith("_")}
    assert offered == set(extend.__all__)


# Where nothing has been imported yet, as in a user's first line. One Python answers all questions.


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
    assert said["idea"].startswith("Average the attention of the output position")


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
