"""Shapley values by regression: pairs that follow the kernel, sums that are held, guides that help or cost nothing."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from math import comb

import numpy as np
import pytest

from tests.references.shap import shap
from whyformer.engines.perturbation.regression import Fit, Pairs, _cells, fitted

PLAYERS, SEEDS = 10, range(24)


@cache
def game() -> tuple[np.ndarray, np.ndarray]:
    """The value of every set of ten players (by the bits of its number), pairs and threes among its terms; and
    Shapley values by their definition."""
    generator = np.random.default_rng(7)
    members = (np.arange(2**PLAYERS)[:, None] >> np.arange(PLAYERS) & 1).astype(float)
    values = members @ (generator.standard_normal(PLAYERS) * (generator.random(PLAYERS) < 0.5) * 2)
    for size in (2, 2, 2, 3, 3):
        chosen = generator.choice(PLAYERS, size, replace=False)
        values = values + generator.standard_normal() * members[:, chosen].prod(1)
    exact = shap(lambda some: float(values[sum(1 << i for i in some)]), PLAYERS)
    return values, exact


def asked(present: np.ndarray) -> np.ndarray:
    return game()[0][present.astype(int) @ (1 << np.arange(PLAYERS))]


def fit_of(seed: int, pairs: int, *guides: np.ndarray) -> Fit:
    drawn = Pairs(PLAYERS, seed)
    sides = drawn.more(pairs)
    change = game()[0][-1] - game()[0][0]
    return fitted(sides, asked(sides) - asked(~sides), drawn.weights_K, change, list(guides))


def error(*guides: np.ndarray) -> float:
    """Root mean square over seeds and players; each guide has a row for each seed."""
    fits = [fit_of(seed, 12, *(guide[seed] for guide in guides)) for seed in SEEDS]
    return float(np.sqrt(np.mean([(fit.values_P - game()[1]) ** 2 for fit in fits])))


def test_pairs_are_new_and_their_sizes_follow_the_kernel() -> None:
    pairs = Pairs(30, 0)
    first = pairs.more(100)
    second = pairs.more(100)
    both = np.concatenate([first, second])
    assert np.array_equal(pairs.drawn, both) and np.array_equal(Pairs(30, 0).more(100), first)
    assert len({min(row.tobytes(), (~row).tobytes()) for row in both}) == 200
    sizes = np.arange(1, 30)
    share = 1 / (sizes * (30 - sizes))
    weights = np.tile(pairs.weights_K, 2)  # there are 30 of size 1 only: what is drawn again weighs more
    seen = np.bincount(np.concatenate([both.sum(1), 30 - both.sum(1)]), weights, minlength=30)[1:30]
    np.testing.assert_allclose(seen / seen.sum(), share / share.sum(), atol=0.02)
    joins = both.sum(0)
    assert np.ptp(joins) < 0.1 * joins.mean(), "all players join about equally often"


@pytest.mark.parametrize(("players", "strongest"), [(9, [2, 5, 8]), (6, [1, 0, 2, 4, 5])])
def test_with_strong_players_pairs_are_as_likely_as_without(players: int, strongest: list[int]) -> None:
    """Sizes follow the kernel, and of a size every company of the strongest is as likely as by chance."""
    sizes: dict[int, float] = {}
    companies: dict[tuple[int, frozenset[int]], float] = {}
    for size, together, share in _cells(players, strongest):
        for side, company in ((size, frozenset(together)), (players - size, frozenset(strongest) - set(together))):
            sizes[side] = sizes.get(side, 0) + share / 2
            companies[side, company] = companies.get((side, company), 0) + share / 2
    kernel = {size: 1 / (size * (players - size)) for size in range(1, players)}
    for size, share in kernel.items():
        assert sizes[size] / sum(sizes.values()) == pytest.approx(share / sum(kernel.values()))
        sets = [set(some) for some in combinations(range(players), size)]
        for company in {frozenset(some & set(strongest)) for some in sets}:
            chance = np.mean([some & set(strongest) == company for some in sets])
            assert companies[size, company] / sizes[size] == pytest.approx(chance)


def test_strong_players_are_in_every_company() -> None:
    """Three that do something only together: by even distances their share is no other player's."""
    pairs, free = Pairs(20, 0, [4, 9, 13]), Pairs(20, 0)
    sides, drawn = pairs.more(32), free.more(32)
    assert np.array_equal(Pairs(20, 0, [4, 9, 13]).more(32), sides) and len(sides) == 32
    assert len({min(row.tobytes(), (~row).tobytes()) for row in sides}) == 32

    def off(some: np.ndarray, weights: np.ndarray) -> float:
        def worth(present: np.ndarray) -> np.ndarray:
            return present[:, [4, 9, 13]].all(1).astype(float) + present[:, 1]

        exact = np.zeros(20)
        exact[[4, 9, 13]], exact[1] = 1 / 3, 1.0
        fit = fitted(some, worth(some) - worth(~some), weights, 2.0)
        return float(np.abs(fit.values_P - exact).max())

    assert off(sides, pairs.weights_K) < 0.7 * off(drawn, free.weights_K)


def test_of_few_players_all_pairs_come_and_are_weighed_by_how_often() -> None:
    pairs = Pairs(4, 0)
    assert len(pairs.more(100)) == 2**3 - 1, "fewer than were asked for"
    assert len(pairs.more(5)) == 0
    assert pairs.weights_K.mean() == pytest.approx(1)


def test_all_pairs_weighed_by_the_kernel_give_shapley_values() -> None:
    """Lundberg & Lee 2017, theorem 2; with equal weights they would be another solution, a hundred times as far off."""
    sides = np.array([[number >> i & 1 for i in range(PLAYERS)] for number in range(1, 2**PLAYERS - 1, 2)], dtype=bool)
    sizes = sides.sum(1)
    weights = 1 / (np.array([comb(PLAYERS, int(size)) for size in sizes]) * sizes * (PLAYERS - sizes))
    change = game()[0][-1] - game()[0][0]
    fit = fitted(sides, asked(sides) - asked(~sides), weights / weights.mean(), change)
    np.testing.assert_allclose(fit.values_P, game()[1], atol=0.01)


def test_of_a_sum_every_term() -> None:
    terms = np.random.default_rng(0).standard_normal(15)
    drawn = Pairs(15, 1)
    sides = drawn.more(20)
    fit = fitted(sides, (2 * sides - 1) @ terms, drawn.weights_K, float(terms.sum()))
    np.testing.assert_allclose(fit.values_P, terms, atol=1e-4)
    assert fit.errors_P.max() < 1e-3


@pytest.mark.parametrize("pairs", [3, 12, 100])
def test_the_sum_is_held(pairs: int) -> None:
    generator = np.random.default_rng(0)
    for guides in ([], [generator.standard_normal(PLAYERS)], [np.zeros(PLAYERS)]):
        fit = fit_of(0, pairs, *guides)
        assert fit.values_P.sum() == pytest.approx(game()[0][-1] - game()[0][0], abs=1e-9)
        assert np.ones(PLAYERS) @ fit.covariance_PP @ np.ones(PLAYERS) == pytest.approx(0, abs=1e-9)


def test_a_good_guide_helps_and_a_bad_one_costs_nothing() -> None:
    noise = np.random.default_rng(5).standard_normal((2, len(SEEDS), PLAYERS))
    without, exact = error(), game()[1]
    assert error(np.tile(exact, (len(SEEDS), 1))) < 0.5 * without
    rough = exact + noise[0] * exact.std() / 2
    assert error(rough) < 0.9 * without
    assert error(noise[1]) < 1.1 * without
    assert error(-1000 * rough) == pytest.approx(error(rough), rel=1e-6), "its sign and its scale are fitted"


def test_two_guides_say_more_than_either() -> None:
    exact, generator = game()[1], np.random.default_rng(5)
    one, other = (exact + generator.standard_normal((len(SEEDS), PLAYERS)) * exact.std() for _ in range(2))
    assert error(one, 1000 * other) < 0.95 * min(error(one), error(other))


def test_errors_are_as_large_as_they_say() -> None:
    for pairs in (12, 40):
        fits = [fit_of(seed, pairs) for seed in SEEDS]
        real = np.sqrt(np.mean([(fit.values_P - game()[1]) ** 2 for fit in fits]))
        said = np.sqrt(np.mean([fit.errors_P**2 for fit in fits]))
        assert 0.5 < said / real < 2


def test_settled() -> None:
    apart = np.array([3.0, -2.0, 1.0, 0.1])
    assert Fit(apart, 0.01 * np.eye(4)).is_settled(top=3)
    assert not Fit(apart, 1.0 * np.eye(4)).is_settled(top=3)
    close = np.array([3.0, 2.99, 0.0, 0.0])
    assert not Fit(close, 0.03 * np.eye(4)).is_settled(top=1)
    assert Fit(close, 1e-3 * np.eye(4)).is_settled(top=1), "as good as equal, and known to be"
    together = 0.03 * np.ones((4, 4)) + 1e-6 * np.eye(4)  # errors that all share tell nothing about the order
    assert Fit(np.array([3.0, 2.9, 1.0, 0.0]), together).is_settled(top=2)
