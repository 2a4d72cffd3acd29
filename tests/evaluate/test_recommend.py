"""recommend: every candidate is the method it says it is; the winner is that of compare, tested on other inputs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
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
from whyformer.choices import BACKWARD, Budget, Rates, budget_of, price_of
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.evaluate.candidate import Candidate, wanted
from whyformer.evaluate.candidate_pool import (
    CLASSES,
    SPACES,
    affordable,
    candidates_of,
    cost_class_of,
    fitted,
    guided_shap,
    scores_of_each,
)
from whyformer.evaluate.games import games_of
from whyformer.evaluate.recommend import EFFORT, within_effort
from whyformer.evaluate.recommendation import ANY, Budgeted, CandidateOutcome
from whyformer.evidence import spread
from whyformer.explainer import CoreExplainer


@cache
def chosen(scope: str = "dataset") -> wf.Recommendation:
    return explainer().recommend(TEXTS, method=["occlusion", "input_x_gradient", "alti", "grad_cam"], scope=scope)


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
    assert {c.cost_class for c in chosen().choices} == {ANY, *CLASSES}


@pytest.mark.parametrize("name", ["gpt2", "rtdl_ft_transformer"])
def test_every_candidate_is_the_method_it_names(name: str) -> None:
    case = CASES[name]
    model, inputs = case.build(None), case.inputs()
    explainer = wf.Explainer(model)
    with games_of(explainer, inputs, target=1, scalar="centred", perturb=False) as games:
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


def test_the_leaders_are_the_best_by_the_twin() -> None:
    """Everything again by hand: drops from the model itself, RFT from the twin, the mean over all inputs."""
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
        for explanation, text in zip(explainer().explain(TEXTS, **how), TEXTS, strict=True):
            drops = drops_of(text, explanation.target.index)
            values.append(optimus.ranked_truthfulness(explanation.scores[1:-1].tolist(), drops))
        best[f"raw_attention(layers={layers}, heads={heads}, read={read})"] = float(np.mean(values))
    result = explainer().recommend(TEXTS, method=[], spaces=["attention"], value="probability")
    assert result.candidates == 6 * 5 * 4
    assert result.chosen_on == result.reported_on == len(TEXTS)
    listed = dict(result.leaders)
    assert result.choices[0].name in list(listed)[:3], "the first three by RFT are compared"
    assert result.leaders[0][1] >= max(best.values()) - 1e-5
    for name in set(best) & set(listed):
        assert listed[name] == pytest.approx(best[name], abs=1e-5)
    grid = np.array(result.grid)
    assert grid.shape == (6, 5)
    assert grid.max() == pytest.approx(result.leaders[0][1])


@pytest.mark.filterwarnings("ignore:.*too few to rank")
def test_best_can_be_explained_with() -> None:
    best = chosen().best
    explanation = wf.explain(explainer().model, TEXTS[0], processor=explainer().processor, **best)
    assert explanation.method == best["method"]
    cheap = explainer().explain(TEXTS[0], **chosen().chosen("one forward"))
    assert cheap.cost.forwards == 1 and cheap.cost.backwards < 0.5
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
    named = wf.recommend(model, {"input_ids": ids}, effort=1, method=["smooth_grad"], **how)
    assert named.candidates == 1 and not named.excluded, "what was named is run"


def test_the_effort_pays_for_short_inputs_and_is_checked() -> None:
    def names(units: int, effort: int | None) -> set[str]:
        return {entry.name for entry in within_effort(wanted(None), units, effort)[0]}

    everything = {entry.name for entry in wanted(None)}
    assert names(60, EFFORT) == names(5000, None) == everything
    assert {"attention_flow", "occlusion"} <= everything - names(5000, EFFORT)


def test_what_outcomes_are_beside() -> None:
    result = chosen()
    assert "image" in result.excluded["grad_cam"]
    for name in ("random", "greedy", "last-layer attention", "mean attention"):
        assert np.isfinite(result.within(name).mean)
    assert result.within("greedy").mean >= result.within(ANY).mean
    with pytest.raises(UnknownName, match="random"):
        result.within("cheap")


@pytest.mark.filterwarnings("ignore:.*too few to rank")
def test_the_choice_is_that_of_compare_and_each_half_is_tested_by_that_of_the_other() -> None:
    methods = ["occlusion", "input_x_gradient", "alti", "raw_attention", "saliency"]
    result = explainer().recommend(TEXTS, method=methods, spaces=[])
    whole = explainer().compare(TEXTS, method=methods)
    assert result.best == whole.best
    order = np.random.default_rng(0).permutation(len(TEXTS)).tolist()
    halves = sorted(order[:4]), sorted(order[4:])
    expected = {}
    for choosing, testing in (halves, halves[::-1]):
        best = explainer().compare([TEXTS[i] for i in choosing], method=methods).rows[0].name
        expected |= {i: whole.values["aopc"][best][i] for i in testing}
    assert result.within(ANY).mean == pytest.approx(np.mean(list(expected.values())), abs=1e-5)
    attention = whole["raw_attention"].scores["aopc"].mean
    assert result.within("last-layer attention").mean == pytest.approx(attention, abs=1e-5)


def test_it_is_said_plainly_when_nothing_beats_random() -> None:
    result = explainer().recommend(TEXTS, method=["random"], spaces=[])
    assert not result.within(ANY).beats_random
    assert "too few to rank" in result.verdict
    enough = dataclasses.replace(result, chosen_on=30, reported_on=30)
    assert enough.verdict.startswith("The choice does not beat random scores")
    with pytest.warns(UserWarning, match="The choice does not beat random scores"):
        _ = enough.best
    better = explainer().recommend(TEXTS, method=["attn_lrp"], spaces=[], scope="instance")
    assert better.within(ANY).beats_random
    assert "beats random scores" in dataclasses.replace(better, chosen_on=40).verdict
    alone = explainer().recommend(TEXTS[:1], method=["attn_lrp"], spaces=[], scope="instance")
    assert "1 input: too few to rank" in alone.verdict and "nan" not in alone.verdict


def test_the_seed_splits_and_the_batch_size_changes_nothing() -> None:
    how: dict[str, Any] = {"method": [], "spaces": ["rollout"]}
    first, second = explainer().recommend(TEXTS, **how), explainer().recommend(TEXTS, **how, batch_size=3)
    assert [a.name for a in first.outcomes] == [b.name for b in second.outcomes]
    assert [a.mean for a in first.outcomes] == pytest.approx([b.mean for b in second.outcomes], abs=1e-5)
    other = explainer().recommend(TEXTS, **how, seed=1)
    assert other.leaders == first.leaders and other.within("random").mean != first.within("random").mean


def test_the_cache_serves_recommend_and_compare(tmp_path: Path) -> None:
    how: dict[str, Any] = {"method": [], "spaces": ["attention"], "cache": tmp_path}
    first, again = explainer().recommend(TEXTS, **how), explainer().recommend(TEXTS, **how)
    assert first.variants > 0 and again.variants == 0
    assert json.dumps(first.to_dict() | {"variants": 0}) == json.dumps(again.to_dict())
    metrics = ["ranked_truthfulness"]
    here, there = (
        explainer().compare(TEXTS, method=["saliency"], metric=metrics, cache=folder) for folder in (tmp_path, None)
    )
    assert here.variants < there.variants
    for name in ("saliency", "random"):
        found, again_found = (c.values["ranked_truthfulness"][name] for c in (here, there))
        np.testing.assert_allclose(found, again_found, atol=1e-6)


def test_several_streams_have_no_aggregations() -> None:
    case = CASES["clip"]
    result = wf.recommend(case.build(None), case.inputs(), scope="instance", method=["generic_attention", "occlusion"])
    assert result.candidates >= 1 and "attention aggregations" in result.excluded


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"scope": "batch"}, "dataset"),
        ({"spaces": [], "method": []}, "are both empty"),
        ({"inputs": TEXTS[:3]}, "at least 4"),
        ({"method": ["attnlrp"]}, "attn_lrp"),
        ({"method": ["grad_cam"], "spaces": []}, "none of the candidates can explain this model: grad_cam"),
    ],
)
def test_mistakes_are_named(how: dict[str, Any], says: str) -> None:
    with pytest.raises((BadInput, NotOffered), match=says):
        explainer().recommend(how.pop("inputs", TEXTS), **{"method": [], **how})


# The best method within a budget: prices, options that make it fit, a choice on one half, a test on the other.


FEW: dict[str, Any] = {"method": ["attn_lrp", "raw_attention", "two_ended", "shap"], "spaces": []}


@cache
def chosen_within(budget: int | str = 30) -> wf.Recommendation:
    return explainer().recommend(TEXTS, budget=budget, **FEW)


# Prices


def test_what_a_budget_may_be() -> None:
    for asked in (20, "20", "20 forwards"):
        assert budget_of(asked) == Budget(20)
    for asked in ("0.5 s", ".5s", "500ms"):
        assert budget_of(asked) == Budget(0.5, seconds=True)
    for wrong in ("", "s", "2 minutes", "-1s", "0", "1.5 forwards", "2s3"):
        with pytest.raises(BadInput, match="forwards"):
            budget_of(wrong)


def test_prices_are_what_methods_declare() -> None:
    assert price_of("raw_attention", {}, 12, Rates()) == 1
    assert price_of("attn_lrp", {}, 12, Rates()) == 1 + BACKWARD
    assert price_of("two_ended", {}, 12, Rates()) == 2 * 12 + 2
    assert price_of("integrated_gradients", {"steps": 10}, 12, Rates()) == 12 + 10 * BACKWARD
    timed = Rates(forward=0.5, batched=0.1, backward=3)  # seconds
    assert price_of("attn_lrp", {}, 12, timed) == pytest.approx(0.5 * (1 + 3))
    assert price_of("two_ended", {}, 12, timed) == pytest.approx(2.6)
    cheap = Rates(forward=0.5, batched=0.001, backward=3)  # a batch of many takes little more than one input
    prices = [cheap.price(count, 1) for count in range(1, 3000)]
    assert prices == sorted(prices) and prices[0] == pytest.approx(2.0) and prices[-1] == pytest.approx(2.999 + 1.5)


@pytest.mark.parametrize("most", [33, 5000])
def test_options_are_as_many_passes_as_fit(most: int) -> None:
    for entry in (Candidate("integrated_gradients"), Candidate("shap")):
        fits = fitted(entry, 12, Rates(), most)
        assert fits is not None and price_of(fits.method, fits.options, 12, Rates()) <= most
        if fits.options:
            ((option, count),) = fits.options.items()
            assert price_of(fits.method, {option: count + 1}, 12, Rates()) > most
    for guide, price in (("attn_lrp", 2), ("attn_lrp+alone", 5)):
        guided = guided_shap(guide, 12, Rates(), most)
        assert guided is not None and guided.options["evaluations"] == min(1024, most - 2 - price)
    assert fitted(Candidate("two_ended"), 12, Rates(), 25) is None
    named = Candidate("integrated_gradients", {"steps": 50})
    assert fitted(named, 12, Rates(), 20) is None, "what was asked for is not changed"


def test_what_is_over_is_named_with_its_price() -> None:
    fit, over = affordable(wanted(None), 12, Rates(), Budget(3))
    names = {entry.method for entry in fit}
    assert {"raw_attention", "attn_lrp", "generic_attention"} <= names
    assert over["two_ended"] == 26 and over["occlusion"] == 13 and not names & set(over)


# The choice


@pytest.mark.filterwarnings("ignore:.*too few to rank")
def test_the_choice_is_made_on_one_half_and_tested_on_the_other() -> None:
    """Everything again, by compare on each half."""
    budgeted = chosen_within().budgeted
    assert budgeted is not None and (chosen_within().chosen_on, chosen_within().reported_on) == (4, 4)
    names = {c.name for c in budgeted.candidates}
    assert {"attn_lrp", "raw_attention", "two_ended"} <= names
    assert "shap(evaluations=23, guide=attn_lrp+alone)" in names and "shap(evaluations=28)" in names
    order = np.random.default_rng(0).permutation(len(TEXTS)).tolist()
    two = [c for c in budgeted.candidates if c is budgeted.choice or c.name == "raw_attention"]
    said = [{"method": c.method, **c.options} for c in two]
    here, there = (
        explainer().compare([TEXTS[i] for i in sorted(half)], method=said, metric=["aopc"])
        for half in (order[:4], order[4:])
    )
    for c in two:
        assert c.chosen_by == pytest.approx(here[c.name].scores["aopc"].mean, abs=1e-5)
        assert c.mean == pytest.approx(there[c.name].scores["aopc"].mean, abs=1e-5)
        ahead = np.array(there.values["aopc"][c.name]) - np.array(there.values["aopc"][budgeted.choice.name])
        np.testing.assert_allclose(c.over_choice, [float(x[0]) for x in spread(ahead[:, None])], atol=1e-5)
    for c in budgeted.candidates:
        assert round(c.price) <= 30 and c.forwards + BACKWARD * c.backwards <= c.price + 1e-6 and c.seconds > 0
    assert budgeted.choice.chosen_by == max(c.chosen_by for c in budgeted.candidates)
    assert 0 < budgeted.chance <= 1
    assert budgeted.hindsight.mean == max(c.mean for c in budgeted.candidates)
    assert not budgeted.behind, "not behind the best in hindsight by more than chance"
    for name in CLASSES:  # the best of each class of cost, by the inputs that choose
        alike = [c for c in budgeted.candidates if cost_class_of(c.method, c.options) == name]
        best = max(alike, key=lambda c: c.chosen_by)
        assert chosen_within().chosen(name) == {"method": best.method, **best.options}
    assert chosen_within().best == {"method": budgeted.choice.method, **budgeted.choice.options}
    explained = explainer().explain(TEXTS[0], **chosen_within().best)
    assert explained.cost.forwards + BACKWARD * explained.cost.backwards <= 30


def test_a_smaller_budget_leaves_out_what_costs_more_and_readings_of_attention_stand() -> None:
    result = explainer().recommend(TEXTS, budget=3, method=["attn_lrp", "two_ended"])
    budgeted = result.budgeted
    assert budgeted is not None and budgeted.limit == "3 forwards" and budgeted.backward == BACKWARD
    assert budgeted.over == {"two_ended": f"{2 * budgeted.units + 2} forwards for an input of {budgeted.units} units"}
    assert all(c.forwards + BACKWARD * c.backwards <= 3 for c in budgeted.candidates)
    readings = [c for c in budgeted.candidates if c.method != "attn_lrp"]
    assert sum(c.backwards < 0.5 for c in readings) == sum(c.backwards == 1 for c in readings) == 3, "the first by RFT"
    one = explainer().recommend(TEXTS, budget=1, method=["attn_lrp"], report=False).budgeted
    assert one is not None and all(c.backwards < 0.5 for c in one.candidates) and math.isnan(one.choice.mean)


@pytest.mark.parametrize(
    ("budget", "refused", "guided"),
    [
        (30, (), "shap(evaluations=23, guide=attn_lrp+alone)"),
        (13, (), "shap(evaluations=9, guide=attn_lrp)"),
        (30, ("attn_lrp+alone", "attn_lrp"), "shap(evaluations=26, guide=generic_attention)"),
        (11, (), None),
    ],
)
def test_the_guide_is_the_first_that_fits_and_runs(
    budget: int, refused: Sequence[str], guided: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    explain = wf.Explainer.explain

    def explained(self: wf.Explainer, *inputs: Any, **how: Any) -> Any:
        if how.get("guide") in refused:
            raise NotOffered("not here.")
        return explain(self, *inputs, **how)

    monkeypatch.setattr(CoreExplainer, "explain", explained)
    how: dict[str, Any] = {"method": ["shap"], "spaces": [], "report": False}
    budgeted = explainer().recommend(TEXTS[:4], budget=budget, **how).budgeted
    assert budgeted is not None
    names = {c.name: c for c in budgeted.candidates}
    assert [name for name in names if "guide" in name] == ([guided] if guided else [])
    for candidate in names.values():
        assert candidate.forwards + BACKWARD * candidate.backwards <= candidate.price <= budget


def test_a_budget_that_nothing_fits_into_names_the_cheapest() -> None:
    with pytest.raises(BadInput, match=r"5 forwards: the cheapest .* occlusion, \d+ forwards for an input of 9 units"):
        explainer().recommend(TEXTS, budget=5, method=["two_ended", "occlusion"], spaces=[])
    with pytest.raises(BadInput, match=r"1e-09 s: the cheapest candidate is raw_attention, about"):
        explainer().recommend(TEXTS, budget="0.000001ms", method=["two_ended", "raw_attention"], spaces=[])
    with pytest.raises(BadInput, match=r"1 forwards: the cheapest .* a method of the space 'gradient', 2 forwards"):
        explainer().recommend(TEXTS, budget=1, method=[], spaces=["gradient"])
    with pytest.raises(NotOffered, match="within 9 forwards can explain this model: grad_cam"):
        explainer().recommend(TEXTS, budget=9, method=["grad_cam"], spaces=[])
    with pytest.raises(BadInput, match="one method for all inputs"):
        explainer().recommend(TEXTS, budget=5, scope="label")


def test_a_time_is_estimated_and_measured() -> None:
    result = explainer().recommend(TEXTS, budget="600s", method=["attn_lrp", "two_ended"], spaces=[])
    budgeted = result.budgeted
    assert budgeted is not None and budgeted.limit == "600 s" and not budgeted.over
    assert {c.name for c in budgeted.candidates} == {"attn_lrp", "two_ended"}
    assert all(0 < c.price <= 600 and 0 < c.seconds <= 600 for c in budgeted.candidates)
    assert 0 <= budgeted.backward < math.inf, "a disturbed clock may leave nothing for it"


# The result


def outcome(name: str, mean: float, ahead: tuple[float, float, float]) -> CandidateOutcome:
    return CandidateOutcome(name, name, {}, 3.0, 1.0, 1.0, 0.01, mean, mean, mean - 0.1, mean + 0.1, ahead)


def test_being_behind_in_hindsight_is_told_from_chance() -> None:
    choice = outcome("a", 0.5, (0.0, 0.0, 0.0))
    alone = Budgeted("3 forwards", 2.0, 9, (choice, outcome("b", 0.4, (-0.1, -0.2, 0.1))), chance=1.0)
    assert alone.hindsight is choice and not alone.behind and "best of them" in alone.verdict
    close = Budgeted("3 forwards", 2.0, 9, (choice, outcome("b", 0.6, (0.1, -0.01, 0.2))), chance=0.3)
    assert close.hindsight.name == "b" and not close.behind
    assert close.verdict.endswith("by +0.100 (95 % CI -0.010 to +0.200), which is not significant (p = 0.3).")
    ahead = outcome("b", 0.6, (0.1, 0.05, 0.2))
    far = Budgeted("3 forwards", 2.0, 9, (choice, ahead), chance=0.01)
    assert far.behind and "which is significant (p = 0.01)" in far.verdict
    picked = Budgeted("3 forwards", 2.0, 9, (choice, ahead), chance=0.2)
    assert not picked.behind, "its own limits exclude zero, but it was picked for that"
    assert Budgeted("3 forwards", 2.0, 9, (choice, ahead)).verdict.endswith(
        "On the test inputs, b has a higher AOPC by +0.100 (95 % CI +0.050 to +0.200)."
    )


def test_it_is_shown_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = chosen_within()
    result.show()
    shown, page = " ".join(capsys.readouterr().out.split()), result.to_html()
    for words in ("Methods within 30 forwards", "within 30 forwards", "a backward counts as 1 forward", "two_ended"):
        assert words in shown and words in page
    assert result.verdict.startswith("Within 30 forwards, ")
    assert wf.load(result.save(tmp_path / "r.json")).budgeted == result.budgeted
