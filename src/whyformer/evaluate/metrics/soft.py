"""Soft erasure: a part stays with a probability that its score decides, whole or number by number."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import numpy as np

from whyformer.engines.perturbation.game import VALUES
from whyformer.engines.perturbation.players import count_of, order_of
from whyformer.errors import NotOffered
from whyformer.evaluate.candidate import Trial
from whyformer.evaluate.metrics.faithfulness import Fractions, Value, perturbation
from whyformer.parameters import Count, Limits, NotEmpty
from whyformer.registry import metric
from whyformer.shapes import Array

# Random removal that never takes much: F-Fidelity, on the model itself or on a copy fine-tuned on masked inputs.

SIZES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the explanation, as shares of the parts
Part = Annotated[float, Limits(0, 1, open_low=True)]


def random_numbers(parts: int, draws: int, seed: int) -> Array:
    """(D, P) uniform numbers, the same for every method: what is drawn differs by the scores alone."""
    return np.random.default_rng([seed, parts, draws]).random((draws, parts))


def drawn_away(
    trial: Trial,
    *,
    inside: bool,
    alpha: float = 0.5,
    beta: float = 0.1,
    sizes: Sequence[float] = SIZES,
    samples: int = 10,
    **options: object,
) -> Array:
    """(1 + S·D, P) the whole, then without some of the explanation's parts, or (not ``inside``) of all the others.

    Of the n parts that may go, min(α n, β P) go, rounded up and drawn at random.
    """
    parts, order = len(trial.scores_P), order_of(trial.scores_P)
    random_DP = random_numbers(parts, samples, trial.seed)
    present = np.ones((1 + len(sizes) * samples, parts), dtype=bool)
    for number, size in enumerate(sizes):
        count = count_of(size, parts)
        pool = order[:count] if inside else order[count:]
        gone = min(count_of(alpha, len(pool)), count_of(beta, parts))
        for draw, random_P in enumerate(random_DP):
            present[1 + number * samples + draw, pool[np.argsort(random_P[pool])[:gone]]] = False
    return present


def mean_fall(trial: Trial, present_MP: Array, value: str) -> float:
    """From the first variant, the whole input, to the others; by the surrogate where there is one."""
    values_M = (trial.surrogate or trial.game).values(present_MP, value)
    return float((values_M[0] - values_M[1:]).mean())


f_fidelity = partial(
    perturbation,
    paper="Zheng et al. 2025 (ICLR), arXiv:2410.02970",
    cost_text="10 forwards per size of the explanation, 5 of them",
    on_surrogate=True,
)


@f_fidelity(higher_is_better=True, masks=partial(drawn_away, inside=True), ceiling="remove")
def f_fidelity_plus(
    trial: Trial,
    *,
    alpha: Part = 0.5,
    beta: Part = 0.1,
    sizes: Fractions = SIZES,
    samples: Count = 10,
    value: Value = "probability",
) -> float:
    """How far the prediction falls when a few parts go, drawn at random from those with the highest scores.

    FFid⁺ = E[p(x) - p(x without A)], A ⊂ the top s parts, |A| = min(α s, β P) rounded up; the mean over ``samples``
    draws and over explanations of s = 10, 30, 50, 70 and 90 % of the parts. No more than the share β goes at a time,
    so what is left stays close to an input. High is good.

    p is the model's own unless ``compare(surrogate=…)`` brings a copy that was fine-tuned on inputs with a share β
    masked at random (``wf.masked_surrogate``), as the paper has it. Nothing is trained unasked.

    Misleads when: taken on the model itself and the model minds even a few absent parts; with few parts (β P ≤ 1) it is
    a leave-one-out of the top, which redundant parts escape.
    """
    # NOTE[DIFF] the authors' code draws every part with probability min(α, β P / s), so that the size of A varies, and
    # measures accuracy, 50 draws for each of 20 sizes.
    present = drawn_away(trial, inside=True, alpha=alpha, beta=beta, sizes=sizes, samples=samples)
    return mean_fall(trial, present, value)


@f_fidelity(higher_is_better=False, masks=partial(drawn_away, inside=False), ceiling="keep")
def f_fidelity_minus(
    trial: Trial,
    *,
    alpha: Part = 0.5,
    beta: Part = 0.1,
    sizes: Fractions = SIZES,
    samples: Count = 10,
    value: Value = "probability",
) -> float:
    """How far the prediction falls when a few parts go, drawn at random from all but those with the highest scores.

    FFid⁻ = E[p(x) - p(x without A)], A ⊂ the parts that are not among the top s, |A| = min(α (P - s), β P) rounded up;
    otherwise as f_fidelity_plus, also about the surrogate. Low is good: what is not in the explanation should not
    matter.

    Misleads when: hardly any single part matters to the model: then everything is near zero, random scores too.
    """
    present = drawn_away(trial, inside=False, alpha=alpha, beta=beta, sizes=sizes, samples=samples)
    return mean_fall(trial, present, value)


RETAINED = (0.2, 0.4, 0.6, 0.8)
Shares = Annotated[Sequence[Annotated[float, Limits(0, 1, open_low=True, open_high=True)]], NotEmpty()]


def scaled(scores_P: Array) -> Array:
    """(P,) from 0, the lowest score, to 1, the highest; NaN where all are equal."""
    scores = np.asarray(scores_P, dtype=float)
    width = np.ptp(scores)
    return (scores - scores.min()) / width if width > 0 else np.full(scores.shape, np.nan)


def retained(weights_P: Array, pi: float) -> Array:
    """(P,) probabilities whose mean is π: min(1, c·w), and where the weights above 0 are too few, the rest evenly.

    c is found by filling up: a part that would pass 1 stays at 1, and the others share what is left.
    """
    weights = np.asarray(weights_P, dtype=float)
    order, count = np.argsort(-weights, kind="stable"), len(weights)
    left, probabilities = pi * count, np.zeros(count)
    for place, part in enumerate(order):
        rest = weights[order[place:]]
        if rest[0] * left < rest.sum():
            probabilities[order[place:]] = rest * left / rest.sum()
            return probabilities
        if rest[0] == 0:
            probabilities[order[place:]] = left / len(rest)
            return probabilities
        probabilities[part] = min(1.0, left)
        left -= probabilities[part]
    return probabilities


def share_lost(whole: float, none: float, values_M: Array) -> float:
    """E[max(0, s(x) - s(x'))] / (s(x) - s(nothing)); NaN where the input says no more than nothing does."""
    return float(np.clip(whole - values_M, 0, None).mean() / (whole - none)) if whole > none else float("nan")


# The same share of the parts stays, whatever the method: π-Soft-NC and π-Soft-NS.


def _drawn(trial: Trial, weights_P: Array, pi: Sequence[float], samples: int) -> Array:
    """(2 + S·D, P) the whole, nothing, then draws in which parts stay with probabilities of mean π."""
    parts = len(weights_P)
    ends = np.stack([np.ones(parts, dtype=bool), np.zeros(parts, dtype=bool)])
    if np.isnan(weights_P).any():
        return ends
    random_DP = random_numbers(parts, samples, trial.seed)
    return np.concatenate([ends, *(random_DP < retained(weights_P, share) for share in pi)])


def unimportant_kept(trial: Trial, *, pi: Sequence[float] = RETAINED, samples: int = 10, **options: object) -> Array:
    """What has a high score tends to go."""
    return _drawn(trial, 1 - scaled(trial.scores_P), pi, samples)


def important_kept(trial: Trial, *, pi: Sequence[float] = RETAINED, samples: int = 10, **options: object) -> Array:
    """What has a high score tends to stay."""
    return _drawn(trial, scaled(trial.scores_P), pi, samples)


def _lost(trial: Trial, present_MP: Array, value: str) -> float:
    if len(present_MP) == 2:  # the scores do not tell the parts apart
        return float("nan")
    whole, none, *values = trial.game.values(present_MP, value)
    return share_lost(whole, none, np.array(values))


pi_soft = partial(
    perturbation,
    paper="Huang & Chan 2026, arXiv:2601.03089; after Zhao & Aletras 2023 (ACL), arXiv:2305.10496",
    higher_is_better=True,
    cost_text="10 forwards per π, 4 of them",
)


@pi_soft(masks=unimportant_kept)
def pi_soft_nc(trial: Trial, *, pi: Shares = RETAINED, samples: Count = 10, value: Value = "probability") -> float:
    """How much of the prediction is lost when parts go at random, those with high scores more often.

    π-Soft-NC = E[max(0, p(x) - p(x'))] / (p(x) - p(nothing)): part i stays with probability min(1, c (1 - a_i)), a the
    scores scaled to 0…1, c such that the expected share of what stays is π, for every method the same; the mean over
    π = 0.2, 0.4, 0.6, 0.8 and ``samples`` draws of each. NaN where the scores are all equal, and where the input says
    no more for the target than nothing does.

    Misleads when: compared over methods whose scores have other shapes: not only the order counts, and scores that
    single one part out treat all others alike.
    """
    # NOTE[DIFF] π is the paper's: the same expected share stays, so that no method gains by large scores. One factor
    # with a ceiling of 1 is this library's way to reach it, and whole parts stay or go.
    return _lost(trial, unimportant_kept(trial, pi=pi, samples=samples), value)


@pi_soft(masks=important_kept)
def pi_soft_ns(trial: Trial, *, pi: Shares = RETAINED, samples: Count = 10, value: Value = "probability") -> float:
    """How much of the prediction is saved when parts stay at random, those with high scores more often.

    π-Soft-NS = 1 - E[max(0, p(x) - p(x'))] / (p(x) - p(nothing)): part i stays with probability min(1, c a_i) of mean
    π; otherwise as pi_soft_nc. 1 is all of it, 0 no more than nothing says; below 0 what stays speaks for others.

    Misleads when: as pi_soft_nc.
    """
    # NOTE[DIFF] the papers cut at 0; below it one sees that what stays is worse than nothing.
    return 1 - _lost(trial, important_kept(trial, pi=pi, samples=samples), value)


# Numbers of a part go one by one, as many as its score says: Soft-NC and Soft-NS.


def high_erased(trial: Trial, **options: object) -> Array:
    """(1, P) the probability of a part's numbers to stay, low where its score is high; (0, P) where all are equal."""
    keep_P = 1 - scaled(trial.scores_P)
    return keep_P[None] if not np.isnan(keep_P).any() else np.zeros((0, len(keep_P)))


def low_erased(trial: Trial, **options: object) -> Array:
    """(1, P) high where the score is high."""
    return 1 - high_erased(trial)


def _softly(trial: Trial, keep_MP: Array, samples: int, value: str) -> float:
    if trial.soft is None:
        raise NotOffered("soft_nc and soft_ns erase numbers of the input one by one, and this input has none.")
    if not len(keep_MP):
        return float("nan")
    column = VALUES.index(value)
    ends = trial.soft.ask(np.concatenate([np.ones_like(keep_MP), np.zeros_like(keep_MP)]), 1)[:, 0, column]
    return share_lost(ends[0], ends[1], trial.soft.ask(keep_MP, samples)[0, :, column])


soft = partial(
    metric,
    paper="Zhao & Aletras 2023 (ACL), arXiv:2305.10496",
    kind="faithfulness",
    higher_is_better=True,
    needs={"soft_erasure"},
    cost_text="10 forwards",
)


@soft(masks=high_erased)
def soft_nc(trial: Trial, *, samples: Count = 10, value: Value = "probability") -> float:
    """How much of the prediction is lost when each part loses as much of its numbers as its score says.

    Soft-NC = E[max(0, p(x) - p(x'))] / (p(x) - p(nothing)): every element of part i's word embedding becomes 0 with
    probability a_i, the score scaled to 0…1; of pixels and columns, what stands for the absent comes in its place.

    Misleads when: methods are compared whose scores have other means: who calls everything important erases more and
    looks better. pi_soft_nc holds the expected share fixed.
    """
    # NOTE[DIFF] the mean over draws, where the authors draw once; images and tables are this library's.
    return _softly(trial, high_erased(trial), samples, value)


@soft(masks=low_erased)
def soft_ns(trial: Trial, *, samples: Count = 10, value: Value = "probability") -> float:
    """How much of the prediction is saved when each part keeps as much of its numbers as its score says.

    Soft-NS = 1 - E[max(0, p(x) - p(x'))] / (p(x) - p(nothing)): every element of part i's word embedding stays with
    probability a_i and is 0 else; otherwise as soft_nc.

    Misleads when: as soft_nc, the other way round: large scores keep more.
    """
    # NOTE[DIFF] the paper cuts at 0.
    return 1 - _softly(trial, low_erased(trial), samples, value)
