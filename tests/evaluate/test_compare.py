"""compare: the table is what metrics say one by one; floor, ceiling, failures and costs are in it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau, spearmanr

import whyformer as wf
from tests.checks.quick import counted_calls
from tests.evaluate.games import sentiment as explainer
from tests.models import CASES
from tests.references.metrics import eraser
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.evaluate.candidate import Annotations, OneInput
from whyformer.evaluate.comparison import (
    RARE,
    ComparedMethod,
    Comparison,
    Leader,
    chance_of_lead,
    kendall,
    ranking_agreement,
    spearman,
    top_overlap,
)
from whyformer.evaluate.games import games_of
from whyformer.evaluate.metrics.f_fidelity import drawn_away
from whyformer.evidence import ENOUGH, interval, spread

TEXTS = ["a witty, seductive movie", "This is so boring", "I like it", "no movement, not much of anything"]
METHODS = ["raw_attention", "generic_attention", "input_x_gradient"]


@cache
def compared() -> wf.Comparison:
    return explainer().compare(TEXTS, method=[*METHODS, {"method": "raw_attention", "layers": "mean"}, "grad_cam"])


def test_values_equal_the_paper_literal_twin() -> None:
    model, tokenizer = explainer().model, explainer().processor
    found = compared().values["comprehensiveness"]["generic_attention"]
    kept = compared().values["sufficiency"]["generic_attention"]
    for number, text in enumerate(TEXTS):
        ids = tokenizer(text)["input_ids"]
        explanation = explainer().explain(text, method="generic_attention")

        @torch.no_grad()
        def predict(words: set[int], ids: Any = ids, target: int = explanation.target.index) -> float:
            inner = (t if i in words else tokenizer.mask_token_id for i, t in enumerate(ids[1:-1]))
            changed = [ids[0], *inner, ids[-1]]
            return float(model(input_ids=torch.tensor([changed])).logits.softmax(-1)[0, target])

        scores = explanation.scores[1:-1].tolist()
        bins = (0.01, 0.05, 0.1, 0.2, 0.5)
        assert found[number] == pytest.approx(eraser.comprehensiveness(predict, scores, bins), abs=1e-5)
        assert kept[number] == pytest.approx(eraser.sufficiency(predict, scores, bins), abs=1e-5)


def test_every_method_has_a_row_and_floor_and_ceiling_come_last() -> None:
    result = compared()
    assert {r.name for r in result.rows[:-2]} == {*METHODS, "raw_attention(layers=mean)"}
    assert [r.baseline for r in result.rows[-2:]] == ["floor", "reference"]
    assert "image" in result.failures["grad_cam"]
    assert all(math.isnan(r.rank) for r in result.rows[:-2]), "fewer than 30 inputs"
    for row in result.rows[:-2]:
        assert set(row.scores) == set(result.metrics)
        assert row.forwards == 1 and row.seconds > 0
        assert row.peak_bytes == (max(e.cost.peak_bytes for e in result.explanations[row.name]) or None)
        for name, score in row.scores.items():
            assert score.low <= score.mean <= score.high
            better = score.mean - result["random"].scores[name].mean
            assert score.gain == pytest.approx(better if result.higher_is_better[name] else -better)
    assert result["generic_attention"].backwards == 1
    assert result["greedy"].scores["aopc"].mean >= max(r.scores["aopc"].mean for r in result.rows[:-1])
    with pytest.warns(UserWarning, match="4 inputs: too few to rank"):
        assert result.best["method"] == result.rows[0].method
    with pytest.raises(UnknownName):
        result["shap"]
    frame = result.to_frame()
    assert list(frame["method"]) == [r.name for r in result.rows]
    assert {"aopc", "aopc_low", "aopc_high", "forwards", "seconds", "peak_bytes", "rank"} <= set(frame.columns)


def test_the_seed_changes_numbers_and_the_batch_size_does_not() -> None:
    first, second, other = (
        explainer().compare(TEXTS[:2], method=METHODS[:1], seed=seed, batch_size=3) for seed in (0, 0, 1)
    )
    assert first.values == second.values
    assert first.rows[-2].scores != other.rows[-2].scores
    for metric, by_method in first.values.items():
        for name in (METHODS[0], "random"):
            np.testing.assert_allclose(by_method[name], compared().values[metric][name][:2], atol=1e-5)


def test_a_broken_method_does_not_lose_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from whyformer import registry

    entry = wf.list_methods()["saliency"]

    def broken(run: Any) -> Any:
        raise RuntimeError("out of luck")

    monkeypatch.setitem(registry._METHODS, "saliency", replace(entry, run=broken))
    result = explainer().compare(TEXTS[:2], method=["saliency", "raw_attention"], metric=["aopc"])
    assert [r.name for r in result.rows] == ["raw_attention", "random", "greedy"]
    assert result.failures == {"saliency": "failed: RuntimeError: out of luck"}
    with pytest.raises(NotOffered, match="out of luck"):
        explainer().compare(TEXTS[:2], method=["saliency"])


def test_everything_is_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted_calls(monkeypatch)
    first = explainer().compare(TEXTS, method=METHODS, cache=tmp_path)
    calls.clear()
    again = explainer().compare(TEXTS, method=METHODS, cache=tmp_path)
    assert sum(calls) == len(TEXTS)  # what is predicted has to be known
    more = explainer().compare(TEXTS, method=[*METHODS, "attention_flow"], cache=tmp_path)
    assert first.variants > 0 and again.variants == 0
    assert again.values == first.values
    assert repr(again.rows[:-2]) == repr(first.rows[:-2])  # NaN differs from itself
    assert 0 < more.variants < first.variants


def test_rationales_by_token_word_and_character() -> None:
    text = "a seductive movie"
    units = explainer().explain(text).units
    words = [0, 1, 0]
    pieces = [int(w == 1) for w in units.word or () if w >= 0]
    results = [
        explainer().compare([text], method=METHODS, metric=["token_f1", "iou_f1", "auprc"], rationales=[given])
        for given in (words, pieces, [0, *pieces, 0], [(2, 11)])
    ]
    assert all(str(r.values) == str(results[0].values) for r in results)
    assert results[0].replacement is None and results[0].variants == 0
    assert {r.name for r in results[0].rows} == {*METHODS, "random"}
    with pytest.raises(BadInput, match="entries"):
        explainer().compare([text], method=METHODS, metric=["auprc"], rationales=[[1] * 17])
    with pytest.raises(BadInput, match="rationales"):
        explainer().compare([text], method=METHODS, metric=["auprc"])


def test_images_with_masks_and_boxes() -> None:
    case = CASES["vit"]
    model, inputs = case.build(None), case.inputs()
    size = wf.explain(model, inputs)[0].units.image_size
    assert size is not None
    mask = np.zeros(size)
    mask[: size[0] // 2] = 1
    metrics = ["pointing_game", "relevance_mass", "iou_otsu", "mean_average_precision", "completeness"]
    given = [mask, mask[::2, ::2]], [[(0, 0, 1, 0.5)], [(0, 0, size[1], size[0] // 2)]]
    found = [wf.compare(model, inputs, method=["grad_cam", "occlusion"], metric=metrics, masks=m) for m in given]
    assert str(found[0].values) == str(found[1].values)
    assert 0 < found[0]["grad_cam"].scores["relevance_mass"].mean < 1
    assert np.isnan(found[0]["grad_cam"].scores["completeness"].mean)
    assert found[0]["occlusion"].scores["completeness"].mean > 0


@pytest.mark.parametrize(("metric", "replace"), [("aopc", "resample"), ("saco", "mean")])
def test_rows_of_a_table(metric: str, replace: str) -> None:
    import pandas as pd

    from whyformer.demo.census import adult_rows

    model, table = wf.demo.load_adult()
    rows, how = adult_rows()[:2], {"method": ["generic_attention", "occlusion"], "metric": [metric]}
    first, frame = (
        wf.compare(model, given, processor=table, replace=replace, **how) for given in (rows, pd.DataFrame(rows))
    )
    assert str(first.values) == str(frame.values)
    assert np.isfinite(first.values[metric]["occlusion"]).all()
    if metric == "aopc":
        assert first["greedy"].scores["aopc"].mean >= first["occlusion"].scores["aopc"].mean - 1e-6


def test_draws_are_shared_by_methods_and_not_by_inputs() -> None:
    """Sets that all inputs of a size had in common would be an error that no number of inputs averages out."""
    texts = ["a dull film", "a good film"]
    with games_of(explainer(), texts) as games:
        first, again, other = (OneInput(games, number, Annotations(None, None), "logit") for number in (0, 0, 1))
        scores = np.arange(len(first.parts), dtype=float)
        drawn = [
            drawn_away(one.trial(scores, False), inside=True, alpha=1.0, beta=0.4) for one in (first, again, other)
        ]
    assert len(first.parts) == len(other.parts)
    assert (drawn[0] == drawn[1]).all() and (drawn[0] != drawn[2]).any()


def test_noise_moves_gradients_and_leaves_constants() -> None:
    metrics = {"max_sensitivity": {"samples": 3, "radius": 0.1}}
    result = explainer().compare(TEXTS[:2], method=["raw_attention", "input_x_gradient", "occlusion"], metric=metrics)
    assert all(0 < r.scores["max_sensitivity"].mean < 10 for r in result.rows)
    more = explainer().compare(TEXTS[:2], method=["raw_attention"], metric={"max_sensitivity": {"radius": 0.3}})
    assert more.rows[0].scores["max_sensitivity"].mean > result["raw_attention"].scores["max_sensitivity"].mean


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"method": ["rollout"]}, "attention_rollout"),
        ({"method": [{"method": "raw_attention", "layer": 1}]}, "layers"),
        ({"method": [{"layers": 1}]}, "has no method"),
        ({"method": ["saliency", "saliency"]}, "twice"),
        ({"metric": ["fidelity"]}, "infidelity"),
        ({"metric": {"aopc": {"steps": 3}}}, "fractions"),
        ({"metric": []}, "metric is empty"),
        ({"replace": "zap"}, "mask"),
        ({"rationales": [[1]]}, "one per input"),
    ],
)
def test_mistakes_are_named_before_long_work(how: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        explainer().compare(TEXTS, **{"method": ["raw_attention"], **how})


# Statistics


def test_agreement_equals_scipy() -> None:
    scores = np.random.default_rng(0).normal(size=(4, 12)).round(1)
    for a in range(4):
        for b in range(4):
            assert spearman(scores)[a, b] == pytest.approx(spearmanr(scores[a], scores[b]).statistic)
            assert kendall(scores)[a, b] == pytest.approx(kendalltau(scores[a], scores[b]).statistic)
    assert np.isnan(spearman(np.stack([scores[0], np.zeros(12)]))[0, 1])
    shared = top_overlap(np.array([[3, 2, 1, 0], [3, 2, 1, 0], [0, 1, 2, 3.0]]), 0.5)
    assert shared.tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


def test_a_comparison_keeps_its_explanations_until_it_is_saved(tmp_path: Path) -> None:
    result = compared()
    explanation = result.explanations["generic_attention"][1]
    again = explainer().explain(TEXTS[1], method="generic_attention")
    np.testing.assert_allclose(explanation.scores, again.scores, atol=1e-5)
    assert explanation.matrix is None and again.matrix is not None
    result.save(tmp_path / "comparison.json")
    with pytest.raises(NotOffered, match="saved without its explanations"):
        _ = wf.load(tmp_path / "comparison.json").explanations


# The verdict: what each metric puts first, whether that can be told, and how far rankings agree.


JUDGED = ["raw_attention", "generic_attention", "attn_lrp", "two_ended"]


@cache
def judged() -> Comparison:
    return explainer().compare(TEXTS, method=JUDGED, metric=["comprehensiveness", "sufficiency", "saco", "sparsity"])


def said(leaders: list[Leader], agreement: Any = (), methods: Any = ("a", "b", "c")) -> str:
    rows = tuple(ComparedMethod(name, name, {}, {}) for name in methods)
    facts: dict[str, Any] = {"agreement": {}, "agreeing": (), "curves": {}, "fractions": (), "values": {}}
    facts |= {"metrics": (), "higher_is_better": {}, "failures": {}, "replacement": None, "inputs": ENOUGH}
    return Comparison(rows, leaders=tuple(leaders), metric_agreement=[list(r) for r in agreement], **facts).verdict


def test_leaders_and_their_lead_are_those_of_the_values() -> None:
    result = judged()
    assert [leader.metric for leader in result.leaders or ()] == ["comprehensiveness", "sufficiency", "saco"], (
        "no sparsity"
    )
    best = result.rows[0].name
    for leader in result.leaders or ():
        sign = 1 if result.higher_is_better[leader.metric] else -1
        values = {name: sign * np.array(result.values[leader.metric][name]) for name in JUDGED}
        assert leader.name == max(values, key=lambda name, v=values: (v[name].mean(), name == best))
        expected = spread((values[leader.name] - values[best])[:, None])
        np.testing.assert_allclose([leader.gain, leader.low, leader.high], [float(x[0]) for x in expected])
    signed = [
        [np.mean(result.values[x.metric][name]) * (1 if result.higher_is_better[x.metric] else -1) for name in JUDGED]
        for x in result.leaders or ()
    ]
    expected = spearmanr(np.array(signed).T).statistic
    np.testing.assert_allclose(np.array(result.metric_agreement), expected, atol=1e-9)


def test_metrics_that_disagree_are_named_with_what_they_put_first() -> None:
    one, other = Leader("comprehensiveness", "a", 0, 0, 0), Leader("f_fidelity_plus", "a", 0, 0, 0)
    assert said([one, other]) == "comprehensiveness and f fidelity plus rank a first."
    told = said([one, other, Leader("saco", "b", 0.2, 0.1, 0.3)])
    assert told.startswith("Metrics disagree: comprehensiveness and f fidelity plus rank a first; saco ranks b first")
    assert ", ahead of a by +0.200 (95 % CI +0.100 to +0.300)." in told and told.endswith("By mean rank a comes first.")
    for low, high, gain in ((-0.1, 0.3, 0.2), (0.00001, 0.0003, 0.0002)):  # not significant, or too small to be shown
        assert "saco ranks b first, tied with a." in said([one, Leader("saco", "b", gain, low, high)])
    middle = said([Leader("aopc", "b", 0.1, 0.05, 0.2), Leader("saco", "b", 0.2, -0.1, 0.3)])
    assert middle.startswith("By mean rank a comes first; aopc and saco rank b first, ahead of a by +0.100")
    assert middle.endswith("(95 % CI +0.050 to +0.200) in aopc.")
    assert said([one], methods=["a"]) == "Only a was evaluated."
    single_input = said([one, Leader("saco", "b", 0.2, math.nan, math.nan)])
    assert (
        single_input
        == "Metrics disagree: comprehensiveness ranks a first; saco ranks b first. By mean rank a comes first."
    )
    assert said([]) == "", "results of older versions"
    assert replace(judged(), inputs=ENOUGH, leaders=None, metric_agreement=None).verdict == ""


def test_rank_correlation_comes_with_what_chance_would_give() -> None:
    leaders = [Leader(name, "a", 0, 0, 0) for name in ("aopc", "saco", "deletion")]
    matrix = [[1, 0.5, -0.4], [0.5, 1, math.nan], [-0.4, math.nan, 1]]
    few = said(leaders, matrix)
    assert "of the 3 methods: +0.05 (+1: same order, -1: opposite); lowest -0.40, between aopc and deletion." in few
    assert "With 3 methods, no correlation is significant (p > 0.05)." in few
    many = said(leaders, matrix, list("abcdefghij"))
    assert many.endswith("Correlations below 0.65 are not significant (p > 0.05).")
    assert "Spearman" not in said(leaders, matrix, ["a", "b"])
    generator = np.random.default_rng(0)
    drawn = [spearmanr(*generator.normal(size=(2, 8))).statistic for _ in range(500)]
    chance = float(said(leaders, matrix, list("abcdefgh")).split("below ")[1][:4])
    assert np.mean(np.abs(drawn) > chance) == pytest.approx(0.05, abs=0.02)


def test_agreement_of_rankings_leaves_out_methods_that_a_metric_does_not_know() -> None:
    goodness = np.array([[1.0, 2, 3, 9], [3, 2, 1, np.nan], [2, 4, 6, 0]])
    np.testing.assert_allclose(ranking_agreement(goodness), [[1, -1, 1], [-1, 1, -1], [1, -1, 1]])
    assert np.isnan(ranking_agreement(goodness[:, :1])).all()


def test_it_stands_in_every_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = judged()
    assert result.verdict.startswith("4 inputs: too few to rank methods (30 needed).")
    result.show()
    shown = " ".join(capsys.readouterr().out.split())
    page = result.save(tmp_path / "c.html").read_text(encoding="utf-8")
    figure = result.save(tmp_path / "c.svg").read_text(encoding="utf-8")
    for words in (result.verdict.split(".")[0], "Do the metrics agree?"):
        assert words in shown and words in page
    assert "Do the metrics agree?" in figure and "too few to rank" in figure
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
    alone, together, rounds = 0, 0, 100
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


@pytest.mark.parametrize(("inputs", "rows"), [(2, 1), (5, 1), (5, 3)])
def test_intervals_of_few_inputs_hold_the_mean_as_often_as_they_say(inputs: int, rows: int) -> None:
    """Of 200 samples, 95 % within what chance allows; also where an input has several rows that are alike."""
    generator, of = np.random.default_rng(0), np.repeat(np.arange(inputs), rows)
    samples = generator.standard_normal((200, inputs)).repeat(rows, 1) + 0.1 * generator.random((200, inputs * rows))
    inside = [[low <= 0.05 <= high for _, low, high in [spread(sample[:, None], of=of)]] for sample in samples]
    assert 0.91 <= np.mean(inside) <= 0.985
    if rows == 1:
        assert 0.91 <= np.mean([low <= 0.05 <= high for low, high in map(interval, samples[:, :, None])]) <= 0.985
