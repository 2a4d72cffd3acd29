"""Evidence in several places: said three times over, or spread over a sentence in many small parts.

Words of praise and blame stand among fillers, and nothing negates them. *repeated*: all of them say the same, and one
would be enough. *votes*: some praise and some blame, and the larger number decides, so that no word is enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bench.known_truth.task import Array, Change, Inputs, Planted, alone
from bench.known_truth.words import BLAME_IDS, FILLER_IDS, ID, PRAISE_IDS, Sentiment, encoded

LENGTH = 16
COPIES = 3
VOTES = (8, 10)  # even numbers, and so are all differences


@dataclass(frozen=True)
class Sentences:
    """Fillers everywhere, and where there is evidence, on which side it is."""

    fillers_IW: Array
    evident_IW: Array
    positive_IW: Array
    which_IW: Array

    def written(self) -> Inputs:
        said = np.where(self.positive_IW, PRAISE_IDS[self.which_IW], BLAME_IDS[self.which_IW])
        words = np.where(self.evident_IW, said, self.fillers_IW)
        return encoded(words, np.full(len(words), LENGTH))

    def turned(self, where_IW: Array) -> Sentences:
        return replace(self, positive_IW=self.positive_IW ^ where_IW)

    def with_fillers(self, rng: np.random.Generator) -> Sentences:
        return replace(self, fillers_IW=rng.choice(FILLER_IDS, self.fillers_IW.shape))

    def with_some_masked(self, rng: np.random.Generator) -> Sentences:
        """Few or nearly all fillers masked, so that a mask is nothing new to methods that take words away."""
        share = rng.random((len(self.fillers_IW), 1))
        hidden = rng.random(self.fillers_IW.shape) < share
        return replace(self, fillers_IW=np.where(hidden, ID["[MASK]"], self.fillers_IW))


def first(order_IW: Array, number_I: Array) -> Array:
    """(I, W) the places that come first in an order of chance."""
    return order_IW.argsort(1).argsort(1) < number_I[:, None]


def drawn(rng: np.random.Generator, number_I: Array, positives_I: Array) -> Sentences:
    """So many words of evidence, and so many of them praise."""
    shape = (len(number_I), LENGTH)
    order = rng.random(shape)
    return Sentences(
        rng.choice(FILLER_IDS, shape), first(order, number_I), first(order, positives_I), rng.integers(0, 4, shape)
    )


@dataclass(frozen=True)
class Repeated(Sentiment):
    """Three words say the same."""

    name: str = "repeated"

    def batch(self, rng: np.random.Generator, count: int) -> tuple[Inputs, Tensor]:
        """One to three words of evidence: each of them must be enough."""
        number, praise = rng.integers(1, COPIES + 1, count), rng.random(count) < 0.5
        return drawn(rng, number, number * praise).with_some_masked(rng).written(), torch.from_numpy(praise).long()

    def held_out(self, rng: np.random.Generator, count: int) -> Planted:
        number, praise = np.full(count, COPIES), rng.random(count) < 0.5
        sentences = drawn(rng, number, number * praise)
        cause = sentences.evident_IW
        fewer = replace(sentences, evident_IW=cause & first(rng.random(cause.shape) + ~cause, number - 1))
        return Planted(
            inputs=sentences.written(),
            asked_I=praise.astype(np.int64),
            cause_IU=cause,
            counted_IU=np.ones_like(cause),
            group_I=alone(count),
            changes={"all three": Change(sentences.turned(cause).written(), np.ones(count, bool))},
            rest_redrawn=fewer.with_fillers(rng).written(),  # and one of the three is gone: two are as good
        )


@dataclass(frozen=True)
class Votes(Sentiment):
    """Many words, of which the larger part decides."""

    name: str = "votes"

    def _drawn(self, rng: np.random.Generator, count: int) -> tuple[Sentences, Array]:
        number = rng.choice(VOTES, count)
        lead = 1 + (rng.random(count) * (number // 2)).astype(int)  # half of the difference: from 1 to all votes
        praise = rng.random(count) < 0.5
        return drawn(rng, number, number // 2 + np.where(praise, lead, -lead)), praise

    def batch(self, rng: np.random.Generator, count: int) -> tuple[Inputs, Tensor]:
        sentences, praise = self._drawn(rng, count)
        return sentences.with_some_masked(rng).written(), torch.from_numpy(praise).long()

    def held_out(self, rng: np.random.Generator, count: int) -> Planted:
        sentences, praise = self._drawn(rng, count)
        cause, everywhere = sentences.evident_IW, np.ones(count, bool)
        winners = cause & (sentences.positive_IW == praise[:, None])
        lead = winners.sum(1) - cause.sum(1) // 2
        enough = winners & first(rng.random(cause.shape) + ~winners, lead + 1)
        return Planted(
            inputs=sentences.written(),
            asked_I=praise.astype(np.int64),
            cause_IU=cause,
            counted_IU=np.ones_like(cause),
            group_I=alone(count),
            changes={
                "all votes": Change(sentences.turned(cause).written(), everywhere),
                "just enough": Change(sentences.turned(enough).written(), everywhere),
            },
            rest_redrawn=sentences.with_fillers(rng).written(),
        )
