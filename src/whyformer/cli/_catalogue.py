"""What there is in a registry, as ``whyformer methods`` and ``whyformer metrics`` print it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from whyformer.cli._output import print_json

if TYPE_CHECKING:
    from whyformer.registry import Method, Metric

Entry = TypeVar("Entry", "Method", "Metric")


def listed(
    entries: Sequence[Entry],
    single: bool,
    json: bool,
    *,
    plain: Callable[[Entry], dict[str, Any]],
    facts: Callable[[Entry], list[str]],
    table: Callable[[Sequence[Entry]], None],
) -> None:
    """All entries as JSON, a single one on a sheet of its own, or several in a table."""
    if json:
        print_json([plain(e) for e in entries])
    elif single:
        _sheet(entries[0], facts(entries[0]))
    else:
        table(entries)


def needs_of(entry: Method | Metric) -> str:
    return ", ".join(sorted(entry.needs)).replace("_", " ") or "nothing"


def _sheet(entry: Method | Metric, facts: list[str]) -> None:
    """Its docstring, free to wrap at the terminal's width, then the facts and the options."""
    from rich.console import Group
    from rich.text import Text

    from whyformer.views.terminal.page import put

    paragraphs = (inspect.getdoc(entry.run) or "").split("\n\n")
    options = [f"  {k}={v!r}" for k, v in entry.defaults.items()] or ["  (none)"]
    put(
        Group(
            Text(entry.name, style="bold"),
            *(Text(" ".join(part.split()).replace("``", "") + "\n") for part in paragraphs),
            *(Text(line) for line in [*facts, "options", *options]),
        )
    )
