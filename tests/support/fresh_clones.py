"""Run ``make test`` in fresh clones of the last commit, each in an order of its own, and print a table.

    python -m tests.support.fresh_clones 1 2 3      # seeds of the order (tests/support/shuffle.py)

The first clone is set up from nothing in a temporary folder. The next ones take its place, with its ``.venv``: the same
commit needs the same packages, and installing them ten times takes longer than half of the tests. The output of a run
that failed is kept.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
# Of an outer ``make`` or Python, which would reach into the clone.
INHERITED = "MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES SEEDS PYTHONPATH VIRTUAL_ENV PYTEST_ADDOPTS".split()
SUMMARY = re.compile(
    r"^=*\s*(\d+ (?:passed|failed|errors?|skipped|warnings?|xfailed|xpassed).*?) in ([\d.]+)s", re.MULTILINE
)


class Outcome(NamedTuple):
    seed: int
    status: int
    counts: str  # as pytest prints them
    minutes: float  # with the setup
    test_minutes: float  # of pytest alone


def summary(output: str) -> tuple[str, float]:
    """The counts in the last line of pytest, and its minutes."""
    lines = SUMMARY.findall(output)
    return (lines[-1][0], float(lines[-1][1]) / 60) if lines else ("pytest did not finish", 0.0)


def run(seed: int, source: Path, folder: Path, log: Path) -> Outcome:
    """Clone into ``folder/clone``, set up and test; all output goes to ``log``."""
    environment = {name: value for name, value in os.environ.items() if name not in INHERITED}
    begin = time.monotonic()
    clone, installed = folder / "clone", folder / ".venv"
    if (clone / ".venv").exists():
        (clone / ".venv").rename(installed)
        shutil.rmtree(clone)
    with log.open("wb") as output:

        def call(*command: str) -> int:
            return subprocess.call(command, env=environment, stdout=output, stderr=subprocess.STDOUT)

        status = call("git", "clone", "--quiet", str(source), str(clone))
        if installed.exists():
            installed.rename(clone / ".venv")  # the same path as before, which is written into its scripts
            for stamp in clone.glob(".venv/.*"):
                stamp.touch()  # newer than the files of the clone, so that make does not install again
        status = status or call("make", "-C", str(clone), "test", f"SHUFFLE_SEED={seed}")
    counts, test_minutes = summary(log.read_text(encoding="utf-8", errors="replace"))
    return Outcome(seed, status, counts, (time.monotonic() - begin) / 60, test_minutes)


def table(outcomes: list[Outcome]) -> str:
    lines = ["seed  result  minutes  of pytest  counts"]
    for each in outcomes:
        result = "failed" if each.status else "passed"
        lines.append(f"{each.seed:>4}  {result}  {each.minutes:7.1f}  {each.test_minutes:9.1f}  {each.counts}")
    passed = sum(not each.status for each in outcomes)
    return "\n".join([*lines, f"{passed} of {len(outcomes)} seeds passed"])


def main(seeds: list[int], source: Path = ROOT) -> int:
    if subprocess.run(["git", "-C", str(source), "status", "--porcelain"], capture_output=True, check=True).stdout:
        print("Changes that are not committed are not part of the clones.", flush=True)
    outcomes = []
    logs = Path(tempfile.mkdtemp(prefix="whyformer-logs-"))
    with tempfile.TemporaryDirectory(prefix="whyformer-clone-") as folder:
        for seed in seeds:
            log = logs / f"seed-{seed}.txt"
            outcomes.append(outcome := run(seed, source, Path(folder), log))
            if outcome.status:
                print(f"seed {seed} failed, see {log}", flush=True)
            else:
                log.unlink()
                print(f"seed {seed} passed: {outcome.counts}", flush=True)
    print(table(outcomes))
    failed = any(outcome.status for outcome in outcomes)
    if not failed:
        shutil.rmtree(logs)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main([int(seed) for seed in sys.argv[1:]]))
