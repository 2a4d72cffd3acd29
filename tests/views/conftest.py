"""One browser for all tests of pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import ABSENT, Browser, browser_path


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if browser_path() is None:
        pytest.skip(ABSENT)
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


def opened(browser: Browser, shown: Any, folder: Path, **how: Any) -> Browser:
    """The page of a result or view, saved and opened."""
    options = {name: how.pop(name) for name in ("image",) if name in how}
    browser.open(shown.save(folder / "x.html", **options), **how)
    return browser
