"""The examples of the guide run as they stand, and the page of the study is what its command prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.tabular_study import interval, spearman, tables

GUIDE = Path(__file__).parents[2] / "docs" / "guide"


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (GUIDE / "tables.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    exec("\n".join(blocks), {})
    assert {p.name for p in tmp_path.iterdir()} == {"row.html", "columns.png", "map.png"}
    assert "Feature permutation" in capsys.readouterr().out


def test_the_page_of_the_study_is_what_its_command_prints() -> None:
    page = (GUIDE / "tabular_study.md").read_text(encoding="utf-8")
    printed = tables(json.loads((GUIDE / "tabular_study.json").read_text(encoding="utf-8")))
    lines = [line for line in printed.splitlines() if line.startswith("|") or "seeds, test" in line]
    assert len(lines) > 150
    assert all(line in page for line in lines)


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
