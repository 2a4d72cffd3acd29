"""The page of the study of tables is what its command prints."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from bench import tabular_data, tabular_study
from bench.tabular_study import interval, spearman, tables

GUIDE = Path(__file__).parents[2] / "docs" / "guide"


def test_the_page_of_the_study_is_what_its_command_prints() -> None:
    page = (GUIDE / "tabular_study.md").read_text(encoding="utf-8")
    printed = tables(json.loads((GUIDE / "tabular_study.json").read_text(encoding="utf-8")))
    lines = [line for line in printed.splitlines() if line.startswith("|") or "seeds, test" in line]
    assert len(lines) > 150
    assert all(line in page for line in lines)


def test_the_small_run_with_shap_is_what_its_command_prints() -> None:
    page = (GUIDE / "tabular_study.md").read_text(encoding="utf-8").split("## With SHAP, in small")[1]
    results = json.loads((GUIDE / "tabular_study_shap.json").read_text(encoding="utf-8"))
    lines = [line for line in tables(results).splitlines() if line.startswith("|") or "seeds, test" in line]
    assert all(line in page for line in lines)
    assert [len(r["readings"]) for r in results] == [17] * 3
    assert f"{sum(r['seconds'] for r in results):.0f} s in all" in page


def test_shap_runs_along_and_is_left_out_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{i},{i % 7},{'ab'[i % 2]},{'xyz'[i % 3]},{3 * (i % 7) + i % 2}" for i in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["first,second,letter,other,price", *rows]))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    monkeypatch.setitem(tabular_data.FILES, "california", ("t.csv.gz", "price"))
    monkeypatch.setitem(tabular_data.NUMBERS, "california", ("first", "second"))
    options = tabular_study.parsed(
        ["--data", tmp_path, "--explained", 3, "--shuffled", 8, "--evaluations", 16, "--device", "cpu", "--steps", 2]
    )
    found = tabular_study.study("california", "FT-Transformer", 0, options)
    assert set(found["readings"]) == {*tabular_study.READINGS, "SHAP", "random", "integrated gradients"}
    assert set(found["readings"]["SHAP"]) == set(tabular_study.AGAINST)
    monkeypatch.setattr(tabular_study, "has_shap", lambda: False)
    assert "SHAP" not in tabular_study.study("california", "FT-Transformer", 0, options)["readings"]
    empty = ["tabular_study", "--data", tmp_path, "--seeds", 0, "--processes", 1]
    monkeypatch.setattr(sys, "argv", [str(part) for part in empty])
    tabular_study.main()
    assert "SHAP is left out" in capsys.readouterr().out


def test_rank_correlation_and_intervals() -> None:
    import numpy as np
    from scipy import stats

    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(4, 9)), rng.integers(0, 4, size=(4, 9)).astype(float)
    expected = [stats.spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(spearman(a, b), expected, atol=1e-12)
    assert np.isnan(spearman(np.ones((1, 5)), rng.normal(size=(1, 5)))).all()
    values = [0.2, 0.4, 0.5, 0.1]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    mean, half = interval(values)
    assert (mean - half, mean + half) == pytest.approx((low, high))
