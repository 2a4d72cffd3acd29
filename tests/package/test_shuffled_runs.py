"""How the tests are run: in any order, restoring what they change, and in fresh clones."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support import fresh_clones, shuffle
from tests.support.process_state import restored
from whyformer import registry, views
from whyformer.inputs import modalities

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


CHANGES: dict[str, Callable[[pytest.MonkeyPatch, Path], Any]] = {
    "environment variable WF_LEFT": lambda patch, _: patch.setenv("WF_LEFT", "secret"),
    "working directory": lambda patch, path: patch.chdir(path),
    "sys.path": lambda patch, path: patch.syspath_prepend(path),
    "module whyformer.views.view, imported twice": lambda patch, _: patch.setattr(views, "view", ModuleType("view")),
    "logger root": lambda patch, _: patch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()]),
    "methods": lambda patch, _: patch.setitem(registry._METHODS, "left", registry._METHODS["saliency"]),
    "modalities": lambda patch, _: patch.setattr(modalities, "KINDS", modalities.KINDS[1:]),
    "torch": lambda patch, _: torch.set_grad_enabled(False),
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
