"""The bench of scale: hours per million, growth and extrapolation by known answers, and rows counted once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import whyformer as wf
from bench import scale


def test_hours_growth_and_what_is_on_paper() -> None:
    assert scale.hours_per_million(0.0036) == pytest.approx(1.0)
    assert scale.growth((8, 32, 128), (9.0, 2.0, 32.0)) == pytest.approx(2.0)  # of the two longest
    rows = (0, 10, 20, 30, 40)
    lines = [{"row": row, "cpu": 99.0 if row < 20 else 5 + row / 10, "megabytes": 300.0} for row in rows]
    assert scale.on_paper(lines, "cpu", 1000) == pytest.approx(105.0)  # what is not warm yet does not count
    assert scale.on_paper(lines, "megabytes") == pytest.approx(300.0)


def test_the_table_of_costs() -> None:
    found = [
        {"kind": "table", "method": "quick", "seconds": [0.0036, 0.0072, 0.0288]},
        {"kind": "table", "method": "slow", "seconds": [3.6]},
    ]
    lines = scale.cost_table(found, "core hours").splitlines()
    assert lines[0] == "| core hours per million: table | 8 columns | 32 columns | 128 columns | exponent |"
    assert lines[2:] == ["| quick | 1 | 2 | 8 | 1.00 |", "| slow | 1e+03 | – | – | – |"]


def test_costs_in_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method runs on the models and inputs of its kind; one that took too long is not tried on longer ones."""
    monkeypatch.setattr(scale, "LENGTHS", {"table": (3, 5)})
    monkeypatch.setattr(scale, "METHODS", scale.METHODS | {"shap": {"evaluations": 16}})
    assert [len(row["seconds"]) for row in scale.cost("cpu", ["table"], 1e9, 1)] == [2] * 5
    assert [len(row["seconds"]) for row in scale.cost("cpu", ["table"], 0.0, 1)] == [1] * 5


def test_rows_of_a_census_are_all_different() -> None:
    assert len({tuple(row.items()) for row in scale.census(100)}) == 100


def test_a_row_that_is_lost_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale.explain_rows(tmp_path, 24)
    assert scale.exactly_once(tmp_path, 24) == scale.exactly_once(tmp_path, 24)
    with pytest.raises(SystemExit, match="1 rows are lost, 0 are there twice"):
        scale.exactly_once(tmp_path, 25)
    parts: Any = wf.jobs.ExplainedDataset(tmp_path).parts
    monkeypatch.setattr(
        wf.jobs.ExplainedDataset, "parts", property(lambda _: parts * 2, lambda *_: None), raising=False
    )
    with pytest.raises(SystemExit, match="0 rows are lost, 24 are there twice"):
        scale.exactly_once(tmp_path, 24)


@pytest.mark.parametrize("kind", ["text", "picture"])
def test_inputs_have_the_length_that_is_said(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "PATCH", 2)
    monkeypatch.setattr(scale, "WIDTH", {"hidden_size": 24, "intermediate_size": 24, "num_hidden_layers": 1})
    explainer, inputs = scale.case_of(kind, 16, "cpu")
    (explanation,) = explainer.explain(inputs(1), method="generic_attention")
    count = len(explanation.scores) - (sum(explanation.units.special) if kind == "picture" else 0)
    assert count == 16
