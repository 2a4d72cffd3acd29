"""Break formulas and mechanisms on purpose, one at a time, and list what the tests do not notice.

    python -m bench.mutations [names…] [--list] [--unbroken]

A mutation (bench/mutations.txt) replaces one piece of source text, which occurs exactly once in its file, and names the
tests that have to fail. Everything happens in a copy of the tree. The exit code is 1 if a mutation survives.
``--unbroken`` runs the same tests on the source as it is: there all of them have to pass, or a mutation could be
"killed" by an unrelated failure.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
COPIED = ("src", "tests", "docs/code_blocks.py", "models/src", "pyproject.toml", "CONTRIBUTING.md")
# Imported once, before the process of each mutation is forked: importing them takes longer than most of the tests.
LIBRARIES = (
    "pytest",
    "jaxtyping",
    "beartype",
    "scipy.ndimage",
    "torch.export",
    "typer.testing",
    *(f"transformers.models.{name}.modeling_{name}" for name in ("bert", "gpt2", "llama", "vit", "modernbert")),
)
LIMIT = 1200.0  # seconds; a mutation that makes a test hang is noticed, too


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str  # below src/whyformer
    tests: str  # arguments of pytest
    old: str
    new: str


def read(path: Path) -> tuple[Mutation, ...]:
    """Mutations of a file: name, file and tests in one line, then the old text and the new, as in a diff."""
    made: list[list[Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(("- ", "+ ")):
            made[-1][3 if line[0] == "-" else 4].append(line[2:])
        else:
            made.append([*line.split(" | "), [], []])
    return tuple(Mutation(*words, "\n".join(old), "\n".join(new)) for *words, old, new in made)


MUTATIONS = read(Path(__file__).with_suffix(".txt"))


@dataclass(frozen=True)
class Outcome:
    killed: bool
    by: str
    seconds: float


def copied(folder: Path) -> None:
    """Copy what the tests need; nothing is ever changed in the user's own tree."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)


def tried(mutation: Mutation, folder: Path, new: str, stamp: int) -> Outcome:
    """Run the tests of a mutation on the copy with ``new`` in place of the old text."""
    path = folder / "src/whyformer" / mutation.file
    source, times = path.read_text(encoding="utf-8"), path.stat()
    if source.count(mutation.old) != 1:
        raise SystemExit(f"{mutation.name}: its old text occurs {source.count(mutation.old)} times in {mutation.file}.")
    compile(source.replace(mutation.old, new), mutation.file, "exec")  # an error of syntax would look like a kill
    log, begin = folder / "log.txt", time.perf_counter()
    try:
        path.write_text(source.replace(mutation.old, new), encoding="utf-8")
        os.utime(path, (stamp, stamp))  # a time of its own, by which Python knows that compiled code is out of date
        process = multiprocessing.get_context("fork").Process(target=_tested, args=(folder, mutation.tests, log))
        process.start()
        process.join(LIMIT)
        if process.is_alive():
            process.kill()
            process.join()
    finally:
        path.write_text(source, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    seconds, said = time.perf_counter() - begin, log.read_text(encoding="utf-8", errors="replace")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    if process.exitcode == -signal.SIGKILL:
        failed = ["time limit"]
    elif process.exitcode != 0 and not failed:  # neither passed nor failed: the tests did not run
        raise SystemExit(f"{mutation.name}: pytest {mutation.tests} ended with {process.exitcode}.\n{said[-2000:]}")
    return Outcome(bool(failed), failed[0] if failed else "", seconds)


def _tested(folder: Path, tests: str, log: Path) -> None:
    """In a process of its own: run pytest inside the copy."""
    import pytest

    with log.open("wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    own = [str(folder), str(folder / "src"), str(folder / "models/src")]
    sys.path[:] = own + [path for path in sys.path if not Path(path or ".").resolve().is_relative_to(ROOT / "src")]
    os.environ["PYTHONPATH"] = os.pathsep.join(own)
    os.chdir(folder)
    imported = "ignore::pytest.PytestAssertRewriteWarning"  # plugins that were imported before the fork
    code = pytest.main(["-q", "-x", "--tb=short", "-p", "no:cacheprovider", "-W", imported, *shlex.split(tests)])
    sys.stdout.flush()
    os._exit(int(code))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="mutations to run (default: all)")
    parser.add_argument("--list", action="store_true", help="print the mutations and end")
    parser.add_argument("--unbroken", action="store_true", help="run the tests without breaking anything")
    asked = parser.parse_args()
    if unknown := set(asked.names) - {mutation.name for mutation in MUTATIONS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}. See --list.")
    chosen = [mutation for mutation in MUTATIONS if not asked.names or mutation.name in asked.names]
    if asked.list:
        for mutation in chosen:
            print(f"{mutation.name:42} {mutation.file:36} {mutation.tests}")
        return
    os.environ["TRITON_INTERPRET"] = "1"  # as tests/conftest.py sets it, before Triton is imported
    for name in LIBRARIES:
        importlib.import_module(name)
    survivors = []
    with tempfile.TemporaryDirectory(prefix="mutations-") as name:
        folder = Path(name).resolve()
        copied(folder)
        for number, mutation in enumerate(chosen):
            outcome = tried(mutation, folder, mutation.old if asked.unbroken else mutation.new, 10**9 + number)
            said = "killed" if outcome.killed else "SURVIVED"
            print(f"{mutation.name:42} {said:8} {outcome.seconds:6.0f} s  {outcome.by}", flush=True)
            survivors += [] if outcome.killed else [mutation.name]
    print(f"\n{len(chosen) - len(survivors)} of {len(chosen)} killed. Survivors: {', '.join(survivors) or 'none'}.")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
