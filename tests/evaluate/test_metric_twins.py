"""Every metric against its twin, on inputs of several sizes and with its options. A new metric has to bring one."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import numpy as np
import pytest

from tests.evaluate.games import predict, together
from tests.references import metrics as references
from tests.references.metrics.twin import Facts, MetricTwin
from whyformer.engines.perturbation.players import random_sets
from whyformer.evaluate.candidate import Trial
from whyformer.evaluate.metrics.soft import random_numbers
from whyformer.evaluate.soft_game import SoftGame
from whyformer.registry import list_metrics
from whyformer.results.types import Explanation, Target, Units

METRICS = list_metrics()
GRIDS = [(1, 1), (1, 2), (5, 1), (1, 13), (3, 4), (5, 8)]  # of the parts
SEEDS = [0, 1, 2]
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

    def softly(keep_MP: Any, draws: Any) -> Any:
        there = [
            np.random.default_rng(draw).random((9, parts)) < keep for keep, draw in zip(keep_MP, draws, strict=True)
        ]
        return np.stack([game.ask(some).mean(0) for some in there])  # nine numbers to a part

    soft = SoftGame(softly)
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
        soft=soft,
    )
    facts = Facts(
        scores=scores.tolist(),
        signed=signed,
        says={"probability": predict(game), "logit": predict(game, 1), "decides": predict(game, 2)},
        drawn=lambda share: [set(np.flatnonzero(row).tolist()) for row in random_sets(parts, 50, share, 3)],
        uniform=lambda draws: random_numbers(parts, draws, 3).tolist(),
        soft=lambda keep, draws: [float(softly([np.array(keep)], [draw])[0, 0]) for draw in range(draws)],
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
