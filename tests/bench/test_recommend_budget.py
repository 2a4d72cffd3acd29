"""The held-out claim of recommend within a budget, on the shipped models and few methods."""

from __future__ import annotations

import pytest

from bench.recommend_budget import KINDS, main, rows_of


@pytest.mark.parametrize("kind", [*KINDS])
def test_the_choice_is_not_behind_the_best_in_hindsight(kind: str) -> None:
    methods = ["attn_lrp", "value_norms", "two_ended"]
    rows = list(rows_of([kind], ["3", "150"], inputs=4, splits=1, methods=methods, seed=0, spaces=[]))
    cheap, dear = (row.budgeted for row in rows)
    assert "two_ended" in cheap.over and "two_ended" not in dear.over
    assert {c.name for c in dear.contestants} == set(methods)
    for row in rows:
        assert not row.budgeted.behind, row.line()
        assert all(c.price <= float(row.budget) for c in row.budgeted.contestants)


def test_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    how = [
        "--kinds",
        "table",
        "--inputs",
        "4",
        "--splits",
        "1",
        "--budgets",
        "3",
        "--methods",
        "attn_lrp",
        "value_norms",
    ]
    assert main(how) == 0
    said = capsys.readouterr().out
    assert "| table | 3 | 0 |" in said and "of 1 cases" in said
