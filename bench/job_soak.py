"""Is anything lost? Jobs are killed again and again, and a long one has to end with every row once in flat memory.

    python -m bench.job_soak [--times 10] [--rows 200000]

The tests that kill drivers, workers and nodes are repeated; then a process that explains many short rows is killed in
the middle and started again.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import whyformer as wf
from bench.timing import machine
from tests.jobs.sentences import sentences
from tests.support import folders
from whyformer.jobs.store import COMMITS
from whyformer.memory import resident

KILLS = ("tests/jobs/test_resuming.py", "tests/jobs/test_cluster.py")


def explain_rows(out: Path, rows: int) -> None:
    """In a process of its own: the job, and the process's memory on stdout every 20,480 rows."""
    x = wf.Explainer(folders.bert(), folders.tokenizer(out.parent / "tokenizer"))
    texts = sentences(997)

    def source() -> object:
        for i in range(rows):
            if i % 20480 == 0:
                print(json.dumps({"row": i, "megabytes": resident() / 2**20}), flush=True)
            yield f"{texts[i % len(texts)]} {texts[i // len(texts) % 7]}"

    wf.explain_dataset(x, source(), out=out, method="generic_attention", too_long="cut")


def long_job(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "bench.job_soak", "--job", str(out), "--rows", str(rows)]
        driver = subprocess.Popen(command)
        while driver.poll() is None and _parts(out) < rows // 512 // 2:
            time.sleep(0.05)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        print(f"killed after {_parts(out)} parts", flush=True)
        started = time.perf_counter()
        subprocess.run(command, check=True)
        dataset = wf.jobs.ExplainedDataset(out)
        ids = set(dataset.to_frame(["row_id"])["row_id"])
        assert len(dataset) == dataset.rows == len(ids) == rows, "every row, once"
        print(f"{rows} rows, each once; the second half took {time.perf_counter() - started:.0f} s")


def _parts(out: Path) -> int:
    return (out / COMMITS).read_bytes().count(b"\n") if (out / COMMITS).is_file() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.job is not None:
        explain_rows(chosen.job, chosen.rows)
        return
    print(machine())
    for time_ in range(chosen.times):
        subprocess.run([sys.executable, "-m", "pytest", "-q", *KILLS], check=True)
        print(f"killed {time_ + 1} times", flush=True)
    long_job(chosen.rows)


if __name__ == "__main__":
    main()
