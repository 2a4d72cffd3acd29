"""One browser for all tests of the server's page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import ABSENT, Browser, browser_path


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if browser_path() is None:
        pytest.skip(ABSENT)
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser
