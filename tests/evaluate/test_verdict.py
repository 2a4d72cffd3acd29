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
from whyformer.evaluate.comparison import RARE, ComparedMethod, Comparison, Leader, chance_of_lead, ranking_agreement
from whyformer.evidence import interval, spread

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


# Leads of the best in hindsight: chance by turned signs.


def test_chance_by_hand() -> None:
    """Three inputs, all ahead by one: of the eight ways to turn signs, only that of all three as they are leads so."""
    choice, ahead = np.zeros((3, 1)), np.ones((3, 1))
    assert chance_of_lead(np.hstack([choice, ahead]), 0, 0, range(3)) == 1 / 8
    # A second rival is ahead twice and behind once by as much: four of eight ways lead by a third or more, but only
    # one by as much as the first.
    other = np.array([[1.0], [1.0], [-1.0]])
    assert chance_of_lead(np.hstack([choice, ahead, other]), 0, 0, range(3)) == 2 / 8
    assert chance_of_lead(np.hstack([choice, -ahead]), 0, 0, range(3)) == 1
    assert chance_of_lead(np.hstack([choice, choice]), 0, 0, range(3)) == 1
    both = np.repeat(np.hstack([choice, ahead]), 2, axis=0)  # detections of one image turn together
    assert chance_of_lead(both, 0, 0, [0, 0, 1, 1, 2, 2]) == 1 / 8 and chance_of_lead(both, 0, 0, range(6)) == 1 / 64
    assert math.isnan(chance_of_lead(choice, 0, 0, range(3))) and math.isnan(chance_of_lead(ahead[:1], 0, 0, [0]))


def test_chance_is_kept_when_the_best_of_many_is_picked_in_hindsight() -> None:
    """Twenty methods that are all as good: their own limits exclude zero for the best far more often than they say."""
    generator = np.random.default_rng(0)
    alone, together, rounds = 0, 0, 200
    for number in range(rounds):
        values_IM = generator.standard_normal((12, 20))
        mean_M, low_M, _ = spread(values_IM - values_IM[:, [0]], number)
        alone += bool(low_M[np.argmax(mean_M)] > 0)
        together += chance_of_lead(values_IM, 0, number, range(12)) < RARE
    assert together / rounds < 0.06 < alone / rounds
    values_IM[:, 7] += 3
    assert chance_of_lead(values_IM, 0, 0, range(12)) < RARE, "a true lead is seen"


def test_limits_are_those_of_95_percent() -> None:
    """Of many samples, the mean and 1.96 standard errors on either side; all of a few percent is left to the draws."""
    samples = np.random.default_rng(0).standard_normal((400, 3)) * [1.0, 5.0, 0.1]
    width = 1.96 * samples.std(0, ddof=1) / np.sqrt(len(samples))
    for low, high in (interval(samples), spread(samples)[1:]):
        np.testing.assert_allclose((high - low) / 2, width, rtol=0.08)
        np.testing.assert_allclose((high + low) / 2, samples.mean(0), atol=0.2 * width.max())
    some = samples.copy()
    some[::2, 0], some[:, 1], some[:, 2] = np.nan, 5, np.nan
    mean, low, high = spread(some)
    assert high[0] - low[0] > 1.2 * 2 * width[0] and low[1] == high[1] == 5 and np.isnan(mean[2])
    assert np.isnan(spread(samples[:1])[1]).all()
