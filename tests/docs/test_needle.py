"""The guide's page on needles shows the tables of the cases that lie beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

import docs
from bench.needle import noted
from bench.needle_report import report

REPORTS = Path(docs.__file__).parent / "reports"


def test_the_page_shows_the_tables_of_its_cases(capsys: pytest.CaptureFixture[str]) -> None:
    report(noted(REPORTS / "needle.jsonl"))
    page = (REPORTS / "needle.md").read_text(encoding="utf-8")
    printed = capsys.readouterr().out
    assert printed.count("\n\n") == 3
    for part in printed.strip().split("\n\n")[1:]:
        assert part in page
    assert printed.splitlines()[0] in page
