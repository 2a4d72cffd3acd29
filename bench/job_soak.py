"""Is anything lost? Jobs are killed again and again, and a long one has to end with every row once in flat memory.

    python -m bench.job_soak [--times 10] [--rows 200000]

The tests that kill drivers, workers and nodes are repeated; then a process that explains many short rows is killed in
the middle and started again. Its memory may grow by GROWTH from the first stretch of rows that it explained to any
later one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import whyformer as wf
from bench.timing import machine
from tests.jobs.sentences import sentences
from tests.support import folders
from whyformer.jobs.folder import COMMITS
from whyformer.loan.spread import resident

KILLS = ("tests/jobs/test_resuming.py", "tests/jobs/test_cluster.py")
STRETCHES = 10  # at whose ends memory is read
GROWTH = 32.0  # megabytes
PART_ROWS = 512


def explain_rows(out: Path, rows: int) -> None:
    """In a process of its own: the job, and the process's memory on stdout, ten times."""
    x = wf.Explainer(folders.bert(), folders.tokenizer(out.parent / "tokenizer"))
    texts = sentences(997)

    def source() -> object:
        for i in range(rows):
            if i % max(1, rows // STRETCHES) == 0:
                print(json.dumps({"row": i, "megabytes": round(resident() / 2**20, 1)}), flush=True)
            yield f"{texts[i % len(texts)]} {texts[i // len(texts) % 7]}"

    how = {"method": "generic_attention", "too_long": "cut", "part_rows": PART_ROWS}
    wf.explain_dataset(x, source(), out=out, **how)  # type: ignore[arg-type]


def long_job(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "out", Path(folder) / "log.txt"
        command = [sys.executable, "-m", "bench.job_soak", "--job", str(out), "--rows", str(rows)]
        with log.open("w") as stream:
            driver = subprocess.Popen(command, stdout=stream)
            while driver.poll() is None and _parts(out) < rows // PART_ROWS // 2:
                time.sleep(0.05)
            driver.kill()
            driver.wait()
        done = _parts(out) * PART_ROWS
        print(f"killed after {done} rows", flush=True)
        _require_flat(log, rows // STRETCHES)
        started = time.perf_counter()
        with log.open("w") as stream:
            subprocess.run(command, check=True, stdout=stream)
        _require_flat(log, done + rows // STRETCHES)
        dataset = wf.jobs.ExplainedDataset(out)
        ids = set(dataset.to_frame(["row_id"])["row_id"])
        assert 0 < done < rows and len(dataset) == dataset.rows == len(ids) == rows, "every row, once"
        print(f"{rows} rows, each once; the second half took {time.perf_counter() - started:.0f} s")


def _require_flat(log: Path, start: int) -> None:
    """Memory, from the row ``start`` on: before, rows are only passed over, or the first ones explained."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    at_work = [line for line in lines if line["row"] >= start]
    told = ", ".join(f"{line['row']}: {line['megabytes']:.0f}" for line in lines)
    print(f"megabytes at rows {told}", flush=True)
    growth = max(line["megabytes"] for line in at_work) - at_work[0]["megabytes"]
    assert growth < GROWTH, f"memory grew by {growth:.0f} megabytes"


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
    for number in range(chosen.times):
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *KILLS], check=True)
        print(f"each killed {number + 1} times", flush=True)
    long_job(chosen.rows)


if __name__ == "__main__":
    main()
