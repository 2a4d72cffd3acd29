"""recommend: every candidate is the method it says it is; what wins is chosen on one half and tested on the other."""

from __future__ import annotations

import json
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.evaluate.games import TEXTS
from tests.evaluate.games import sentiment as explainer
from tests.models import CASES
from tests.references.metrics import optimus
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.evaluate.candidate import wanted
from whyformer.evaluate.candidate_pool import CLASSES, SPACES, candidates_of, scores_of_each
from whyformer.evaluate.games import games_of
from whyformer.evaluate.recommend import EFFORT, within_effort
from whyformer.evaluate.recommendation import ANY


@cache
def chosen(scope: str = "dataset") -> wf.Recommendation:
    return explainer().recommend(TEXTS, methods=["occlusion", "input_x_gradient", "alti", "grad_cam"], scope=scope)


# Candidates


def test_a_model_of_12_by_12_has_728_candidates() -> None:
    assert len(candidates_of(("attention",), 12, 12)) == 728
    assert len(candidates_of(("attention",), 6, 12)) == 416  # DistilBERT
    assert len(candidates_of(SPACES, 12, 12)) == 2 * 728 + 3 * 12
    names = [c.name for c in candidates_of(SPACES, 12, 12)]
    assert len(set(names)) == len(names)
    found = {c.method: c.cost_class for c in candidates_of(SPACES, 2, 2)}
    assert found["raw_attention"] == found["attention_rollout"] == CLASSES[0]
    assert found["attention_x_gradient"] == found["generic_attention"] == CLASSES[1]
    assert {c.cost_class for c in chosen().choices} == {ANY, *CLASSES[:2]}


@pytest.mark.parametrize("name", ["gpt2", "rtdl_ft_transformer"])
def test_every_candidate_is_the_method_it_names(name: str) -> None:
    case = CASES[name]
    model, inputs = case.build(None), case.inputs()
    explainer = wf.Explainer(model)
    with games_of(explainer, inputs, target=1, perturb=False) as games:
        candidates, scores = scores_of_each(games.runs, SPACES)
    if name == "gpt2":  # the last layer of the other asks for one row: columns of it are left out
        assert [c.name for c in candidates] == [c.name for c in candidates_of(SPACES, case.sites, 4)]
    generator = np.random.default_rng(0)
    # All rollouts, and some of each kind of attention.
    picked = [m for m, c in enumerate(candidates) if "start_layer" in c.options]
    picked += generator.choice(len(candidates), size=10, replace=False).tolist()
    for m in picked:
        how = {"method": candidates[m].method, **candidates[m].options}
        for row, explanation in enumerate(explainer.explain(inputs, target=1, **how)):
            scale = max(1.0, float(np.abs(explanation.scores).max()))
            np.testing.assert_allclose(scores[row][m] / scale, explanation.scores / scale, atol=1e-5)


# The choice


def test_the_choice_is_the_best_by_the_twin() -> None:
    """Everything again by hand: drops from the model itself, RFT from the twin, the mean over the half that chooses."""
    half = sorted(np.random.default_rng(0).permutation(len(TEXTS)).tolist()[: len(TEXTS) // 2])
    model, tokenizer = explainer().model, explainer().processor

    @cache
    @torch.no_grad()
    def drops_of(text: str, target: int) -> list[float]:
        ids = tokenizer(text)["input_ids"]

        def predict(tokens: list[int]) -> float:
            return float(model(input_ids=torch.tensor([tokens])).logits.softmax(-1)[0, target])

        masked = ([*ids[:p], tokenizer.mask_token_id, *ids[p + 1 :]] for p in range(1, len(ids) - 1))
        whole = predict(ids)
        return [whole - predict(tokens) for tokens in masked]

    best: dict[str, float] = {}
    for layers, heads, read in product(("mean", 0, 3), ("mean", 2), ("row", "column_max")):
        how = {"method": "raw_attention", "layers": layers, "heads": heads, "read": read}
        values = []
        for explanation, i in zip(explainer().explain([TEXTS[i] for i in half], **how), half, strict=True):
            drops = drops_of(TEXTS[i], explanation.target.index)
            values.append(optimus.ranked_truthfulness(explanation.scores[1:-1].tolist(), drops))
        best[f"raw_attention(layers={layers}, heads={heads}, read={read})"] = float(np.mean(values))
    result = explainer().recommend(TEXTS, methods=[], spaces=["attention"], value="probability")
    assert result.candidates == 6 * 5 * 4
    assert result.chosen_on == result.reported_on == 4
    assert result.choices[0].truthfulness >= max(best.values()) - 1e-5
    listed = dict(result.leaders)
    for name in set(best) & set(listed):
        assert listed[name] == pytest.approx(best[name], abs=1e-5)
    grid = np.array(result.grid)
    assert grid.shape == (6, 5)
    assert grid.max() == pytest.approx(result.choices[0].truthfulness)


def test_best_can_be_explained_with() -> None:
    best = chosen().best
    explanation = wf.explain(explainer().model, TEXTS[0], processor=explainer().processor, **best)
    assert explanation.method == best["method"]
    cheap = explainer().explain(TEXTS[0], **chosen().chosen("one forward"))
    assert (cheap.cost.forwards, cheap.cost.backwards) == (1, 0)
    with pytest.raises(UnknownName, match="one forward"):
        chosen().chosen("cheap")
    per_label = chosen("label").best
    assert set(per_label) <= {"negative", "positive"}
    assert all("method" in options for options in per_label.values())
    per_instance = chosen("instance").best
    assert len(per_instance) == len(TEXTS)
    explainer().explain(TEXTS[1], **per_instance[1])


def test_what_nobody_named_is_bounded_and_what_was_left_out_is_named() -> None:
    case = CASES["bert"]
    model = case.build(None)
    ids = torch.randint(5, 90, (4, 10), generator=torch.Generator().manual_seed(0))
    how: dict[str, Any] = {"replace": 3, "spaces": [], "report": False, "progress": False}
    result = wf.recommend(model, {"input_ids": ids}, effort=20, **how)
    left_out = {name for name, reason in result.excluded.items() if reason.startswith("left out")}
    assert {"shap", "integrated_gradients", "smooth_grad"} <= left_out
    assert not left_out & {"raw_attention", "generic_attention", "attention_rollout"}
    assert "effort=20" in result.excluded["shap"] and "10 units" in result.excluded["shap"]
    assert result.reported_on == 0 and "not tested" in result.verdict
    named = wf.recommend(model, {"input_ids": ids}, effort=1, methods=["smooth_grad"], **how)
    assert named.candidates == 1 and not named.excluded, "what was named is run"


def test_the_effort_pays_for_short_inputs_and_is_checked() -> None:
    def names(units: int, effort: int | None) -> set[str]:
        return {entry.name for entry in within_effort(wanted(None), units, effort)[0]}

    everything = {entry.name for entry in wanted(None)}
    assert names(60, EFFORT) == names(5000, None) == everything
    assert {"attention_flow", "occlusion"} <= everything - names(5000, EFFORT)


def test_leave_one_out_is_excluded_and_shown_beside() -> None:
    result = chosen()
    assert "by construction" in result.excluded["occlusion"]
    assert "image" in result.excluded["grad_cam"]
    assert all(c.method != "occlusion" for c in result.choices)
    assert np.isfinite(result.within("occlusion").mean)
    for name in ("random", "greedy", "last-layer attention", "mean attention"):
        assert np.isfinite(result.within(name).mean)
    assert result.within("greedy").mean >= result.within(ANY).mean
    with pytest.raises(UnknownName, match="random"):
        result.within("cheap")


def test_reported_aopc_is_that_of_compare_on_the_other_half() -> None:
    result = chosen()
    half = sorted(np.random.default_rng(0).permutation(len(TEXTS)).tolist()[4:])
    texts = [TEXTS[i] for i in half]
    compared = explainer().compare(texts, methods=["raw_attention", result.best], metrics=["aopc"])
    assert result.within("last-layer attention").mean == pytest.approx(
        compared["raw_attention"].scores["aopc"].mean, abs=1e-5
    )
    row = next(r for r in compared.rows if r.options == {k: v for k, v in result.best.items() if k != "method"})
    assert result.within(ANY).mean == pytest.approx(row.scores["aopc"].mean, abs=1e-5)


def test_it_is_said_plainly_when_nothing_beats_random() -> None:
    result = explainer().recommend(TEXTS, methods=["random"], spaces=[])
    assert not result.within(ANY).beats_random
    assert result.verdict.startswith("Nothing beats random here")
    better = explainer().recommend(TEXTS, methods=["attn_lrp"], spaces=[], scope="instance")
    assert better.within(ANY).beats_random and "beats random scores" in better.verdict
    alone = explainer().recommend(TEXTS[:1], methods=["attn_lrp"], spaces=[], scope="instance")
    assert "One input says nothing" in alone.verdict


def test_the_seed_splits_and_the_batch_size_changes_nothing() -> None:
    how: dict[str, Any] = {"methods": [], "spaces": ["rollout"]}
    first, second = explainer().recommend(TEXTS, **how), explainer().recommend(TEXTS, **how, batch_size=3)
    assert [a.name for a in first.outcomes] == [b.name for b in second.outcomes]
    assert [a.mean for a in first.outcomes] == pytest.approx([b.mean for b in second.outcomes], abs=1e-5)
    assert explainer().recommend(TEXTS, **how, seed=1).leaders != first.leaders


def test_the_cache_serves_recommend_and_compare(tmp_path: Path) -> None:
    how: dict[str, Any] = {"methods": [], "spaces": ["attention"], "cache": tmp_path}
    first, again = explainer().recommend(TEXTS, **how), explainer().recommend(TEXTS, **how)
    assert first.variants > 0 and again.variants == 0
    assert json.dumps(first.to_dict() | {"variants": 0}) == json.dumps(again.to_dict())
    metrics = ["ranked_truthfulness"]
    here, there = (
        explainer().compare(TEXTS, methods=["saliency"], metrics=metrics, cache=folder) for folder in (tmp_path, None)
    )
    assert here.variants < there.variants
    for name in ("saliency", "random"):
        found, again_found = (c.values["ranked_truthfulness"][name] for c in (here, there))
        np.testing.assert_allclose(found, again_found, atol=1e-6)


def test_several_streams_have_no_aggregations() -> None:
    case = CASES["clip"]
    result = wf.recommend(case.build(None), case.inputs(), scope="instance", methods=["generic_attention", "occlusion"])
    assert result.candidates >= 1 and "attention aggregations" in result.excluded


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"scope": "batch"}, "dataset"),
        ({"spaces": [], "methods": []}, "nothing to choose"),
        ({"inputs": TEXTS[:3]}, "at least 4"),
        ({"methods": ["attnlrp"]}, "attn_lrp"),
        ({"methods": ["grad_cam"], "spaces": []}, "none of the candidates can explain this model: grad_cam"),
    ],
)
def test_mistakes_are_named(how: dict[str, Any], says: str) -> None:
    with pytest.raises((BadInput, NotOffered), match=says):
        explainer().recommend(how.pop("inputs", TEXTS), **{"methods": [], **how})
