"""Random removal of a few features, and features kept with a probability that depends on the score."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import numpy as np

from whyformer.engines.perturbation.players import count_of, order_of
from whyformer.evaluate.candidate import Trial
from whyformer.evaluate.metrics.faithfulness import Fractions, Value, perturbation
from whyformer.parameters import Count, Limits, NotEmpty
from whyformer.shapes import Array

# Random removal that never takes much: F-Fidelity, on the model itself or on a copy fine-tuned on masked inputs.

SIZES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the explanation, as shares of the parts
Part = Annotated[float, Limits(0, 1, open_low=True)]


def random_numbers(parts: int, draws: int, seed: int) -> Array:
    """Return (D, P) uniform numbers, the same for every method, so that draws differ by the scores alone."""
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
    """(1 + S·D, P) masks: the whole input, then some features of the explanation (or of the rest) removed.

    inside: whether they are removed from the explanation. Of n candidates, min(α n, β P), rounded up, are drawn. An
    explanation of all features leaves no candidates outside, so its size is left out.
    """
    parts, order = len(trial.scores_P), order_of(trial.scores_P)
    random_DP = random_numbers(parts, samples, trial.seed)
    counts = [count_of(size, parts) for size in sizes]
    pools = [order[:count] if inside else order[count:] for count in counts if inside or count < parts]
    present = np.ones((1 + len(pools) * samples, parts), dtype=bool)
    for number, pool in enumerate(pools):
        gone = min(count_of(alpha, len(pool)), count_of(beta, parts))
        for draw, random_P in enumerate(random_DP):
            present[1 + number * samples + draw, pool[np.argsort(random_P[pool])[:gone]]] = False
    return present


def mean_fall(trial: Trial, present_MP: Array, value: str) -> float:
    """Return the falls from the first variant, the whole input, to the others; by the surrogate if there is one."""
    if len(present_MP) == 1:  # a single feature: nothing is outside of any explanation
        return float("nan")
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
    """Fall of the prediction when a few features are removed, drawn at random from those scored highest.

    FFid⁺ = E[p(x) - p(x without A)], A ⊂ the top s features, |A| = min(α s, β P) rounded up; the mean over ``samples``
    draws and over explanations of s = 10, 30, 50, 70 and 90 % of the features. At most the share β is removed at a
    time, so that the masked input stays close to the original. Higher is better.

    p is the model's own, unless ``compare(surrogate=…)`` is a copy that was fine-tuned on inputs with a share β masked
    at random (``wf.masked_surrogate``), as in the paper. A copy is never trained by default.

    Misleads when: the model itself is used and its output changes much when a few features are masked. With few
    features (β P ≤ 1) it is leave-one-out over the top features, which misses redundant ones.
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
    """Fall of the prediction when a few features are removed, drawn at random from those scored lowest.

    FFid⁻ = E[p(x) - p(x without A)], A ⊂ the features outside the top s, |A| = min(α (P - s), β P) rounded up;
    otherwise as f_fidelity_plus, surrogate included. An explanation of all features has none outside, and is left out
    of the mean. Lower is better: features outside the explanation should not matter.

    Misleads when: single features have little effect on the model: then all values are near zero, for random scores,
    too.
    """
    present = drawn_away(trial, inside=False, alpha=alpha, beta=beta, sizes=sizes, samples=samples)
    return mean_fall(trial, present, value)


RETAINED = (0.2, 0.4, 0.6, 0.8)
Shares = Annotated[Sequence[Annotated[float, Limits(0, 1, open_low=True, open_high=True)]], NotEmpty()]


def scaled(scores_P: Array) -> Array:
    """Return the (P,) scores scaled to 0 (lowest) … 1 (highest); NaN where all are equal."""
    scores = np.asarray(scores_P, dtype=float)
    width = np.ptp(scores)
    return (scores - scores.min()) / width if width > 0 else np.full(scores.shape, np.nan)


def retained(weights_P: Array, pi: float) -> Array:
    """(P,) probabilities of mean π: min(1, c·w); if too few weights are above 0, the others get equal shares.

    c is found by water-filling: a feature above 1 is clipped to 1, and the excess is divided among the others.
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
    """Return E[max(0, s(x) - s(x'))] / (s(x) - s(empty)); NaN where s(x) is not above s(empty)."""
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
    """Return masks in which features with high scores tend to be removed."""
    return _drawn(trial, 1 - scaled(trial.scores_P), pi, samples)


def important_kept(trial: Trial, *, pi: Sequence[float] = RETAINED, samples: int = 10, **options: object) -> Array:
    """Return masks in which features with high scores tend to be kept."""
    return _drawn(trial, scaled(trial.scores_P), pi, samples)


def _lost(trial: Trial, present_MP: Array, value: str) -> float:
    if len(present_MP) == 2:  # all scores are equal
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
    """Share of the prediction that is lost when features are removed at random, high scores more often.

    π-Soft-NC = E[max(0, p(x) - p(x'))] / (p(x) - p(empty)): feature i is kept with probability min(1, c (1 - a_i)), a
    the scores scaled to 0…1, c such that the expected share of kept features is π for every method; the mean over
    π = 0.2, 0.4, 0.6, 0.8 and ``samples`` draws of each. NaN where all scores are equal, or p(x) is not above p(empty),
    the prediction with all features masked. Higher is better.

    Misleads when: methods have scores of different distributions: the sizes count, not only the order. If one score is
    much larger than the others, the others are treated nearly alike.
    """
    # NOTE[DIFF] π is the paper's: the same expected share stays, so that no method gains by large scores. One factor
    # with a ceiling of 1 is this library's way to reach it, and whole parts stay or go.
    return _lost(trial, unimportant_kept(trial, pi=pi, samples=samples), value)


@pi_soft(masks=important_kept)
def pi_soft_ns(trial: Trial, *, pi: Shares = RETAINED, samples: Count = 10, value: Value = "probability") -> float:
    """Share of the prediction that remains when features are kept at random, high scores more often.

    π-Soft-NS = 1 - E[max(0, p(x) - p(x'))] / (p(x) - p(empty)): feature i is kept with probability min(1, c a_i) of
    mean π; otherwise as pi_soft_nc. 1: the whole prediction remains; 0: as much as for the empty input; below 0: the
    kept features support other classes. Higher is better.

    Misleads when: as pi_soft_nc.
    """
    # NOTE[DIFF] the papers cut at 0; below it one sees that what stays is worse than nothing.
    return 1 - _lost(trial, important_kept(trial, pi=pi, samples=samples), value)
