"""Games of shapiq: how far are sampled Shapley values and pair interactions from exact ones, at equal budgets?

Games: local explanations of decision trees on three tables and sums of unanimity models, all by shapiq 1.4.1. All
coalitions are evaluated once; estimators of both packages then read the same values. For whyformer a game is a model:
it reads which features are present (1) or masked (0), and returns the game's value.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib import import_module
from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import whyformer as wf
from whyformer.shapes import Array

Row = dict[str, Any]
TABLES = {"California housing": "CaliforniaHousing", "bike rentals": "BikeSharing", "adult census": "AdultCensus"}
UNANIMITY = "sums of unanimity"
FEATURES, TERMS = 12, 50  # of that game, as in shapiq's examples
BUDGETS = (64, 128, 256, 512)
OURS = ("regression", "permutation")  # algorithms of method="shap"
SINGLE, PAIR, LEAST = "Shapley values", "pair interactions", 6  # smallest budget for single features beside pairs
THEIRS = ("KernelSHAP", "PermutationSamplingSV", "SVARM", "UnbiasedKernelSHAP")
PAIRS = ("KernelSHAPIQ", "SHAPIQ", "SVARMIQ", "PermutationSamplingSII")


def coalitions(features: int) -> Array:
    """Return all sets of features, one per row, in the order of their binary numbers."""
    return (np.arange(2**features)[:, None] >> np.arange(features) & 1).astype(bool)


def number_of(sets_CF: Any) -> Any:
    """Return the row of ``coalitions`` that holds each set."""
    return sets_CF @ (2 ** np.arange(sets_CF.shape[1]))


class Lookup(nn.Module):
    """A game as a model: a row of ones and zeros says which features are present."""

    def __init__(self, values_C: Array) -> None:
        super().__init__()
        self.values: Tensor
        self.register_buffer("values", torch.tensor(values_C, dtype=torch.float64))

    def forward(self, present: Tensor) -> Tensor:
        powers = 2 ** torch.arange(present.shape[1])
        found = self.values[((present > 0.5).long() * powers).sum(1)]
        return found[:, None].float()


def indices(values_C: Array) -> tuple[Array, dict[tuple[int, int], float]]:
    """Return exact Shapley values, and the Shapley interaction index of every pair."""
    features = int(np.log2(len(values_C)))
    numbers = np.arange(len(values_C))
    sizes = coalitions(features).sum(1)
    one = np.array(
        [factorial(s) * factorial(max(features - s - 1, 0)) / factorial(features) for s in range(features + 1)]
    )
    two = np.array(
        [factorial(s) * factorial(max(features - s - 2, 0)) / factorial(features - 1) for s in range(features + 1)]
    )
    single = np.zeros(features)
    for i in range(features):
        without = numbers[numbers >> i & 1 == 0]
        single[i] = (one[sizes[without]] * (values_C[without | 1 << i] - values_C[without])).sum()
    pairs = {}
    for i, j in combinations(range(features), 2):
        without = numbers[(numbers >> i & 1 == 0) & (numbers >> j & 1 == 0)]
        both, first, second = without | 1 << i | 1 << j, without | 1 << i, without | 1 << j
        change = values_C[both] - values_C[first] - values_C[second] + values_C[without]
        pairs[i, j] = float((two[sizes[without]] * change).sum())
    return single, pairs


def error(estimate: Any, exact: Any) -> float:
    """Root mean squared error, as a share of the root mean square of the exact values."""
    estimate, exact = np.asarray(estimate, float), np.asarray(exact, float)
    return float(np.sqrt(((estimate - exact) ** 2).mean() / (exact**2).mean()))


def games(count: int) -> Iterator[tuple[str, Array]]:
    """Yield the values of all coalitions of several games of each kind."""
    local, synthetic = import_module("shapiq_games.benchmark"), import_module("shapiq_games.synthetic")
    for name, kind in TABLES.items():
        for row in range(count):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = getattr(local, f"{kind}LocalXAI")
                game = made(x=row, model_name="decision_tree", imputer="marginal", random_state=0, verbose=False)
                yield name, np.asarray(game(coalitions(game.n_players)), float)
    for seed in range(count):
        game = synthetic.SOUM(n=FEATURES, n_basis_games=TERMS, random_state=seed)
        yield UNANIMITY, np.asarray(game(coalitions(FEATURES)), float)


def ours(values_C: Array, budget: int, algorithm: str, seed: int, pairs: int = 0) -> Any:
    """Explain the row in which every feature is present."""
    features = int(np.log2(len(values_C)))
    how: dict[str, Any] = {
        "method": "shap",
        "target": 0,
        "scalar": "logit",
        "seed": seed,
        "progress": False,
        "batch_size": 4096,
    }
    how |= {"algorithm": algorithm, "evaluations": budget - 2, "interactions": pairs}
    return wf.explain(Lookup(values_C), torch.ones(1, features), **how)[0]


def theirs(values_C: Array, budget: int, name: str, seed: int, order: int = 1) -> Any:
    """Estimate by an approximator of shapiq: values of features, or of pairs by their numbers."""
    features = int(np.log2(len(values_C)))
    options: dict[str, Any] = {"n": features, "random_state": seed}
    if order == 2:
        options |= {"max_order": 2, "index": "SII"}
    approximator = getattr(import_module("shapiq.approximator"), name)(**options)

    def game(sets_CF: Array) -> Array:
        return values_C[number_of(np.atleast_2d(sets_CF).astype(int))]

    found = approximator.approximate(budget=budget, game=game)
    return [found[(i,)] for i in range(features)] if order == 1 else lambda pair: found[pair]


def rows_of(count: int, seeds: int) -> Iterator[Row]:
    """Yield one row per kind of game, estimator and budget, with the errors over games and seeds."""
    errors: dict[tuple[str, str, str, str, int], list[float]] = {}
    most: dict[str, int] = {}  # evaluations of pairs: they depend on the seed

    def note(game: str, index: str, by: str, method: str, budget: int, found: float) -> None:
        errors.setdefault((game, index, by, method, budget), []).append(round(found, 5))

    for name, values_C in games(count):
        exact, pairs = indices(values_C)
        if not exact.any():
            continue
        for seed in range(seeds):
            for budget in (budget for budget in BUDGETS if budget < len(values_C)):
                for label in OURS:
                    why = ours(values_C, budget, label, seed)
                    note(name, SINGLE, "whyformer", label, budget, error(why.scores, exact))
                for label in THEIRS:
                    found = theirs(values_C, budget, label, seed)
                    note(name, SINGLE, "shapiq", label, budget, error(found, exact))
            why = ours(values_C, LEAST, "regression", seed, pairs=len(pairs))
            effects = {tuple(sorted((int(a), int(b)))): effect for a, b, effect in why.interactions}
            known, budget = list(pairs.values()), int(why.cost.forwards)
            most[name] = max(budget, most.get(name, 0))
            note(name, PAIR, "whyformer", "interactions=", 0, error([effects[pair] for pair in pairs], known))
            for label in PAIRS:
                estimate = theirs(values_C, budget, label, seed, order=2)
                note(name, PAIR, "shapiq", label, 0, error([estimate(pair) for pair in pairs], known))
    for (name, index, by, method, budget), found in errors.items():
        yield {"part": "shapiq_games", "game": name, "index": index, "by": by, "method": method,
               "budget": budget or most[name], "errors": found}  # fmt: skip
