"""The page of in-context tables holds what its command prints."""

from __future__ import annotations

import json
from pathlib import Path

from bench.in_context import tables

GUIDE = Path(__file__).parents[2] / "docs" / "guide"


def test_the_page_is_what_the_command_prints() -> None:
    page = (GUIDE / "in_context_tables.md").read_text(encoding="utf-8")
    printed = tables(json.loads((GUIDE / "in_context.json").read_text(encoding="utf-8")))
    lines = [line for line in printed.splitlines() if line.startswith("|")]
    assert len(lines) > 15 and all(line in page for line in lines)
