"""Where the time of the tests goes: CPU seconds (and those of the clock) of each test, fixture and import of a file.

    python -m pytest -n 2 --dist loadfile -p tests.support.cpu_time     # writes cpu-time.jsonl
    python -m tests.support.cpu_time                                    # and reads it

CPU seconds, those of child processes among them, because they say the same on a busy machine and on an idle one.
A child counts once it has been waited for. What waits for others (a browser, a server) shows in the clock's alone.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TO = Path(os.environ.get("CPU_TIME", "cpu-time.jsonl"))
START = time.perf_counter()


def seconds() -> tuple[float, float, float]:
    """CPU seconds of this process and of its children that have ended, and the clock's."""
    mine, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime, children.ru_utime + children.ru_stime, time.perf_counter()


def write(what: str, name: str, since: tuple[float, float, float]) -> None:
    now = seconds()
    line = {
        "worker": os.environ.get("PYTEST_XDIST_WORKER", "main"),
        "what": what,
        "name": name,
        "self": round(now[0] - since[0], 4),
        "children": round(now[1] - since[1], 4),
        "clock": round(now[2] - since[2], 4),
    }
    with TO.open("a") as lines:  # one short write: lines of two processes do not mix
        lines.write(json.dumps(line) + "\n")


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
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    since = seconds()
    value = yield
    if sum(seconds()[:2]) - sum(since[:2]) > 0.05:
        write("fixture", f"{request.node.nodeid.partition('::')[0]}::{fixturedef.argname}", since)
    return value


def phase(name: str) -> Any:
    @pytest.hookimpl(wrapper=True)
    def timed(item: pytest.Item) -> Iterator[Any]:
        since = seconds()
        try:
            return (yield)
        finally:
            write(name, item.nodeid, since)

    return timed


pytest_runtest_setup = phase("setup")
pytest_runtest_call = phase("call")
pytest_runtest_teardown = phase("teardown")


def pytest_sessionfinish(session: pytest.Session) -> None:
    write("process", str(session.config.rootpath), (0.0, 0.0, START))


def main(path: Path, rows: int = 40) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]

    def table(title: str, totals: Counter[str], children: Counter[str]) -> None:
        print(f"\n{title}: {sum(totals.values()):.0f} s")
        for name, total in totals.most_common(rows):
            print(f"{total:8.1f} {children[name]:7.1f}  {name}")

    def of(key: Any, *whats: str) -> tuple[Counter[str], Counter[str]]:
        totals, children = defaultdict(float), defaultdict(float)
        for line in lines:
            if line["what"] in whats:
                totals[key(line)] += line["self"] + line["children"]
                children[key(line)] += line["children"]
        return Counter(totals), Counter(children)

    print("CPU seconds; the second column is the part of child processes")
    table("Processes", *of(lambda line: line["worker"], "process"))
    tests = ("setup", "call", "teardown")
    table("Files", *of(lambda line: line["name"].partition("::")[0], *tests))
    table("Tests, over their parameters", *of(lambda line: line["name"].partition("[")[0], *tests))
    table("Fixtures (part of the tests above)", *of(lambda line: line["name"], "fixture"))
    table("Imports, in every process", *of(lambda line: line["name"], "import"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else TO)
