"""The page of the study of tables is what its command prints."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import tabular_data, tabular_models, tabular_study
from bench.ranks import STUDENT, interval, spearman
from bench.tabular_study import tables

REPORTS = Path(__file__).parents[2] / "docs" / "reports"


def test_the_page_of_the_study_is_what_its_command_prints() -> None:
    page = (REPORTS / "tabular_study.md").read_text(encoding="utf-8")
    printed = tables(json.loads((REPORTS / "tabular_study.json").read_text(encoding="utf-8")))
    lines = [line for line in printed.splitlines() if line.startswith("|") or "seeds, test" in line]
    assert len(lines) > 150
    assert all(line in page for line in lines)


def test_every_table_has_shap() -> None:
    results = json.loads((REPORTS / "tabular_study.json").read_text(encoding="utf-8"))
    judged = [r["readings"] for r in results if "readings" in r]
    assert len(judged) >= 39 and all(set(r["SHAP"]) == set(tabular_study.AGAINST) for r in judged)


@pytest.fixture
def small_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [f"{i},{i % 7},{'ab'[i % 2]},{'xyz'[i % 3]},{3 * (i % 7) + i % 2}" for i in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["first,second,letter,other,price", *rows]))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    monkeypatch.setitem(tabular_data.FILES, "california", ("t.csv.gz", "price"))
    monkeypatch.setitem(tabular_data.NUMBERS, "california", ("first", "second"))
    return tmp_path


def test_all_readings_run_with_shap_among_them(small_table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shap", None)  # its values are whyformer's own
    options = tabular_study.parsed(
        ["--data", small_table, "--explained", 3, "--shuffled", 8, "--evaluations", 16, "--device", "cpu", "--steps", 2]
    )
    result = tabular_study.study("california", "FT-Transformer", 0, options)
    assert set(result["readings"]) == {*tabular_study.READINGS, "SHAP", "random", "integrated gradients"}
    assert set(result["readings"]["SHAP"]) == set(tabular_study.AGAINST)


def test_shap_of_the_study_is_close_to_exact_values(small_table: Path) -> None:
    """Of few columns all sets are asked for; what is left is how far the regression leans on its prior."""
    options = tabular_study.parsed(["--data", small_table, "--device", "cpu"])
    data = tabular_data.load("california", small_table, 0)
    model = tabular_models.build("FT-Transformer", data).eval()
    part = {k: v[:3] for k, v in tabular_models.encoded(data, data.test, "cpu").items()}
    method, settings = tabular_study._shap(4, "FT-Transformer", options)["SHAP"]
    assert (method, settings["evaluations"]) == ("shap", 14)
    exact = settings | {"algorithm": "exact", "evaluations": 16}
    scores = [tabular_study._scores(model, data, part, list(data.table.columns), method, s) for s in (settings, exact)]
    np.testing.assert_allclose(*scores, atol=0.05 * np.abs(scores[1]).max())


def test_a_second_run_does_what_is_left(
    small_table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = small_table / "results.json"
    done = [
        {"data": "california", "model": "TabTransformer", "seed": seed, **rest}
        for seed, rest in enumerate([{"skipped": "one column"}, {"error": "it broke"}])
    ]
    out.write_text(json.dumps(done))
    command = ["tabular_study", "--data", small_table, "--datasets", "california", "--seeds", 2, "--processes", 1]
    command += ["--models", "TabTransformer", "FT-Transformer", "--out", out, "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", [str(part) for part in command])
    monkeypatch.setattr(tabular_study, "lacking", lambda model: ["a_package"] if model == "FT-Transformer" else [])
    tabular_study.main()
    printed = capsys.readouterr().out
    assert "FT-Transformer is left out: it needs a_package" in printed
    assert "1 jobs are in" in printed and "1 are left" in printed
    assert [(r["seed"], "skipped" in r) for r in json.loads(out.read_text())] == [(0, True), (1, True)]


def test_rank_correlation_and_intervals() -> None:
    from scipy import stats

    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(4, 9)), rng.integers(0, 4, size=(4, 9)).astype(float)
    expected = [stats.spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(spearman(a, b), expected, atol=1e-12)
    assert np.isnan(spearman(np.ones((1, 5)), rng.normal(size=(1, 5)))).all()
    values = [0.2, 0.4, 0.5, 0.1]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    mean, half = interval(values)
    assert (mean - half, mean + half) == pytest.approx((low, high), abs=1e-5)
    np.testing.assert_allclose(STUDENT, stats.t.ppf(0.975, np.arange(1, 31)), atol=1e-4)
