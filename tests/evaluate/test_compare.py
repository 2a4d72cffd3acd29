"""compare: the table is what metrics say one by one; floor, ceiling, failures and costs are in it."""

from __future__ import annotations

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
from whyformer.evaluate.comparison import kendall, spearman, top_overlap
from whyformer.evaluate.games import games_of
from whyformer.evaluate.metrics.soft import drawn_away

TEXTS = ["a witty, seductive movie", "This is so boring", "I like it", "no movement, not much of anything"]
METHODS = ["raw_attention", "generic_attention", "input_x_gradient"]


@cache
def compared() -> wf.Comparison:
    return explainer().compare(TEXTS, methods=[*METHODS, {"method": "raw_attention", "layers": "mean"}, "grad_cam"])


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
    assert [r.baseline for r in result.rows[-2:]] == ["floor", "ceiling"]
    assert "image" in result.failures["grad_cam"]
    ranks = [r.rank for r in result.rows[:-2]]
    assert ranks == sorted(ranks) and ranks[0] == 1
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
    assert result.best["method"] == result.rows[0].method
    with pytest.raises(UnknownName):
        result["shap"]
    frame = result.to_frame()
    assert list(frame["method"]) == [r.name for r in result.rows]
    assert {"aopc", "aopc_low", "aopc_high", "forwards", "seconds", "peak_bytes", "rank"} <= set(frame.columns)


def test_the_seed_changes_numbers_and_the_batch_size_does_not() -> None:
    first, second, other = (
        explainer().compare(TEXTS[:2], methods=METHODS[:1], seed=seed, batch_size=3) for seed in (0, 0, 1)
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
    result = explainer().compare(TEXTS[:2], methods=["saliency", "raw_attention"], metrics=["aopc"])
    assert [r.name for r in result.rows] == ["raw_attention", "random", "greedy"]
    assert result.failures == {"saliency": "failed: RuntimeError: out of luck"}
    with pytest.raises(NotOffered, match="out of luck"):
        explainer().compare(TEXTS[:2], methods=["saliency"])


def test_everything_is_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted_calls(monkeypatch)
    first = explainer().compare(TEXTS, methods=METHODS, cache=tmp_path)
    calls.clear()
    again = explainer().compare(TEXTS, methods=METHODS, cache=tmp_path)
    assert sum(calls) == len(TEXTS)  # what is predicted has to be known
    more = explainer().compare(TEXTS, methods=[*METHODS, "attention_rollout"], cache=tmp_path)
    assert first.variants > 0 and again.variants == 0
    assert again.values == first.values
    assert again.rows[:-2] == first.rows[:-2]
    assert 0 < more.variants < first.variants


def test_rationales_by_token_word_and_character() -> None:
    text = "a seductive movie"
    units = explainer().explain(text).units
    words = [0, 1, 0]
    pieces = [int(w == 1) for w in units.word or () if w >= 0]
    results = [
        explainer().compare([text], methods=METHODS, metrics=["token_f1", "iou_f1", "auprc"], rationales=[given])
        for given in (words, pieces, [0, *pieces, 0], [(2, 11)])
    ]
    assert all(str(r.values) == str(results[0].values) for r in results)
    assert results[0].replacement is None and results[0].variants == 0
    assert {r.name for r in results[0].rows} == {*METHODS, "random"}
    with pytest.raises(BadInput, match="entries"):
        explainer().compare([text], methods=METHODS, metrics=["auprc"], rationales=[[1] * 17])
    with pytest.raises(BadInput, match="rationales"):
        explainer().compare([text], methods=METHODS, metrics=["auprc"])


def test_images_with_masks_and_boxes() -> None:
    case = CASES["vit"]
    model, inputs = case.build(None), case.inputs()
    size = wf.explain(model, inputs)[0].units.image_size
    assert size is not None
    mask = np.zeros(size)
    mask[: size[0] // 2] = 1
    metrics = ["pointing_game", "relevance_mass", "iou_otsu", "mean_average_precision", "completeness"]
    given = [mask, mask[::2, ::2]], [[(0, 0, 1, 0.5)], [(0, 0, size[1], size[0] // 2)]]
    found = [wf.compare(model, inputs, methods=["grad_cam", "occlusion"], metrics=metrics, masks=m) for m in given]
    assert str(found[0].values) == str(found[1].values)
    assert 0 < found[0]["grad_cam"].scores["relevance_mass"].mean < 1
    assert np.isnan(found[0]["grad_cam"].scores["completeness"].mean)
    assert found[0]["occlusion"].scores["completeness"].mean > 0


@pytest.mark.parametrize(("metric", "replace"), [("aopc", "resample"), ("soft_nc", "mean")])
def test_rows_of_a_table(metric: str, replace: str) -> None:
    import pandas as pd

    from whyformer.demo.census import adult_rows

    model, table = wf.demo.load_adult()
    rows, how = adult_rows()[:2], {"methods": ["generic_attention", "occlusion"], "metrics": [metric]}
    first, frame = (
        wf.compare(model, given, processor=table, replace=replace, **how) for given in (rows, pd.DataFrame(rows))
    )
    assert str(first.values) == str(frame.values)  # of soft_nc, greedy has none: NaN
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
    result = explainer().compare(TEXTS[:2], methods=["raw_attention", "input_x_gradient", "occlusion"], metrics=metrics)
    assert all(0 < r.scores["max_sensitivity"].mean < 10 for r in result.rows)
    more = explainer().compare(TEXTS[:2], methods=["raw_attention"], metrics={"max_sensitivity": {"radius": 0.3}})
    assert more.rows[0].scores["max_sensitivity"].mean > result["raw_attention"].scores["max_sensitivity"].mean


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"methods": ["rollout"]}, "attention_rollout"),
        ({"methods": [{"method": "raw_attention", "layer": 1}]}, "layers"),
        ({"methods": [{"layers": 1}]}, "names no method"),
        ({"methods": ["saliency", "saliency"]}, "twice"),
        ({"metrics": ["fidelity"]}, "infidelity"),
        ({"metrics": {"aopc": {"steps": 3}}}, "fractions"),
        ({"metrics": []}, "no metric"),
        ({"replace": "zap"}, "mask"),
        ({"rationales": [[1]]}, "one per input"),
    ],
)
def test_mistakes_are_named_before_long_work(how: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        explainer().compare(TEXTS, **{"methods": ["raw_attention"], **how})


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
