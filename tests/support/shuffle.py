"""Run the tests in another order: a test that needs what another one left behind fails.

    python -m pytest -n 2 --dist loadfile -p tests.support.shuffle --shuffle-seed 3
    make test SHUFFLE_SEED=3

The seed determines the order of the files, the order of the tests within a file, the number of workers (2 to 4, in
place of the number behind ``-n``), and the state of the global random number generators before each test. The tests
of a file stay together, so that fixtures of a module are set up once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

WORKERS = (2, 3, 4)


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


def pytest_report_header(config: pytest.Config) -> str:
    workers = getattr(config.option, "numprocesses", None) or 1
    return f"shuffle seed: {config.option.shuffle_seed}, workers: {workers}"
