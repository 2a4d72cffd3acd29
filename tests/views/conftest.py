"""One browser for all tests of pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Browser
from tests.support.browser import chromium as chromium  # noqa: PLC0414


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """Each test that opens pages fails where one of them writes an error to its console."""
    chromium.errors.clear()
    yield chromium
    assert chromium.errors == []


def opened(browser: Browser, shown: Any, folder: Path, **how: Any) -> Browser:
    """The page of a result or view, saved and opened."""
    assert browser.errors == []  # of the page before
    options = {name: how.pop(name) for name in ("image",) if name in how}
    browser.open(shown.save(folder / "x.html", **options), **how)
    return browser


def chosen(browser: Browser) -> list[str]:
    """The units that are pointed at or held, wherever they are drawn."""
    return browser.texts(".wf-here")
