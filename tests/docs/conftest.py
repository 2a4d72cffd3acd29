"""A small part of the site, built once: `make check` builds all of it with warnings as errors."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import chromium as browser  # noqa: F401
from tests.support.packages import ours as ours  # noqa: PLC0414
from tests.support.packages import wheels as wheels  # noqa: PLC0414
from tests.support.pages import runner as runner  # noqa: PLC0414

ROOT = Path(__file__).parents[2]
LEFT_OUT = (  # so that it is built in seconds
    *("guide", "reports", "coming_from", "start/[a-eg-z]*", "templates", "images", "__pycache__"),
    *("supported.md", "metrics.md", "architecture.md", "changes.md"),
    *("methods/[b-z]*", "api/[a-d]*", "api/er*", "api/ext*", "api/h*", "api/[j-z]*"),
)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.version_info < (3, 11):
        pytest.skip("what builds the site has given Python 3.10 up (pyproject.toml, docs)")
    folder = tmp_path_factory.mktemp("site")
    settings = f"exclude_patterns={','.join(LEFT_OUT)}"
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "-d", str(folder / "doctrees"), "-D", settings]
    done = subprocess.run(
        [*command, str(ROOT / "docs"), str(folder / "site")],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture(scope="module", autouse=True)
def handlers_are_put_back() -> Iterator[None]:
    """Restore signal handlers and loggers: pages show how to log, and a notebook's kernel sets handlers of its own."""
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    loggers = [logging.getLogger(), logging.getLogger("whyformer")]
    settings = [(list(log.handlers), log.level, log.propagate, log.disabled) for log in loggers]
    yield
    for number, handler in signals.items():
        signal.signal(number, handler)
    for log, (handlers, level, propagate, disabled) in zip(loggers, settings, strict=True):
        log.handlers[:] = handlers
        log.setLevel(level)
        log.propagate, log.disabled = propagate, disabled
