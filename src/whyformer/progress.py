"""A progress bar for long work: on a terminal, after a moment, and never in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def tracker(progress: bool | None) -> Callable[[Sequence[Any], str], Any]:
    """``progress=None``: show on a terminal when there is more than one step; True, False: always, never."""
    if not (sys.stderr.isatty() if progress is None else progress):
        return lambda steps, label: steps
    return lambda steps, label: steps if len(steps) < 2 else _bar(steps, label)


def _bar(steps: Sequence[Any], label: str) -> Iterator[Any]:
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        yield from steps
        return
    yield from track(steps, description=label, console=Console(stderr=True), transient=True)
