"""Another thread, beside which what a loan promises has to hold as well."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def beside_another_thread() -> Iterator[None]:
    """Inside ``with``: a second thread waits, so that torch's random numbers may be somebody else's."""
    done = threading.Event()
    waiting = threading.Thread(target=done.wait)
    waiting.start()
    try:
        yield
    finally:
        done.set()
        waiting.join()
