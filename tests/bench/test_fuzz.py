"""A short form of bench/fuzz.py: calls that make no sense end in an error of ours, and change nothing."""

from __future__ import annotations

from bench.fuzz import ended_calls


def test_nonsense_is_refused() -> None:
    reports = list(ended_calls(60, 0, None))
    assert len(reports) == 60
    assert [report for report in reports if report["outcome"] != "ours"] == []
