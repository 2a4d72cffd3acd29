"""What holds where nothing has been imported yet, as in a user's first line. One Python answers all questions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.parametrize(
    "what", ["import whyformer", "import whyformer.cli.main", "import tests.models", "explain"]
)
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
