"""One browser for all tests of the server's page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import Browser
from tests.support.browser import chromium as chromium  # noqa: PLC0414


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The same one; a page that wrote errors to its console fails its test."""
    yield chromium
    assert chromium.errors == []
