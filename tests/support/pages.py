"""Run the code of pages in an environment that holds what their install line names, and nothing else."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest

from docs.code_blocks import Block, Environment
from tests.support.packages import environment

UNUSED = {"jupyterlab"}  # opens notebooks; code does not import it, and developers need not have it
# Runs in the environment. It imports what all pages import, and then forks for each page: every page has a process of
# its own, without the seconds that these imports take.
RUNNER = """
import importlib, importlib.util, inspect, json, os, sys, traceback

import torch, whyformer
if importlib.util.find_spec("transformers"):
    import transformers.models.auto.modeling_auto

def run(page, folder, blocks, options):
    os.chdir(folder)
    sys.path.insert(0, folder)
    os.environ["MPLBACKEND"] = "agg"
    for place, changed in options.items():
        module, name = place.split(":")
        if importlib.util.find_spec(module.partition(".")[0]):
            inspect.unwrap(getattr(importlib.import_module(module), name)).__kwdefaults__.update(changed)
    torch.manual_seed(0)
    names = {"__name__": "__main__"}
    for line, code in blocks:
        exec(compile("\\n" * (line - 1) + code, page, "exec"), names)

for request in sys.stdin:
    page, folder, blocks, options = json.loads(request)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for stream, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(f"{folder}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            run(page, folder, blocks, options)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@dataclass(frozen=True)
class Ran:
    well: bool
    printed: str
    error: str


class Runner:
    """A process in an environment that runs pages, one after another."""

    def __init__(self, python: Path, variables: dict[str, str]) -> None:
        call = [str(python), "-c", RUNNER]
        self.process = subprocess.Popen(call, cwd=python.parent, env=variables, stdin=-1, stdout=-1, text=True)

    def run(self, page: str, folder: Path, blocks: list[Block], options: dict[str, Any] | None = None) -> Ran:
        """``options``: defaults of functions to change first, by module:function."""
        assert self.process.stdin is not None and self.process.stdout is not None
        request = [page, str(folder), [(block.line, block.code) for block in blocks], options or {}]
        print(json.dumps(request), file=self.process.stdin, flush=True)
        status = self.process.stdout.readline().strip()
        assert status, "the process that runs pages has ended"
        printed, error = (Path(f"{folder}.{name}").read_text(encoding="utf-8") for name in ("out", "err"))
        return Ran(status == "0", printed, error)


@pytest.fixture(scope="session")
def runner(
    wheels: dict[str, Path], ours: dict[str, Distribution], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Environment], Runner]]:
    """The process of an environment: started when it is first used."""
    started: dict[str, Runner] = {}

    def of(named: Environment) -> Runner:
        if str(named) not in started:  # a clone has the same packages
            others = [name for name in named.others if name not in UNUSED]
            env = environment(tmp_path_factory.mktemp("environment"), wheels, ours, named.extras, others)
            started[str(named)] = Runner(env.folder / "bin" / "python", env.variables())
        return started[str(named)]

    yield of
    for one in started.values():
        one.process.kill()
        one.process.communicate()
