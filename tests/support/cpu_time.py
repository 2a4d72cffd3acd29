"""CPU seconds of each test, and of the import of each test file, child processes among them.

    python -m pytest -n 2 --dist loadfile -p tests.support.cpu_time     # writes cpu-time.jsonl
    python -m tests.support.cpu_time                                    # and reads it

CPU seconds are the same on a busy machine and on an idle one. A child counts once it has been waited for.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TO = Path(os.environ.get("CPU_TIME", "cpu-time.jsonl"))


def seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def write(what: str, name: str, since: float) -> None:
    with TO.open("a") as lines:  # one short write: lines of two processes do not mix
        lines.write(json.dumps([what, name, round(seconds() - since, 4)]) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        TO.unlink(missing_ok=True)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[Any]:
    since = seconds()
    report = yield
    if isinstance(collector, pytest.Module):
        write("import", collector.nodeid, since)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    since = seconds()
    try:
        return (yield)
    finally:
        write("test", item.nodeid, since)


def main(path: Path, rows: int = 40) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    tables = {"Files": ("test", "::"), "Tests, over their parameters": ("test", "["), "Imports": ("import", "[")}
    for title, (wanted, end) in tables.items():
        totals: dict[str, float] = defaultdict(float)
        for what, name, spent in lines:
            if what == wanted:
                totals[name.partition(end)[0]] += spent
        print(f"\n{title}: {sum(totals.values()):.0f} CPU seconds")
        for name, total in sorted(totals.items(), key=lambda each: -each[1])[:rows]:
            print(f"{total:8.1f}  {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else TO)
