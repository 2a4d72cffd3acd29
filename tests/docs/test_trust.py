"""The guide's table of metrics is that of the registry."""

from __future__ import annotations

from pathlib import Path

import whyformer as wf

DOCS = Path(__file__).parents[2] / "docs"


def test_every_metric_is_in_the_table() -> None:
    text = (DOCS / "guide" / "trust.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in text for name in wf.list_metrics())
