"""Leads of the best in hindsight: chance by turned signs."""

from __future__ import annotations

import math

import numpy as np

from whyformer.evaluate.comparison import RARE, chance_of_lead
from whyformer.evidence import interval, spread


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
    alone, together, rounds = 0, 0, 200
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
