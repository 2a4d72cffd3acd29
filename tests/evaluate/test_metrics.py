"""What metrics say of themselves, and what must hold of them on models whose answers are known."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import numpy as np
import pytest

import whyformer as wf
from tests.evaluate.games import linear, predict, together
from tests.references import metrics as references
from tests.references.metrics.twin import Facts, MetricTwin
from whyformer.engines.perturbation.players import random_sets
from whyformer.evaluate.candidate import Trial
from whyformer.evaluate.metrics.f_fidelity import random_numbers
from whyformer.evaluate.metrics.faithfulness import squared_error
from whyformer.results.types import Explanation, Target, Units

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
        assert (entry.masks is not None) == ("perturbation" in entry.needs), name


# What must hold


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
    everything = {"sizes": (0.5, 1.0), "value": "logit"}  # outside of which nothing is left to be removed
    assert value("f_fidelity_minus", trial, alpha=1.0, beta=0.5, **everything) == pytest.approx(2 + 1)
    assert np.isnan(value("f_fidelity_minus", Trial(np.ones(1), linear(np.ones(1), bias=0)), sizes=(0.5,)))
    surrogate = Trial(trial.scores_P, trial.game, surrogate=linear(np.array([1.0, 1, 0, 0]), bias=0))
    assert value("f_fidelity_plus", surrogate, alpha=1.0, beta=0.5, **how) == pytest.approx(2)


def test_single_deletion_ranks_scores_as_the_falls_of_the_copy() -> None:
    game, copy = (linear(np.array(falls), bias=0) for falls in ([4.0, 3, 2, 1], [1.0, 2, 3, 4]))

    def said(*scores: float, surrogate: Any = None) -> float:
        return value("single_deletion", Trial(np.array(scores), game, surrogate=surrogate))

    assert said(9, 8, 2, 0.5) == pytest.approx(1) and said(9, 8, 2, 0.5, surrogate=copy) == pytest.approx(-1)
    assert said(3, 4, 2, 1) == pytest.approx(1 - 6 * 2 / (4 * 15))  # 1 - 6 Σd² / (n(n² - 1))
    assert np.isnan(said(1, 1, 1, 1))


def test_constant_scores_go_by_position() -> None:
    game = together(6, 0)
    assert value("aopc", Trial(np.zeros(6), game)) == value("aopc", Trial(-np.arange(6.0), game))
    assert np.isnan(value("faithfulness_correlation", Trial(np.zeros(6), game)))
    assert np.isnan(value("sparsity", Trial(np.zeros(6), game)))


# Every metric against its twin, on inputs of several sizes and with its options. A new metric has to bring one.


GRIDS = [(1, 1), (1, 2), (5, 1), (1, 13), (3, 4), (5, 8)]  # of the parts
SEEDS = [1, 2]
TWINS: dict[str, MetricTwin] = {
    name: twin
    for module in pkgutil.iter_modules(references.__path__, references.__name__ + ".")
    for name, twin in getattr(importlib.import_module(module.name), "TWINS", {}).items()
}


def judged(grid: tuple[int, int], seed: int, signed: bool) -> tuple[Trial, Facts]:
    """One input for the library, and the same as plain facts for the twins."""
    parts, generator = grid[0] * grid[1], np.random.default_rng([seed, *grid])
    scores = generator.normal(size=parts).round(1)  # rounding makes ties
    scores[-1] = 0.7
    if parts > 1 or seed == 2:
        scores[0] = 0.0  # a neutral part
    scores = scores if signed else np.abs(scores)
    game = together(parts, seed=parts + seed)
    marked = generator.random(parts) < 0.4
    marked[seed % parts] = True
    size = (2 * grid[0], 4 * grid[1])
    region = generator.random(size) < 0.3
    region[seed % size[0], 0] = True
    base = None if seed % 2 else 0.3

    def again(draw: int, radius: float) -> np.ndarray:
        return scores + radius * np.random.default_rng([seed, draw]).normal(size=parts)

    names, streams = tuple(map(str, range(parts))), ("image",) * parts
    units = Units(names, (False,) * parts, streams, grid=grid, image_size=size)
    target = Target(0, "a")
    trial = Trial(
        scores,
        game,
        signed=signed,
        seed=3,
        units=units,
        explanation=Explanation(
            scores, units, target, "logit", game.whole("logit"), target, "shap", base=base, signed=signed
        ),
        rationale_P=marked,
        region=region,
        again=again,
    )
    facts = Facts(
        scores=scores.tolist(),
        signed=signed,
        says={"probability": predict(game), "logit": predict(game, 1), "decides": predict(game, 2)},
        drawn=lambda share: [set(np.flatnonzero(row).tolist()) for row in random_sets(parts, 50, share, 3)],
        uniform=lambda draws: random_numbers(parts, draws, 3).tolist(),
        value=game.whole("logit"),
        base=base,
        again=lambda draw, radius: again(draw, radius).tolist(),
        marked=set(np.flatnonzero(marked).tolist()),
        grid=grid,
        size=size,
        object={(int(y), int(x)) for y, x in np.argwhere(region)},
    )
    return trial, facts


def comparisons() -> list[Any]:
    """Metrics with their options; a metric without a twin is a comparison too, and fails."""
    return [
        pytest.param(name, options, id="-".join([name, *(f"{k}={v}" for k, v in (options or {}).items())]))
        for name in sorted(METRICS)
        for options in (TWINS[name].options if name in TWINS else [None])
    ]


@pytest.mark.parametrize(("name", "options"), comparisons())
def test_the_library_agrees_with_the_twin(name: str, options: dict[str, Any] | None) -> None:
    assert options is not None, f"no module of tests/references/metrics has {name} among its TWINS"
    twin = TWINS[name]
    said = []
    for grid in GRIDS:
        if grid[0] * grid[1] < twin.at_least:
            continue
        for seed in SEEDS:
            for signed in (True, False):
                trial, facts = judged(grid, seed, signed)
                expected = twin.expected(facts, **options)
                assert isinstance(expected, float | int)
                found = METRICS[name].run(trial, **options)
                assert found == pytest.approx(expected, nan_ok=True, **twin.within), (grid, seed, signed)
                said.append(expected)
    assert len({x for x in said if not np.isnan(x)}) > 1, "a twin that always says the same says nothing"


def test_no_twin_is_left_of_a_metric_that_is_gone() -> None:
    assert set(TWINS) == set(METRICS)
