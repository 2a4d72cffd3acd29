"""Run ``make test`` in fresh clones of the last commit, each in an order of its own.

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

ROOT = Path(__file__).parents[2]
# Of an outer ``make`` or Python, which would reach into the clone.
INHERITED = "MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES SEEDS PYTHONPATH VIRTUAL_ENV PYTEST_ADDOPTS".split()
# The last line of pytest.
SUMMARY = re.compile(
    r"^=*\s*(\d+ (?:passed|failed|errors?|skipped|warnings?|xfailed|xpassed).* in [\d.]+s)", re.MULTILINE
)


def run(seed: int, source: Path, folder: Path, log: Path) -> int:
    """Clone into ``folder/clone``, set up and test; return the exit status. All output goes to ``log``."""
    environment = {name: value for name, value in os.environ.items() if name not in INHERITED}
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
        return status or call("make", "-C", str(clone), "test", f"SHUFFLE_SEED={seed}")


def main(seeds: list[int], source: Path = ROOT) -> int:
    if subprocess.run(["git", "-C", str(source), "status", "--porcelain"], capture_output=True, check=True).stdout:
        print("Changes that are not committed are not part of the clones.", flush=True)
    passed = 0
    logs = Path(tempfile.mkdtemp(prefix="whyformer-logs-"))
    with tempfile.TemporaryDirectory(prefix="whyformer-clone-") as folder:
        for seed in seeds:
            log, begin = logs / f"seed-{seed}.txt", time.monotonic()
            status = run(seed, source, Path(folder), log)
            said = SUMMARY.findall(log.read_text(encoding="utf-8", errors="replace")) or ["pytest did not finish"]
            outcome = f"failed (see {log})" if status else "passed"
            print(f"seed {seed} {outcome}, {(time.monotonic() - begin) / 60:.1f} minutes: {said[-1]}", flush=True)
            passed += not status
            if not status:
                log.unlink()
    print(f"{passed} of {len(seeds)} seeds passed")
    if passed == len(seeds):
        logs.rmdir()
    return int(passed < len(seeds))


if __name__ == "__main__":
    sys.exit(main([int(seed) for seed in sys.argv[1:]]))
