"""What metrics say of themselves, and what must hold of them on models whose answers are known."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import whyformer as wf
from tests.evaluate.games import linear, together
from whyformer.engines.perturbation.players import random_sets, without_bottom, without_top
from whyformer.evaluate.candidate import Trial
from whyformer.evaluate.metrics.faithfulness import ranked
from whyformer.evaluate.metrics.forecast import squared_error
from whyformer.evaluate.metrics.soft import retained
from whyformer.evaluate.soft_game import SoftGame

METRICS = wf.list_metrics()


def scores_of(parts: int, seed: int, signed: bool = True) -> Any:
    scores = np.random.default_rng(seed).normal(size=parts).round(1)  # rounding makes ties
    return scores if signed else np.abs(scores)


def value(name: str, trial: Trial, **options: Any) -> float:
    return METRICS[name].run(trial, **options)


# The registry


def test_every_metric_says_what_it_is() -> None:
    assert {"comprehensiveness", "sufficiency", "aopc", "deletion", "insertion", "infidelity"} <= set(METRICS)
    for name, entry in METRICS.items():
        assert entry.paper and entry.cost_text and entry.idea.endswith("."), name
        assert "Misleads when" in (inspect.getdoc(entry.run) or ""), name
        assert entry.kind in {"faithfulness", "plausibility", "localisation", "robustness", "complexity"}, name
        assert (entry.masks is not None) == bool(entry.needs & {"perturbation", "soft_erasure"}), name


# Another library


@pytest.mark.parametrize("seed", range(2))
def test_areas_under_curves_are_those_of_scikit_learn(seed: int) -> None:
    from sklearn.metrics import auc, average_precision_score, precision_recall_curve

    parts = 12
    marked = np.random.default_rng(seed).random(parts) < 0.4
    marked[seed] = True
    scores = scores_of(parts, seed)
    trial = Trial(scores, linear(scores), rationale_P=marked)
    precision, recall, _ = precision_recall_curve(marked, scores)
    assert value("auprc", trial) == pytest.approx(auc(recall, precision))
    units = wf.Units(tuple("abcdefghijkl"), (False,) * 12, ("image",) * 12, grid=(3, 4), image_size=(3, 4))
    shown = Trial(scores, linear(scores), units=units, region=marked.reshape(3, 4))
    positive = np.clip(scores, 0, None)
    assert value("mean_average_precision", shown) == pytest.approx(average_precision_score(marked, positive))


# What must hold


@pytest.mark.parametrize("seed", range(2))
def test_reversing_a_ranking_swaps_the_curves(seed: int) -> None:
    scores = np.random.default_rng(seed).permutation(17).astype(float)
    assert np.array_equal(without_top(scores), without_bottom(-scores))
    assert np.array_equal(without_bottom(scores), without_top(-scores))
    game = together(17, seed)
    most, least = (value("positive_perturbation", Trial(s, game)) for s in (scores, -scores))
    assert least == value("negative_perturbation", Trial(scores, game))
    assert most == value("negative_perturbation", Trial(-scores, game))


@pytest.mark.parametrize("seed", range(2))
def test_ranked_truthfulness_is_bounded_by_the_sorted_order(seed: int) -> None:
    """Rearrangement: of all positive weights, those that sort the drops win; of signed ones, the drops themselves."""
    generator = np.random.default_rng(seed)
    drops = generator.normal(size=9)
    many = generator.random((500, 9))
    best = np.argsort(np.argsort(drops)) + 1.0
    assert ranked(many, drops, signed=False).max() <= ranked(best[None], drops, signed=False)[0] + 1e-12
    signs = generator.choice([-1, 1], size=many.shape)
    assert ranked(many * signs, drops, signed=True).max() <= ranked(drops[None], drops, signed=True)[0] + 1e-12


def test_truthfulness_knows_no_ranks_and_ranks_know_no_scale() -> None:
    game = together(9, 0)
    scores = scores_of(9, 0) + 0.05
    shuffled = np.sign(scores) * np.random.default_rng(1).permutation(np.abs(scores))
    first, second = (value("truthfulness", Trial(s, game, signed=True)) for s in (scores, shuffled))
    assert first == pytest.approx(second)
    monotone = np.sign(scores) * np.abs(scores) ** 3 * 7
    first, second = (value("ranked_truthfulness", Trial(s, game, signed=True)) for s in (scores, monotone))
    assert first == second


@pytest.mark.parametrize("name", ["comprehensiveness", "sufficiency", "aopc", "deletion", "insertion"])
def test_curves_see_the_order_only(name: str) -> None:
    game, scores = together(9, 0), scores_of(9, 0)
    assert value(name, Trial(scores, game)) == value(name, Trial(np.exp(scores) * 3, game))
    assert value(name, Trial(scores, game)) != value(name, Trial(-scores, game))


def test_infidelity_of_a_linear_model_is_zero_for_its_gradient() -> None:
    generator = np.random.default_rng(0)
    weights, x, base = generator.normal(size=(3, 8))
    gone = random_sets(8, 50, None, 0)
    changes = gone * (x - base)  # what the perturbation takes off the input
    falls = changes @ weights
    assert squared_error(weights, changes, falls, normalize=False) == pytest.approx(0, abs=1e-20)
    assert squared_error(weights, changes, falls, normalize=True) == pytest.approx(0, abs=1e-20)
    assert squared_error(weights[::-1], changes, falls, normalize=False) > 0.1
    game = linear(weights * (x - base))  # shares of the whole effect of a part
    shares = Trial(weights * (x - base), game)
    assert value("infidelity", shares, normalize=False) == pytest.approx(0, abs=1e-20)
    assert value("infidelity", Trial(3 * shares.scores_P, game), normalize=False) > 0.1
    assert value("infidelity", Trial(3 * shares.scores_P, game), normalize=True) == pytest.approx(0, abs=1e-20)
    assert value("faithfulness_correlation", shares, value="logit") == pytest.approx(1)


# Answers worked out by hand: parts whose logits are 4, 3, 2 and 1, of 10 in all


def test_saco_weighs_each_pair_of_groups_by_how_far_their_scores_differ() -> None:
    game = linear(np.array([4.0, 3, 2, 1]), bias=0)

    def said(*scores: float, groups: int = 4) -> float:
        return value("saco", Trial(np.array(scores), game), groups=groups, value="logit")

    assert said(4, 3, 2, 1) == said(9, 8, 2, 0.5) == 1
    assert said(1, 2, 3, 4) == -1
    # order 0, 1, 3, 2 with falls 4, 3, 1, 2: of differences 1 2 3 1 2 1 the last is wrong
    assert said(4, 3, 1, 2) == pytest.approx((1 + 2 + 3 + 1 + 2 - 1) / 10)
    # groups {0, 1} and {2, 3}: 7 against 3; and {2, 0}, {3, 1}: 6 against 4
    assert said(4, 3, 1, 2, groups=2) == said(3, 1, 4, 2, groups=2) == 1
    assert said(3, 4, 5, 1, groups=2) == said(1, 3, 4, 2, groups=2) == 0  # 5 against 5 says nothing
    assert said(1, 2, 4, 3, groups=2) == -1
    assert np.isnan(said(1, 1, 1, 1))
    sure = linear(np.zeros(4), bias=9)
    assert value("saco", Trial(np.array([4.0, 3, 2, 1]), sure), groups=4) == 0, (
        "a model that minds nothing praises no one"
    )


def test_f_fidelity_takes_no_more_than_its_bound() -> None:
    trial = Trial(np.array([4.0, 3, 2, 1]), linear(np.array([4.0, 3, 2, 1]), bias=0))
    how: dict[str, Any] = {"sizes": (0.5,), "value": "logit"}
    assert value("f_fidelity_plus", trial, alpha=1.0, beta=0.5, **how) == pytest.approx(4 + 3)
    assert value("f_fidelity_minus", trial, alpha=1.0, beta=0.5, **how) == pytest.approx(2 + 1)
    one_of_two = value("f_fidelity_plus", trial, alpha=1.0, beta=0.25, samples=400, **how)
    assert 3 < one_of_two < 4 and one_of_two == pytest.approx(3.5, abs=0.1)
    assert value("f_fidelity_plus", trial, alpha=0.5, beta=0.5, samples=400, **how) == pytest.approx(3.5, abs=0.1)
    surrogate = Trial(trial.scores_P, trial.game, surrogate=linear(np.array([1.0, 1, 0, 0]), bias=0))
    assert value("f_fidelity_plus", surrogate, alpha=1.0, beta=0.5, **how) == pytest.approx(2)


def test_soft_erasure_keeps_the_share_that_it_says() -> None:
    weights = np.array([4.0, 3, 2, 1])
    trial = Trial(np.array([1.0, 1, 0, 0]), linear(weights, bias=0))
    # probabilities of 1 and 0 leave nothing to chance: of 10, 7 go, and 3
    assert value("pi_soft_nc", trial, pi=(0.5,), value="logit") == pytest.approx(0.7)
    assert value("pi_soft_ns", trial, pi=(0.5,), value="logit") == pytest.approx(0.7)
    even = Trial(np.array([2.0, 1, 1, 0]), linear(weights, bias=0))
    # stay: 0, ½, ½, 1 of mean ½, so 4 + 3/2 + 2/2 go; and 1, ½, ½, 0, so 3/2 + 2/2 + 1 go
    assert value("pi_soft_nc", even, pi=(0.5,), samples=4000, value="logit") == pytest.approx(0.65, abs=0.01)
    assert value("pi_soft_ns", even, pi=(0.5,), samples=4000, value="logit") == pytest.approx(1 - 0.35, abs=0.01)
    np.testing.assert_allclose(retained(np.array([8.0, 1, 1, 0]), 0.5), [1, 0.5, 0.5, 0])
    np.testing.assert_allclose(retained(np.array([8.0, 0, 0, 0]), 0.5), [1, 1 / 3, 1 / 3, 1 / 3])
    for seed in range(20):
        drawn = np.abs(scores_of(9, seed))
        stays = retained(drawn, 0.1 + 0.8 * seed / 20)
        assert stays.mean() == pytest.approx(0.1 + 0.8 * seed / 20) and 0 <= stays.min() and stays.max() <= 1
        assert (np.diff(stays[np.argsort(drawn)]) >= -1e-12).all(), "what has more weight stays more often"

    def say(keep_MP: Any, draws: Any) -> Any:  # parts of so many numbers that each loses just its share
        logits = keep_MP @ weights
        return np.stack([logits / 10, logits, np.ones(len(logits))], 1)

    soft = Trial(np.array([2.0, 1, 1, 0]), linear(weights, bias=0), soft=SoftGame(say))
    assert value("soft_nc", soft, value="logit") == pytest.approx(0.65)
    assert value("soft_ns", soft, value="logit") == pytest.approx(1 - 0.35)
    for name in ("pi_soft_nc", "pi_soft_ns", "soft_nc", "soft_ns"):
        assert np.isnan(value(name, Trial(np.ones(4), linear(weights), soft=SoftGame(say))))
        backwards = Trial(np.array([2.0, 1, 1, 0]), linear(-weights), soft=SoftGame(lambda k, d: -say(k, d)))
        assert np.isnan(value(name, backwards)), "nothing can be lost of what the input does not say"


def test_constant_scores_go_by_position() -> None:
    game = together(6, 0)
    assert value("aopc", Trial(np.zeros(6), game)) == value("aopc", Trial(-np.arange(6.0), game))
    assert np.isnan(value("faithfulness_correlation", Trial(np.zeros(6), game)))
    assert np.isnan(value("sparsity", Trial(np.zeros(6), game)))
