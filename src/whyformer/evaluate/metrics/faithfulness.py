"""Faithfulness: whether the prediction changes as the scores predict when features are removed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import numpy as np
from scipy.stats import spearmanr

from whyformer.engines.perturbation.game import VALUES
from whyformer.engines.perturbation.players import (
    FRACTIONS,
    area,
    leave_one_out,
    only_top,
    order_of,
    random_sets,
    without_bottom,
    without_top,
)
from whyformer.evaluate.candidate import Trial
from whyformer.parameters import Count, Limits, NotEmpty, OneOf, Share
from whyformer.registry import metric
from whyformer.shapes import Array

BINS = (0.01, 0.05, 0.1, 0.2, 0.5)  # ERASER's
STEPS = tuple(i / 10 for i in range(10))  # 0, 10, …, 90 %
AVERAGES = ("code", "paper")
Fractions = Annotated[Sequence[Share], NotEmpty()]
Value = Annotated[str, OneOf(*VALUES)]
perturbation = partial(metric, kind="faithfulness", needs={"perturbation"})  # metrics that run variants of the input
rise = partial(perturbation, paper="Petsiuk, Das & Saenko 2018 (RISE), arXiv:1806.07421", cost_text="20 forwards")
chefer = partial(perturbation, paper="Chefer, Gur & Wolf 2021 (CVPR), arXiv:2012.09838", cost_text="9 forwards")
eraser = partial(perturbation, paper="DeYoung et al. 2020 (ERASER), arXiv:1911.03429", cost_text="1 forward per bin")

# Masks: the variants that a metric asks for. They take the metric's options, and leave those alone that say nothing
# about variants.


def top_away(trial: Trial, *, fractions: Sequence[float] = FRACTIONS, **options: object) -> Array:
    """(F, P) without the highest scores."""
    return without_top(trial.scores_P, fractions)


def bottom_away(trial: Trial, *, fractions: Sequence[float] = FRACTIONS, **options: object) -> Array:
    """(F, P) without the lowest scores."""
    return without_bottom(trial.scores_P, fractions)


def top_kept(trial: Trial, *, fractions: Sequence[float] = FRACTIONS, **options: object) -> Array:
    """(F, P) the highest scores alone."""
    return only_top(trial.scores_P, fractions)


def falls(trial: Trial, present_MP: Array, value: str) -> Array:
    """Return the (M - 1,) falls of the value, from the first variant, which is the whole input."""
    values_M = trial.game.values(present_MP, value)
    return values_M[0] - values_M[1:]


@perturbation(
    paper="Samek et al. 2017, arXiv:1509.06321",
    higher_is_better=True,
    cost_text="20 forwards",
    masks=lambda trial, fractions=FRACTIONS, **options: top_away(trial, fractions=(0.0, *fractions)),
    ceiling="remove",
)
def aopc(trial: Trial, *, fractions: Fractions = FRACTIONS, value: Value = "probability") -> float:
    """Mean fall of the prediction while features are removed from the highest score to the lowest.

    1/(L+1) Σ_{k=0..L} (p(x) - p(x without the top k)), k = 0, 5, …, 100 % of the features. Higher is better.

    Misleads when: the prediction does not depend on any feature. Also, the second half of the curve, where few features
    are left, counts as much as the first.
    """
    return float(falls(trial, top_away(trial, fractions=(0.0, *fractions)), value).mean())


@rise(higher_is_better=False, masks=top_away, ceiling="remove")
def deletion(trial: Trial, *, fractions: Fractions = FRACTIONS, value: Value = "probability") -> float:
    """Area under the prediction while features are removed from the highest score to the lowest.

    Trapezoids over 0, 5, …, 100 % of the features, as a share of the width. Lower is better.

    Misleads when: the baseline (grey, mask) is itself evidence for or against the class.
    """
    # NOTE[DIFF] the authors take pixels away one row's worth at a time; here whole units (patches, tokens, columns).
    return area(trial.game.values(top_away(trial, fractions=fractions), value), fractions)


@rise(higher_is_better=True, masks=top_kept, ceiling="keep")
def insertion(trial: Trial, *, fractions: Fractions = FRACTIONS, value: Value = "probability") -> float:
    """Area under the prediction while features are added from the highest score to the lowest.

    Starts with all features masked. Trapezoids over 0, 5, …, 100 % of the features, as a share of the width. Higher is
    better.

    Misleads when: the model predicts the class with high probability for an empty input.
    """
    # NOTE[DIFF] the authors begin insertion with a blurred image and deletion ends in grey; here one replacement
    # serves both, so that the variants are shared (replace="blur" gives the authors' insertion).
    return area(trial.game.values(top_kept(trial, fractions=fractions), value), fractions)


@chefer(higher_is_better=False, masks=partial(top_away, fractions=STEPS), ceiling="remove")
def positive_perturbation(trial: Trial, *, fractions: Fractions = STEPS) -> float:
    """How long the prediction stays the same while features are removed from the highest score to the lowest.

    Area under "is the target still predicted?" over 0, 10, …, 90 % of the features; its mean over inputs is the area
    under the accuracy curve. Lower is better. Pass the true labels as ``target`` for accuracy against labels.

    Misleads when: there are few inputs: each contributes yes or no only. Use ``deletion``, which uses probabilities.
    """
    return area(trial.game.stays(top_away(trial, fractions=fractions)), fractions)


@chefer(higher_is_better=True, masks=partial(bottom_away, fractions=STEPS), ceiling="keep")
def negative_perturbation(trial: Trial, *, fractions: Fractions = STEPS) -> float:
    """How long the prediction stays the same while features are removed from the lowest score to the highest.

    Area under "is the target still predicted?" over 0, 10, …, 90 % of the features. Higher is better.

    Misleads when: the model predicts the target for an empty input, too.
    """
    return area(trial.game.stays(bottom_away(trial, fractions=fractions)), fractions)


def average(falls_F: Array, rule: str) -> float:
    """Return the mean over the bins (the authors' code), or their sum over one more bin (the paper counts k = 0)."""
    return float(falls_F.sum() / (len(falls_F) + (rule == "paper")))


@eraser(
    higher_is_better=True,
    masks=lambda trial, bins=BINS, **options: top_away(trial, fractions=(0.0, *bins)),
    ceiling="remove",
)
def comprehensiveness(
    trial: Trial,
    *,
    bins: Fractions = BINS,
    average_as: Annotated[str, OneOf(*AVERAGES)] = "code",
    value: Value = "probability",
) -> float:
    """Fall of the prediction when the features with the highest scores are removed.

    mean over bins k of p(x) - p(x without the top k), k = 1, 5, 10, 20, 50 % of the features, rounded up. Higher is
    better. ``average_as="paper"`` divides by one bin more (k = 0), as in the paper; the authors' code uses the mean.

    Misleads when: the masked inputs are unlike the training data; the prediction may then fall for that reason.
    """
    return average(falls(trial, top_away(trial, fractions=(0.0, *bins)), value), average_as)


@eraser(
    higher_is_better=False,
    masks=lambda trial, bins=BINS, **options: top_kept(trial, fractions=(1.0, *bins)),
    ceiling="keep",
)
def sufficiency(
    trial: Trial,
    *,
    bins: Fractions = BINS,
    average_as: Annotated[str, OneOf(*AVERAGES)] = "code",
    value: Value = "probability",
) -> float:
    """Fall of the prediction when only the features with the highest scores are kept.

    mean over bins k of p(x) - p(the top k alone), k = 1, 5, 10, 20, 50 % of the features, rounded up. Lower is better;
    below zero, the prediction is higher for these features alone than for the whole input.

    Misleads when: the model predicts this class for an empty input, too: then any features are sufficient.
    """
    return average(falls(trial, top_kept(trial, fractions=(1.0, *bins)), value), average_as)


optimus = partial(
    perturbation,
    paper="Mylonas, Mollas & Tsoumakas 2022 (Optimus), arXiv:2209.10876",
    higher_is_better=True,
    cost_text="(features + 1) forwards",
    masks=lambda trial, **options: leave_one_out(len(trial.scores_P)),
    ceiling="leave_one_out",
)


def agreement(scores_MP: Array, drops_P: Array, signed: bool) -> Array:
    """Return (M, P) s_i d_i; a feature with score 0 from a signed method counts as -|d_i|."""
    if not signed:  # all parts count as positive; the authors scale attention to 1e-7…1, so that none is neutral
        return np.broadcast_to(drops_P, np.shape(scores_MP)).astype(float)
    signs = np.sign(scores_MP)
    return np.where(signs == 0, -np.abs(drops_P), signs * drops_P)


@optimus()
def truthfulness(trial: Trial, *, value: Value = "probability") -> float:
    """Whether the sign of each score agrees with the change of the prediction without that feature.

    FT = Σ_i sign(w_i) d_i, d_i = p(x) - p(x without i); a feature with w_i = 0 counts as -|d_i|. Ranks are not used.
    Higher is better.

    Misleads when: methods without signs are compared: all their scores are positive, so they get the same value.
    """
    return float(agreement(trial.scores_P, trial.game.drops(value), trial.signed).sum())


def ranks(scores_MP: Array) -> Array:
    """Return the (M, P) rank by size, 1 = largest |w|; tied features share the worst rank."""
    sizes = np.abs(np.asarray(scores_MP, dtype=float))
    # The worst rank of a tie is the number of parts that are at least as large.
    ascending = np.sort(sizes, axis=-1)
    count = sizes.shape[-1]
    each = zip(ascending, sizes, strict=True)
    smaller = np.stack([np.searchsorted(sorted_P, size_P, side="left") for sorted_P, size_P in each])
    return count - smaller


def ranked(scores_MP: Array, drops_P: Array, signed: bool) -> Array:
    """(M,) RFT of many rankings of one input."""
    return (agreement(scores_MP, drops_P, signed) / ranks(scores_MP)).sum(-1)


@optimus()
def ranked_truthfulness(trial: Trial, *, value: Value = "probability") -> float:
    """Whether features whose removal changes the prediction most are ranked first, with the right sign.

    RFT = Σ_i sign(w_i) d_i / rank_i, rank 1 = largest |w_i|; tied features share the worst rank. Higher is better.

    Misleads when: features are redundant: only one is removed at a time. Leave-one-out scores are best by construction,
    so do not use this metric both to choose a method and to report its quality.
    """
    return float(ranked(np.asarray(trial.scores_P)[None], trial.game.drops(value), trial.signed)[0])


@perturbation(
    paper="Sundararajan, Taly & Yan 2017, arXiv:1703.01365",
    higher_is_better=False,
    cost_text="1 forward",
    masks=lambda trial: np.zeros((1, len(trial.scores_P)), dtype=bool),
)
def completeness(trial: Trial) -> float:
    """Completeness error: the gap between the sum of the scores and their expected sum, relative to it.

    |Σφ - (s(x) - s₀)| / |s(x) - s₀|; s₀ is the value at the method's own baseline if it has one, else the value of the
    input with all features masked. For signed methods only: attention weights are not shares of the output. Lower is
    better.

    Misleads when: used as a measure of faithfulness: any scores can be scaled to the right sum.
    """
    explanation = trial.explanation
    if explanation is None or not trial.signed:
        return math.nan
    base = explanation.base
    if base is None:
        value = "logit" if explanation.scalar == "centred" else explanation.scalar
        if value not in VALUES:
            return math.nan
        base = trial.game.empty(value)
    whole = explanation.value - base
    return abs(float(explanation.scores.sum()) - whole) / abs(whole) if whole else math.nan


on_sets = partial(perturbation, cost_text="50 forwards, the same for every method")


def sets_away(trial: Trial, *, sets: int = 50, share: float | None = None, **options: object) -> Array:
    """(1 + M, P) the whole, then without random sets of parts."""
    parts = len(trial.scores_P)
    return np.concatenate([np.ones((1, parts), dtype=bool), ~random_sets(parts, sets, share, trial.seed)])


@on_sets(paper="Bhatt, Weller & Moura 2020, arXiv:2005.00631", higher_is_better=True, masks=sets_away)
def faithfulness_correlation(
    trial: Trial, *, sets: Count = 50, share: Share | None = None, value: Value = "probability"
) -> float:
    """Correlation of the summed scores of random feature sets with the fall of the prediction without them.

    corr_S(Σ_{i∈S} w_i, p(x) - p(x without S)) over ``sets`` sets, each of a ``share`` of the features as in the paper,
    or (None) of any size; infidelity then uses the same sets. NaN where one side does not vary. Higher is better.

    Misleads when: sets of any size are drawn and all scores are positive: larger sets then have both a larger sum and a
    larger effect, so even random scores correlate. Compare with random.
    """
    # NOTE[DIFF] the paper draws sets of one size; share=0.2 does.
    present = sets_away(trial, sets=sets, share=share)
    falls_M = falls(trial, present, value)
    sums_M = (~present[1:]) @ np.asarray(trial.scores_P, dtype=float)
    if np.ptp(sums_M) == 0 or np.ptp(falls_M) == 0:
        return float("nan")
    return float(np.corrcoef(sums_M, falls_M)[0, 1])


@on_sets(
    paper="Cohen-Wang et al. 2024 (ContextCite), arXiv:2409.00729; Park et al. 2023, arXiv:2303.14186",
    higher_is_better=True,
    masks=lambda trial, sets=50, share=0.5, **options: sets_away(trial, sets=sets, share=share)[1:],
)
def linear_surrogate(trial: Trial, *, sets: Count = 50, share: Share = 0.5, value: Value = "logit") -> float:
    """Rank correlation of the summed scores of the kept features with the output, over random halves.

    Spearman_S(Σ_{i∈S} w_i, f(x with S alone)) over ``sets`` sets without a ``share`` of the features: the linear
    datamodeling score. For answers of language models f is the answer's log-probability. NaN where one side does not
    vary. Higher is better.

    Misleads when: few features matter: most halves then contain some of them, and ranks vary by chance.
    """
    # NOTE[DIFF] the papers keep each part with a chance of one half; these sets all have one size.
    present = sets_away(trial, sets=sets, share=share)[1:]
    said_M, sums_M = trial.game.values(present, value), (present @ np.asarray(trial.scores_P, dtype=float)).round(12)
    if np.ptp(sums_M) == 0 or np.ptp(said_M) == 0:
        return float("nan")
    return float(spearmanr(sums_M, said_M).statistic)


def squared_error(scores_P: Array, changes_MP: Array, falls_M: Array, normalize: bool) -> float:
    """E_I[(β·Iᵀφ - (f(x) - f(x - I)))²], β = 1 or the factor that fits best, E[ab]/E[a²]."""
    foretold = changes_MP @ np.asarray(scores_P, dtype=float)
    if normalize:
        power = float((foretold**2).mean())
        foretold = foretold * (float((foretold * falls_M).mean()) / power) if power else foretold
    return float(((foretold - falls_M) ** 2).mean())


@on_sets(paper="Yeh et al. 2019, arXiv:1901.09392", higher_is_better=False, masks=sets_away)
def infidelity(
    trial: Trial, *, sets: Count = 50, share: Share | None = None, normalize: bool = True, value: Value = "logit"
) -> float:
    """Mean squared error of the scores as predictions of the fall of the output without random feature sets.

    E_S[(β Σ_{i∈S} w_i - (f(x) - f(x without S)))²]: the perturbation of a removed feature is 1, which fits scores that
    contain the whole effect of a feature (input × gradient, Shapley values), not plain gradients. ``normalize``: β is
    the best-fitting factor, because attention has no unit; False uses the scores as they are. Lower is better.

    Misleads when: inputs with a large output range dominate the mean over inputs.
    """
    present = sets_away(trial, sets=sets, share=share)
    return squared_error(trial.scores_P, (~present[1:]).astype(float), falls(trial, present, value), normalize)


def groups_of(scores_P: Array, groups: int) -> list[Array]:
    """Return the features from the highest score to the lowest, in groups whose sizes differ by one at most."""
    return np.array_split(order_of(scores_P), min(groups, len(scores_P)))


def groups_away(trial: Trial, *, groups: int = 10, **options: object) -> Array:
    """(1 + K, P) the whole, then without each group of parts."""
    members = groups_of(trial.scores_P, groups)
    present = np.ones((1 + len(members), len(trial.scores_P)), dtype=bool)
    for row, parts in enumerate(members, 1):
        present[row, parts] = False
    return present


@perturbation(
    paper="Wu et al. 2024 (CVPR), arXiv:2404.01415",
    higher_is_better=True,
    cost_text="1 forward per group, 10 of them",
    masks=groups_away,
)
def saco(trial: Trial, *, groups: Annotated[int, Limits(2, 10**6)] = 10, value: Value = "probability") -> float:
    """Whether feature groups with higher scores matter more; pairs are weighted by the difference of scores.

    Features are split into K groups G_1, …, G_K by descending score; ∇_i is the fall of the prediction without G_i.
    SaCo = Σ_{i<j} ±(s_i - s_j) / Σ_{i<j} (s_i - s_j), + where ∇_i > ∇_j, - where ∇_i < ∇_j, 0 where they are equal; s_i
    is the mean score of G_i. From -1 to 1; 0 is chance; higher is better. The sizes of scores count, not only their
    order. NaN where all groups have the same score.

    Misleads when: features are redundant: only one group is removed at a time. With fewer features than groups, each
    feature is a group. Transformations that keep the order of the scores (squares, softmax) change the value.
    """
    # NOTE[DIFF] the paper sums the scores of pixels over groups of one size; here groups are of units and may differ by
    # one, so s_i is the mean, which for groups of one size gives the same coefficient. The paper counts ∇_i = ∇_j as
    # right: a model that stays as sure whatever goes would give 1 to every method, to random scores as well.
    members = groups_of(trial.scores_P, groups)
    falls_K = falls(trial, groups_away(trial, groups=groups), value)
    scores_K = np.array([np.asarray(trial.scores_P, dtype=float)[parts].mean() for parts in members])
    first, second = np.triu_indices(len(members), 1)
    apart = scores_K[first] - scores_K[second]
    if not apart.sum() > 0:
        return float("nan")
    return float((np.sign(falls_K[first] - falls_K[second]) * apart).sum() / apart.sum())
