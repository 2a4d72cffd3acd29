"""A progress bar for long work: on a terminal, after a moment, and never in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from whyformer.symbols import as_symbols


def tracker(progress: bool | None) -> Callable[[Sequence[Any], str], Any]:
    """``progress=None``: show on a terminal when there is more than one step; True, False: always, never."""
    if not (sys.stderr.isatty() if progress is None else progress):
        return lambda steps, label: steps
    return lambda steps, label: steps if len(steps) < 2 else _bar(steps, label)


def _bar(steps: Sequence[Any], label: str) -> Iterator[Any]:
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import track
    except ImportError:
        yield from steps
        return
    description = escape(as_symbols(label))  # rich would read [brackets] as colours
    yield from track(steps, description=description, console=Console(stderr=True), transient=True)
