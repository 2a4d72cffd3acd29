"""Pythons that the package names, what the Makefile does, and how the tests are run."""

from __future__ import annotations

import ast
import logging
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.support import fresh_clones, shuffle
from tests.support.lowest import lowest
from tests.support.packages import REPOSITORY
from tests.support.process_state import restored
from tests.support.processors import pair_tokenizer
from whyformer import registry, views
from whyformer.inputs import modalities

OLDEST = (3, 10)
SOURCES = sorted((REPOSITORY / "src").rglob("*.py"))
# Names of 3.11 by module. mypy reads the sources as 3.11 and refuses later names, ruff refuses newer syntax.
NEWER = {
    "tomllib": {"*"},
    "typing": {
        *("Self", "LiteralString", "Never", "Required", "NotRequired", "Unpack", "TypeVarTuple", "assert_never"),
        *("assert_type", "reveal_type", "dataclass_transform"),
    },
    "enum": {"StrEnum", "ReprEnum", "member", "nonmember", "verify"},
    "datetime": {"UTC"},
    "contextlib": {"chdir"},
    "asyncio": {"TaskGroup", "Runner", "timeout", "Barrier"},
    "hashlib": {"file_digest"},
    "math": {"cbrt", "exp2"},
    "operator": {"call"},
    "logging": {"getLevelNamesMapping"},
    "builtins": {"ExceptionGroup", "BaseExceptionGroup"},
}
ATTRIBUTES = {"add_note", "co_qualname"}  # of objects, whatever their module
SOME = ATTRIBUTES.union(*NEWER.values())


def newer_names(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            listed = NEWER.get(str(node.module), set())
            names |= {f"{node.module}.{a.name}" for a in node.names if a.name in listed or "*" in listed}
        elif isinstance(node, ast.Import):
            names |= {a.name for a in node.names if "*" in NEWER.get(a.name, set())}
        elif isinstance(node, ast.Attribute) and node.attr in SOME:
            module = ast.unparse(node.value) if isinstance(node.value, (ast.Name, ast.Attribute)) else ""
            if node.attr in NEWER.get(module, set()) | ATTRIBUTES:
                names.add(f"{module}.{node.attr}")
        elif isinstance(node, ast.Name) and node.id in NEWER["builtins"]:
            names.add(node.id)
    return names


def test_nothing_newer_than_the_oldest_python_is_used() -> None:
    assert len(SOURCES) > 200
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=OLDEST)
        assert not newer_names(tree), path


def test_newer_names_would_be_seen() -> None:
    code = "import tomllib, math\nfrom typing import Self\nfrom enum import Enum\nmath.cbrt(2)\nExceptionGroup('', [])"
    assert newer_names(ast.parse(code)) == {"tomllib", "typing.Self", "math.cbrt", "ExceptionGroup"}


def test_no_pin_keeps_an_older_python_from_installing() -> None:
    """``make demo`` installs with constraints.txt, on every Python that is named: a pin that one has not says so."""
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    held = [pin for pin in pins if pythons_of(pin) is not None]
    assert len(pins) > 100 and len(held) > 0.3 * len(pins)  # fewer on the oldest
    for pin in held:
        needs = SpecifierSet(pythons_of(pin) or "")
        for minor in range(OLDEST[1], sys.version_info[1] + 1):
            version = {"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.9"}
            asked = pin.marker is None or pin.marker.evaluate(version)
            assert asked == needs.contains(f"3.{minor}.9"), f"{pin} on Python 3.{minor}, and it needs {needs}"


def test_pins_agree_with_what_pinned_libraries_require() -> None:
    """Else ``make setup`` fails: of the libraries that are installed here in the pinned version."""
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [pin for pin in map(Requirement, (line for line in lines if not line.startswith("#"))) if holds(pin)]
    pinned = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}
    seen = 0
    for pin in pins:
        here = distribution(pin.name).requires if pythons_of(pin) is not None else None
        for needed in map(Requirement, here or []):
            version = pinned.get(canonicalize_name(needed.name))
            if version is not None and holds(needed):
                assert needed.specifier.contains(version), f"{pin} requires {needed}, and {version} is pinned"
                seen += 1
    assert seen > 100


def test_the_lowest_versions_are_those_of_the_package_and_its_extras() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    bounds = {name: version for name, _, version in (line.partition("==") for line in lowest(text))}
    required = [Requirement(line) for line in distribution("whyformer").requires or [] if ">=" in line]
    theirs = {r.name: r.specifier for r in required if not r.name.startswith("whyformer")}
    assert {canonicalize_name(name) for name in bounds} == {canonicalize_name(name) for name in theirs}
    assert bounds["torch"] in text and "hatchling" not in bounds and "sphinx" not in bounds
    assert "$(MAKE) test VENV=build/lowest CONSTRAINTS=build/lowest.txt" in MAKEFILE


def holds(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def pythons_of(pin: Requirement) -> str | None:
    """Which Pythons the pinned library runs on; None where it is not installed here in that version."""
    try:
        here = distribution(pin.name)
    except PackageNotFoundError:
        return None
    return (here.metadata.get("Requires-Python") or "") if pin.specifier.contains(here.version) else None


def test_the_versions_that_are_named_are_those_that_are_asked_for() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    named = sorted(tuple(map(int, v)) for v in re.findall(r'"Programming Language :: Python :: (\d)\.(\d+)"', text))
    assert named[0] == OLDEST and named == [(3, minor) for minor in range(10, named[-1][1] + 1)]
    assert f'requires-python = ">={OLDEST[0]}.{OLDEST[1]}"' in text
    assert sys.version_info[:2] in named


# The commands of the Makefile, where running them would take minutes.


MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")


def shadowed(makefile: str) -> set[str]:
    """Modules that are run by name while a folder of that name, made by another target, may stand beside the Makefile.

    ``python -m build`` takes the folder ``build`` for the module, once the site has been built there.
    """
    (cleaned,) = re.findall(r"^clean:\n\trm -rf (.+)$", makefile, re.MULTILINE)
    return set(re.findall(r"^\t.*python -m (\w+)", makefile, re.MULTILINE)) & set(cleaned.split())


def test_no_module_is_hidden_by_a_folder_that_make_makes() -> None:
    assert not shadowed(MAKEFILE)
    assert shadowed(MAKEFILE + "\n\t$(BIN)/python -m build --outdir dist .\n") == {"build"}


def test_every_target_is_phony_and_a_release_makes_both_packages() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    assert set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE)) == set(phony.split())
    recipe = MAKEFILE.partition("\nrelease: setup\n")[2].partition("\n\n")[0]
    assert re.findall(r"pyproject-build --no-isolation --outdir dist (\S+)", recipe) == [".", "models"]
    assert "twine check --strict dist/*" in recipe


def test_the_workflow_of_a_release_runs_targets_and_looks_for_known_weaknesses() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert runs == ["make audit", "make check", "make test", "make release"]
    assert workflow["permissions"] == {"contents": "read"}
    assert {job: each["permissions"] for job, each in workflow["jobs"].items() if "permissions" in each} == {
        "publish": {"id-token": "write"}
    }
    recipe = MAKEFILE.partition("\naudit: setup\n")[2].partition("\n\n")[0]
    assert "pip-audit --requirement $(CONSTRAINTS) --no-deps --disable-pip --strict" in recipe


def test_workflows_run_what_the_makefile_runs_and_nothing_of_their_own() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    for path in sorted((REPOSITORY / ".github" / "workflows").glob("*.yml")):
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
        assert all(step["run"] in {f"make {target}" for target in phony.split()} for step in steps if "run" in step)
        assert workflow["permissions"] == {"contents": "read"}, path.name
    matrix = yaml.safe_load((REPOSITORY / ".github/workflows/test.yml").read_text())["jobs"]["test"]["strategy"][
        "matrix"
    ]
    named = re.findall(r"Programming Language :: Python :: (3\.\d+)", (REPOSITORY / "pyproject.toml").read_text())
    assert matrix["python"] == [named[0], named[-1]] and len(matrix["os"]) == 3


def test_what_one_of_the_two_commands_leaves_out_the_other_runs() -> None:
    recipes = {name: MAKEFILE.partition(f"\n{name}: setup\n")[2].partition("\n\n")[0] for name in ("test", "check")}
    assert "$(PYTEST) $(OF_CHECK:%=--ignore=%)" in recipes["test"]
    assert "$(PYTEST) $(OF_CHECK)" in recipes["check"]
    (others,) = re.findall(r"^OF_CHECK := (.+?) \$\(IN_A_BROWSER\) \$\(OVER_PROCESSES\)$", MAKEFILE, re.MULTILINE)
    files = re.findall(r"^(?:IN_A_BROWSER|OVER_PROCESSES) := (.+)$", MAKEFILE, re.MULTILINE)
    assert all((REPOSITORY / folder).is_dir() for folder in others.split())
    assert len(files) == 2 and all((REPOSITORY / file).is_file() for file in " ".join(files).split())


# How the tests are run: in any order, restoring what they change, and in fresh clones.

NODES = [f"tests/test_{file}.py::test_{test}" for file in "abcd" for test in range(5)]


def shuffled(seed: int, nodes: list[str]) -> list[str]:
    items: list[Any] = [SimpleNamespace(nodeid=node) for node in nodes]
    config: Any = SimpleNamespace(option=SimpleNamespace(shuffle_seed=seed))
    shuffle.pytest_collection_modifyitems(config, items)
    return [item.nodeid for item in items]


def test_a_seed_orders_files_and_their_tests_and_keeps_files_together() -> None:
    orders = [shuffled(seed, NODES) for seed in range(1, 11)]
    assert all(sorted(order) == NODES for order in orders)
    files = [list(dict.fromkeys(node.partition("::")[0] for node in order)) for order in orders]
    for order, some in zip(orders, files, strict=True):
        assert [node.partition("::")[0] for node in order] == [file for file in some for _ in range(5)]
    assert len({tuple(some) for some in files}) > 5, "of the files"
    assert len({tuple(node for node in order if "test_a" in node) for order in orders}) > 5, "within a file"
    assert shuffled(3, NODES) == orders[2]


def test_a_seed_chooses_the_number_of_workers_if_there_are_some() -> None:
    def workers(seed: int, asked: int | None) -> Any:
        config: Any = SimpleNamespace(option=SimpleNamespace(shuffle_seed=seed, numprocesses=asked))
        next(shuffle.pytest_cmdline_main(config))
        return config.option.numprocesses

    assert {workers(seed, 3) for seed in range(1, 11)} == {2, 3, 4}
    assert workers(1, None) is None


def test_a_seed_makes_clocks_jump_but_never_back() -> None:
    clock = shuffle.jumping(lambda: 10.0, random.Random(3))
    times = [clock() for _ in range(200)]
    assert times == sorted(times) and times[0] >= 10 and times[-1] > 20
    steps = [after - before for before, after in pairwise(times)]
    assert min(steps) == 0 and max(steps) > 1


CHANGES: dict[str, Callable[[pytest.MonkeyPatch, Path], Any]] = {
    "environment variable WF_LEFT": lambda patch, _: patch.setenv("WF_LEFT", "secret"),
    "working directory": lambda patch, path: patch.chdir(path),
    "sys.path": lambda patch, path: patch.syspath_prepend(path),
    "module whyformer.views.view, imported twice": lambda patch, _: patch.setattr(views, "view", ModuleType("view")),
    "logger root": lambda patch, _: patch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()]),
    "methods": lambda patch, _: patch.setitem(registry._METHODS, "left", registry._METHODS["saliency"]),
    "modalities": lambda patch, _: patch.setattr(modalities, "KINDS", modalities.KINDS[1:]),
    "torch": lambda patch, _: torch.set_grad_enabled(False),
    "shared tokenizers": lambda patch, _: patch.setattr(pair_tokenizer(), "model_max_length", 8),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_file_of_tests_leaves_changed_is_named(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import whyformer.views.view  # noqa: F401

    try:
        with pytest.raises(AssertionError, match=f"follow in this process: {what}$") as failure, restored():
            CHANGES[what](monkeypatch, tmp_path)
    finally:
        torch.set_grad_enabled(True)
    assert "secret" not in str(failure.value)
    monkeypatch.undo()
    with restored():
        pass


# Installing into a .venv that is there fails, and so does a clone that holds what the last run left.
MAKE = """
test: .venv/.ready
\t@test ! -e seen
\t@test -z "$$SEEDS$$PYTHONPATH" && echo "$(SHUFFLE_SEED)" > seen
\t@echo "12 passed, 1 skipped in 90.00s (0:01:30)"
\t@test $(SHUFFLE_SEED) != 2

.venv/.ready: Makefile
\tmkdir .venv
\ttouch .venv/.ready
"""


@pytest.mark.skipif(os.name == "nt", reason="make and its shell")
def test_clones_are_tested_seed_by_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, temporary = tmp_path / "source", tmp_path / "temporary"
    for folder in (source, temporary):
        folder.mkdir()
    (source / "Makefile").write_text(MAKE)
    git = ["git", "-C", str(source), "-c", "user.name=a", "-c", "user.email=a@b.invalid"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "a"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setattr(fresh_clones.tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("SEEDS", "1 2")
    assert fresh_clones.main([1, 3], source) == 0 and not list(temporary.iterdir())
    capsys.readouterr()
    (source / "new").touch()
    assert fresh_clones.main([1, 2], source) == 1
    shown = capsys.readouterr().out
    assert "not committed" in shown and "1 of 2 seeds passed" in shown
    assert "seed 1 passed, " in shown and ": 12 passed, 1 skipped in 90.00s" in shown and "seed 2 failed (" in shown
    (log,) = temporary.rglob("*.txt")
    assert log.name == "seed-2.txt" and "12 passed" in log.read_text() and not (source / "seen").exists()


def test_every_promise_of_the_security_policy_names_its_test() -> None:
    text = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert len(rows) > 8 and all("`tests/" in row for row in rows)
    for path in re.findall(r"`(tests/[^`]+)`", text):
        assert (REPOSITORY / path).exists(), path
    assert len(text.split()) <= 500
