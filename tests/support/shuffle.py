"""Run the tests in another order, with clocks that jump: a test that depends on its neighbours or on time fails.

    python -m pytest -n 2 --dist loadfile -p tests.support.shuffle --shuffle-seed 3
    make test SHUFFLE_SEED=3

The seed determines the order of the files, the order of the tests within a file, the number of workers (2 to 4, in
place of the number behind ``-n``), the state of the global random number generators before each test, and by how
much the clocks that measure work jump whenever they are read. The tests of a file stay together, so that fixtures of
a module are set up once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

WORKERS = (2, 3, 4)
CLOCKS = ("perf_counter", "process_time")  # time.monotonic is that of limits, which are to be real
JUMPS = (0.0, 1e-6, 1e-3, 0.02, 0.3, 2.0)  # seconds, at most


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle-seed", type=int, default=0, help="order of the tests, and number of workers")


@pytest.hookimpl(wrapper=True)  # before pytest-xdist reads the number
def pytest_cmdline_main(config: pytest.Config) -> Iterator[Any]:
    if getattr(config.option, "numprocesses", None):
        config.option.numprocesses = random.Random(config.option.shuffle_seed).choice(WORKERS)
    return (yield)


@pytest.hookimpl(tryfirst=True)  # pytest groups the tests by parameters of module fixtures afterwards
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    draw = random.Random(config.option.shuffle_seed)
    draw.choice(WORKERS)
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    order = sorted(files)
    draw.shuffle(order)
    for path in order:
        draw.shuffle(files[path])
    items[:] = [item for path in order for item in files[path]]


def jumping(clock: Callable[[], float], draw: random.Random) -> Callable[[], float]:
    """The clock, with a random time added to all that it shows from now on, each time it is read."""
    ahead = 0.0

    def now() -> float:
        nonlocal ahead
        ahead += draw.choice(JUMPS) * draw.random()
        return clock() + ahead

    return now


def pytest_configure(config: pytest.Config) -> None:
    draw = random.Random(config.option.shuffle_seed)
    for name in CLOCKS:
        setattr(time, name, jumping(getattr(time, name), draw))


def pytest_report_header(config: pytest.Config) -> str:
    workers = getattr(config.option, "numprocesses", None) or 1
    return f"shuffle seed: {config.option.shuffle_seed}, workers: {workers}"
