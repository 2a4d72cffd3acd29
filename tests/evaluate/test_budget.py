"""The best method within a budget: prices, options that make it fit, a choice on one half, a test on the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whyformer as wf
from tests.evaluate.games import TEXTS
from tests.evaluate.games import sentiment as explainer
from whyformer.errors import BadInput, NotOffered
from whyformer.evaluate.candidate import Candidate, wanted
from whyformer.evaluate.candidate_pool import (
    BACKWARD,
    Budget,
    Rates,
    affordable,
    budget_of,
    fitted,
    guided_shap,
    price_of,
)
from whyformer.evaluate.recommendation import Budgeted, CandidateOutcome
from whyformer.evidence import spread
from whyformer.explainer import CoreExplainer

FEW: dict[str, Any] = {"methods": ["attn_lrp", "raw_attention", "two_ended", "shap"], "spaces": []}


@cache
def chosen(budget: int | str = 30) -> wf.Recommendation:
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


@pytest.mark.parametrize("most", [33, 5000])
def test_options_are_as_many_passes_as_fit(most: int) -> None:
    for entry in (Candidate("integrated_gradients"), Candidate("shap")):
        fits = fitted(entry, 12, Rates(), most)
        assert fits is not None and price_of(fits.method, fits.options, 12, Rates()) <= most
        if fits.options:
            ((option, count),) = fits.options.items()
            assert price_of(fits.method, {option: count + 1}, 12, Rates()) > most
    for guide, price in (("attn_lrp", 3), ("attn_lrp+alone", 7)):
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


def test_the_choice_is_made_on_one_half_and_tested_on_the_other() -> None:
    """Everything again, by compare on each half."""
    budgeted = chosen().budgeted
    assert budgeted is not None and (chosen().chosen_on, chosen().reported_on) == (4, 4)
    names = {c.name for c in budgeted.candidates}
    assert {"attn_lrp", "raw_attention", "two_ended"} <= names
    assert "shap(evaluations=21, guide=attn_lrp+alone)" in names and "shap(evaluations=28)" in names
    order = np.random.default_rng(0).permutation(len(TEXTS)).tolist()
    two = [c for c in budgeted.candidates if c is budgeted.choice or c.name == "raw_attention"]
    said = [{"method": c.method, **c.options} for c in two]
    here, there = (
        explainer().compare([TEXTS[i] for i in sorted(half)], methods=said, metrics=["aopc"])
        for half in (order[:4], order[4:])
    )
    for c in two:
        assert c.chosen_by == pytest.approx(here[c.name].scores["aopc"].mean, abs=1e-5)
        assert c.mean == pytest.approx(there[c.name].scores["aopc"].mean, abs=1e-5)
        ahead = np.array(there.values["aopc"][c.name]) - np.array(there.values["aopc"][budgeted.choice.name])
        np.testing.assert_allclose(c.over_choice, [float(x[0]) for x in spread(ahead[:, None])], atol=1e-5)
    for c in budgeted.candidates:
        assert c.price <= 30 and c.forwards + BACKWARD * c.backwards <= c.price and c.seconds > 0
    assert budgeted.choice.chosen_by == max(c.chosen_by for c in budgeted.candidates)
    assert 0 < budgeted.chance <= 1
    assert budgeted.hindsight.mean == max(c.mean for c in budgeted.candidates)
    assert not budgeted.behind, "not behind the best in hindsight by more than chance"
    assert chosen().best == {"method": budgeted.choice.method, **budgeted.choice.options}
    explained = explainer().explain(TEXTS[0], **chosen().best)
    assert explained.cost.forwards + BACKWARD * explained.cost.backwards <= 30


def test_a_smaller_budget_leaves_out_what_costs_more_and_readings_of_attention_stand() -> None:
    result = explainer().recommend(TEXTS, budget=3, methods=["attn_lrp", "two_ended"])
    budgeted = result.budgeted
    assert budgeted is not None and budgeted.limit == "3 forwards" and budgeted.backward == BACKWARD
    assert budgeted.over == {"two_ended": f"{2 * budgeted.units + 2} forwards for an input of {budgeted.units} units"}
    assert all(c.forwards + BACKWARD * c.backwards <= 3 for c in budgeted.candidates)
    assert sum(c.method != "attn_lrp" for c in budgeted.candidates) == 3, "the first readings by RFT, all different"
    one = explainer().recommend(TEXTS, budget=1, methods=["attn_lrp"], report=False).budgeted
    assert one is not None and {c.backwards for c in one.candidates} == {0} and math.isnan(one.choice.mean)


@pytest.mark.parametrize(
    ("budget", "refused", "guided"),
    [
        (30, (), "shap(evaluations=21, guide=attn_lrp+alone)"),
        (16, (), "shap(evaluations=11, guide=attn_lrp)"),
        (30, ("attn_lrp+alone", "attn_lrp"), "shap(evaluations=25, guide=generic_attention)"),
        (12, (), None),
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
    how: dict[str, Any] = {"methods": ["shap"], "spaces": [], "report": False}
    budgeted = explainer().recommend(TEXTS[:4], budget=budget, **how).budgeted
    assert budgeted is not None
    names = {c.name: c for c in budgeted.candidates}
    assert [name for name in names if "guide" in name] == ([guided] if guided else [])
    for candidate in names.values():
        assert candidate.forwards + BACKWARD * candidate.backwards <= candidate.price <= budget


def test_a_budget_that_nothing_fits_into_names_the_cheapest() -> None:
    with pytest.raises(BadInput, match=r"5 forwards: the cheapest .* occlusion, \d+ forwards for an input of 9 units"):
        explainer().recommend(TEXTS, budget=5, methods=["two_ended", "occlusion"], spaces=[])
    with pytest.raises(BadInput, match=r"1e-09 s: the cheapest candidate is raw_attention, about"):
        explainer().recommend(TEXTS, budget="0.000001ms", methods=["two_ended", "raw_attention"], spaces=[])
    with pytest.raises(BadInput, match=r"1 forwards: the cheapest .* a method of the space 'gradient', 3 forwards"):
        explainer().recommend(TEXTS, budget=1, methods=[], spaces=["gradient"])
    with pytest.raises(NotOffered, match="fits into 9 forwards can explain this model: grad_cam"):
        explainer().recommend(TEXTS, budget=9, methods=["grad_cam"], spaces=[])
    with pytest.raises(BadInput, match="one method for all inputs"):
        explainer().recommend(TEXTS, budget=5, scope="label")


def test_a_time_is_estimated_and_measured() -> None:
    result = explainer().recommend(TEXTS, budget="600s", methods=["attn_lrp", "two_ended"], spaces=[])
    budgeted = result.budgeted
    assert budgeted is not None and budgeted.limit == "600 s" and not budgeted.over
    assert {c.name for c in budgeted.candidates} == {"attn_lrp", "two_ended"}
    assert all(0 < c.price <= 600 and 0 < c.seconds <= 600 for c in budgeted.candidates)
    assert 0 < budgeted.backward < 100


# The result


def outcome(name: str, mean: float, ahead: tuple[float, float, float]) -> CandidateOutcome:
    return CandidateOutcome(name, name, {}, 3.0, 1.0, 1.0, 0.01, mean, mean, mean - 0.1, mean + 0.1, ahead)


def test_being_behind_in_hindsight_is_told_from_chance() -> None:
    choice = outcome("a", 0.5, (0.0, 0.0, 0.0))
    alone = Budgeted("3 forwards", 2.0, 9, (choice, outcome("b", 0.4, (-0.1, -0.2, 0.1))), chance=1.0)
    assert alone.hindsight is choice and not alone.behind and "best of them" in alone.verdict
    close = Budgeted("3 forwards", 2.0, 9, (choice, outcome("b", 0.6, (0.1, -0.01, 0.2))), chance=0.3)
    assert close.hindsight.name == "b" and not close.behind
    assert "fall 0.100 (-0.010 to +0.200) further (AOPC), which cannot be told from chance" in close.verdict
    assert "30% of such picks" in close.verdict
    ahead = outcome("b", 0.6, (0.1, 0.05, 0.2))
    far = Budgeted("3 forwards", 2.0, 9, (choice, ahead), chance=0.01)
    assert far.behind and "more than chance" in far.verdict
    picked = Budgeted("3 forwards", 2.0, 9, (choice, ahead), chance=0.2)
    assert not picked.behind, "its own limits exclude zero, but it was picked for that"
    assert Budgeted("3 forwards", 2.0, 9, (choice, ahead)).verdict.endswith(
        "b would have been better: what it names first, taken away, makes the prediction fall 0.100 (+0.050 to +0.200) "
        "further (AOPC)."
    )


def test_it_is_shown_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = chosen()
    result.show()
    shown, page = " ".join(capsys.readouterr().out.split()), result.to_html()
    for words in ("Who fits into 30 forwards", "within 30 forwards", "a backward counts as 2 forwards", "two_ended"):
        assert words in shown and words in page
    assert result.verdict.startswith("Within 30 forwards, ")
    assert wf.load(result.save(tmp_path / "r.json")).budgeted == result.budgeted
