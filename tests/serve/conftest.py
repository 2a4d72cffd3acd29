"""One browser for all tests of the server's page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import ABSENT, Browser, browser_path


@pytest.fixture(scope="package")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if browser_path() is None:
        pytest.skip(ABSENT)
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    """The same one; a page that wrote errors to its console fails its test."""
    yield one_browser
    assert one_browser.errors == []
