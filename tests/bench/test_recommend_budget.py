"""The held-out claim of recommend within a budget, on the shipped models and few methods."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.recommend_budget import RULES, arguments, main, rows_of, subject


def test_the_choice_is_not_behind_the_best_in_hindsight() -> None:
    methods = ["attn_lrp", "value_norms", "two_ended"]
    how = ["--kinds", "text", "--budgets", "3", "150", "--inputs", "4", "--halves", "2", "3", "--splits", "2"]
    rows = list(rows_of(arguments(how), methods, spaces=[], guided=False))
    assert [(row.budget, row.half, len(row.splits)) for row, _ in rows] == [("3", 2, 2), ("150", 2, 2)]
    (_, cheap), (_, dear) = rows
    assert "two_ended" in cheap.over and {c.name for c in dear.pool.candidates} == set(methods)
    for row, _ in rows:
        assert not row.behind, row.line()
        assert all(split.lead[0] >= 0 for split in row.splits), "the choice itself stands in hindsight"


def test_a_split_is_what_recommend_does() -> None:
    """The same halves: the same choice, the same best in hindsight, the same lead."""
    how = arguments(["--kinds", "table", "--budgets", "30", "--inputs", "8", "--halves", "4", "--splits", "1"])
    methods = ["attn_lrp", "raw_attention", "saliency"]
    ((row, _),) = rows_of(how, methods, spaces=[], guided=False)
    order = np.random.default_rng([0, 4, 0]).permutation(8)
    halves = np.random.default_rng(0).permutation(8)  # how recommend parts its inputs
    explainer, made = subject("table", how)
    placed: list[object] = [None] * 8
    for place, number in zip(halves, order, strict=True):
        placed[place] = made[number]
    budgeted = explainer.recommend(placed, budget=30, methods=methods, spaces=[]).budgeted
    split = row.splits[0]
    assert (split.chosen, split.hindsight) == (budgeted.choice.name, budgeted.hindsight.name)
    assert split.lead[0] == pytest.approx(budgeted.hindsight.over_choice[0], abs=1e-5)


def test_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    how = ["--kinds", "table", "--inputs", "4", "--halves", "2", "--splits", "1", "--budgets", "3"]
    assert main([*how, "--methods", "attn_lrp", "value_norms", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "| table | 3 | 2 |" in said and "in 0 of 1 splits" in said
    stored = json.loads((tmp_path / "table_3.json").read_text())
    assert np.shape(stored["values"]) == (4, len(stored["names"]), 2)
    assert main(["--saved", str(tmp_path), "--halves", "2", "--splits", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(RULES) and all("of 3 |" in line for line in lines[2:])


def test_guides_are_compared_at_one_price(capsys: pytest.CaptureFixture[str]) -> None:
    guides = ["attn_lrp+alone", "attn_lrp"]
    assert main(["--guides", *guides, "--kinds", "table", "--budgets", "9", "20", "--inputs", "3"]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[3:]]
    assert [row[1] for row in rows] == ["20", "20"], "nine forwards are too few"
    assert [row[2] for row in rows] == [
        f"shap(evaluations={n}, guide={g})" for n, g in zip((11, 15), guides, strict=True)
    ]
    assert all(float(row[3]) <= 20 for row in rows)
    ahead = float(rows[0][4]) - float(rows[1][4])
    assert rows[0][6] == "" and float(rows[1][6].split()[0]) == pytest.approx(ahead, abs=2e-4)


def test_rules_of_choice() -> None:
    noise_IM = 0.01 * np.random.default_rng(0).standard_normal((20, 3))

    def said(aopc_M: list[float], insertion_M: list[float]) -> list[int]:
        values_IMJ = np.stack([noise_IM + np.array(aopc_M), noise_IM + np.array(insertion_M)], 2)
        return [rule(values_IMJ) for rule in RULES.values()]

    assert said([0.5, 0.3, 0.0], [0.0, 0.1, 0.6]) == [0, 2, 0, 0], "far ahead by AOPC"
    assert said([0.001, 0.0, -0.5], [0.0, 0.3, 0.9])[1:3] == [2, 1], "level by AOPC, ahead by the other; one is behind"
