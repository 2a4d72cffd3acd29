"""How far a job is: rows per second, what is left, errors so far. One line on a terminal, or JSON for logs."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

EVERY = {"line": 0.1, "json": 1.0}  # seconds between two words


class Progress:
    """Told of every part that is done; says so at most every so often, and at the end."""

    def __init__(self, shown: bool | str | None, size: int | None, done: int = 0, errors: int = 0) -> None:
        self.kind = "json" if shown == "json" else "line" if _wanted(shown) else ""
        self.size, self.before, self.rows, self.errors = size, done, done, errors
        self.started, self.last = time.monotonic(), -1e9

    def add(self, rows: int, errors: int) -> None:
        """A part is done."""
        self.rows, self.errors = self.rows + rows, self.errors + errors
        if self.kind and time.monotonic() - self.last >= EVERY[self.kind]:
            self.say("part")

    def facts(self) -> dict[str, Any]:
        """rows, of how many, rows per second since this run began, seconds that are left, errors."""
        seconds = time.monotonic() - self.started
        rate = (self.rows - self.before) / seconds if seconds > 0 else 0.0
        left = None if self.size is None or not rate else max(0.0, (self.size - self.rows) / rate)
        return {
            "rows": self.rows,
            "of": self.size,
            "rows_per_second": round(rate, 2),
            "seconds_left": None if left is None else round(left, 1),
            "errors": self.errors,
        }

    def say(self, event: str) -> None:
        self.last = time.monotonic()
        facts = self.facts()
        if self.kind == "json":
            sys.stderr.write(json.dumps({"event": event, **facts}) + "\n")
        elif self.kind == "line":
            sys.stderr.write(f"\r\033[K{_line(facts)}" + ("\n" if event == "done" else ""))
        sys.stderr.flush()


def _wanted(shown: bool | str | None) -> bool:
    return sys.stderr.isatty() if shown is None else bool(shown)


def _line(facts: dict[str, Any]) -> str:
    of = f" of {facts['of']:,}" if facts["of"] is not None else ""
    words = [f"{facts['rows']:,}{of} rows", f"{facts['rows_per_second']:,.1f} rows/s"]
    if facts["seconds_left"] is not None:
        words.append(f"{_clock(facts['seconds_left'])} left")
    words.append(f"{facts['errors']:,} errors" if facts["errors"] != 1 else "1 error")
    return " · ".join(words)


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
