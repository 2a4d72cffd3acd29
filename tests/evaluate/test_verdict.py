"""The verdict of a comparison: what each metric puts first, whether that can be told, and how far rankings agree."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

import whyformer as wf
from tests.evaluate.games import sentiment
from whyformer.evaluate.comparison import ComparedMethod, Comparison, Leader, ranking_agreement
from whyformer.evidence import spread

TEXTS = ["a witty, seductive movie", "This is so boring", "I like it", "no movement, not much of anything"]
METHODS = ["raw_attention", "generic_attention", "attn_lrp", "two_ended"]


@cache
def compared() -> Comparison:
    return sentiment().compare(TEXTS, methods=METHODS, metrics=["comprehensiveness", "sufficiency", "saco", "sparsity"])


def said(leaders: list[Leader], agreement: Any = (), methods: Any = ("a", "b", "c")) -> str:
    rows = tuple(ComparedMethod(name, name, {}, {}) for name in methods)
    facts: dict[str, Any] = {"agreement": {}, "agreeing": (), "curves": {}, "fractions": (), "values": {}}
    facts |= {"metrics": (), "higher_is_better": {}, "failures": {}, "replacement": None}
    return Comparison(rows, leaders=tuple(leaders), metric_agreement=[list(r) for r in agreement], **facts).verdict


def test_leaders_and_their_lead_are_those_of_the_values() -> None:
    result = compared()
    assert [leader.metric for leader in result.leaders or ()] == ["comprehensiveness", "sufficiency", "saco"], (
        "no sparsity"
    )
    best = result.rows[0].name
    for leader in result.leaders or ():
        sign = 1 if result.higher_is_better[leader.metric] else -1
        values = {name: sign * np.array(result.values[leader.metric][name]) for name in METHODS}
        assert leader.name == max(values, key=lambda name, v=values: (v[name].mean(), name == best))
        expected = spread((values[leader.name] - values[best])[:, None])
        np.testing.assert_allclose([leader.gain, leader.low, leader.high], [float(x[0]) for x in expected])
    signed = [
        [np.mean(result.values[x.metric][name]) * (1 if result.higher_is_better[x.metric] else -1) for name in METHODS]
        for x in result.leaders or ()
    ]
    expected = spearmanr(np.array(signed).T).statistic
    np.testing.assert_allclose(np.array(result.metric_agreement), expected, atol=1e-9)


def test_metrics_that_disagree_are_named_with_what_they_put_first() -> None:
    one, other = Leader("comprehensiveness", "a", 0, 0, 0), Leader("pi_soft_nc", "a", 0, 0, 0)
    assert said([one, other]) == "comprehensiveness and pi soft nc put a first."
    told = said([one, other, Leader("saco", "b", 0.2, 0.1, 0.3)])
    assert told.startswith("Metrics disagree: comprehensiveness and pi soft nc put a first; saco puts b first")
    assert "(ahead of a: +0.200 (+0.100 to +0.300))" in told and told.endswith("By mean rank a comes first.")
    unsure = said([one, Leader("saco", "b", 0.2, -0.1, 0.3)])
    assert "saco puts b first (but cannot tell it from a)" in unsure
    middle = said([Leader("aopc", "b", 0.1, 0.05, 0.2), Leader("saco", "b", 0.2, -0.1, 0.3)])
    assert middle.startswith("By mean rank a comes first; aopc and saco put b first (ahead of a by aopc: +0.100")
    assert said([one], methods=["a"]) == "a was judged alone."
    single_input = said([one, Leader("saco", "b", 0.2, math.nan, math.nan)])
    assert (
        single_input
        == "Metrics disagree: comprehensiveness puts a first; saco puts b first. By mean rank a comes first."
    )
    assert said([]) == "", "results of older versions"
    assert replace(compared(), leaders=None, metric_agreement=None).verdict == ""


def test_rank_correlation_comes_with_what_chance_would_give() -> None:
    leaders = [Leader(name, "a", 0, 0, 0) for name in ("aopc", "saco", "deletion")]
    matrix = [[1, 0.5, -0.4], [0.5, 1, math.nan], [-0.4, math.nan, 1]]
    few = said(leaders, matrix)
    assert "alike by +0.05 on average, least of all aopc and deletion (-0.40), where +1 is the same order" in few
    assert "over 3 methods no correlation can be told from chance" in few
    assert "chance alone reaches ±0.65 in one pair of twenty" in said(leaders, matrix, list("abcdefghij"))
    assert "Spearman" not in said(leaders, matrix, ["a", "b"])
    generator = np.random.default_rng(0)
    drawn = [spearmanr(*generator.normal(size=(2, 8))).statistic for _ in range(2000)]
    chance = float(said(leaders, matrix, list("abcdefgh")).split("±")[1][:4])
    assert np.mean(np.abs(drawn) > chance) == pytest.approx(0.05, abs=0.02)


def test_agreement_of_rankings_leaves_out_methods_that_a_metric_does_not_know() -> None:
    goodness = np.array([[1.0, 2, 3, 9], [3, 2, 1, np.nan], [2, 4, 6, 0]])
    np.testing.assert_allclose(ranking_agreement(goodness), [[1, -1, 1], [-1, 1, -1], [1, -1, 1]])
    assert np.isnan(ranking_agreement(goodness[:, :1])).all()


def test_it_stands_in_every_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = compared()
    assert "first" in result.verdict and "no correlation can be told from chance" in result.verdict
    result.show()
    shown = " ".join(capsys.readouterr().out.split())
    page = result.save(tmp_path / "c.html").read_text(encoding="utf-8")
    figure = result.save(tmp_path / "c.svg").read_text(encoding="utf-8")
    for words in (result.verdict.split(".")[0], "Do the metrics agree?"):
        assert words in shown and words in page
    assert "Do the metrics agree?" in figure and "told from chance" in figure
    back = wf.load(result.save(tmp_path / "c.json"))
    assert back.verdict == result.verdict and back.leaders == result.leaders
