"""Faithfulness: does the model's answer change as the scores say when parts of the input are taken away?"""

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
    """(M - 1,) how far the value falls from that of the first variant, which is the whole input."""
    values_M = trial.game.values(present_MP, value)
    return values_M[0] - values_M[1:]


# Curves: parts go, or come, in the order of their scores.


@perturbation(
    paper="Samek et al. 2017, arXiv:1509.06321",
    higher_is_better=True,
    cost_text="20 forwards",
    masks=lambda trial, fractions=FRACTIONS, **options: top_away(trial, fractions=(0.0, *fractions)),
    ceiling="remove",
)
def aopc(trial: Trial, *, fractions: Fractions = FRACTIONS, value: Value = "probability") -> float:
    """The mean fall of the prediction while parts are taken away from the highest score to the lowest.

    1/(L+1) Σ_{k=0..L} (p(x) - p(x without the top k)), k = 0, 5, …, 100 % of the parts.

    Misleads when: used alone on inputs whose prediction does not depend on any part; and the second half of the curve,
    where hardly anything is left, counts as much as the first.
    """
    return float(falls(trial, top_away(trial, fractions=(0.0, *fractions)), value).mean())


@rise(higher_is_better=False, masks=top_away, ceiling="remove")
def deletion(trial: Trial, *, fractions: Fractions = FRACTIONS, value: Value = "probability") -> float:
    """Area under the prediction while parts are taken away from the highest score to the lowest.

    Trapezoids over 0, 5, …, 100 % of the parts, as a share of the width. Low is good.

    Misleads when: what is put in place (grey, mask) is itself evidence for or against the class.
    """
    # NOTE[DIFF] the authors take pixels away one row's worth at a time; here whole units (patches, tokens, columns).
    return area(trial.game.values(top_away(trial, fractions=fractions), value), fractions)


@rise(higher_is_better=True, masks=top_kept, ceiling="keep")
def insertion(trial: Trial, *, fractions: Fractions = FRACTIONS, value: Value = "probability") -> float:
    """Area under the prediction while parts are put in from the highest score to the lowest, beginning with none.

    Trapezoids over 0, 5, …, 100 % of the parts, as a share of the width. High is good.

    Misleads when: the model is sure of an empty input already.
    """
    # NOTE[DIFF] the authors begin insertion with a blurred image and deletion ends in grey; here one replacement
    # serves both, so that the variants are shared (replace="blur" gives the authors' insertion).
    return area(trial.game.values(top_kept(trial, fractions=fractions), value), fractions)


# The decision along such a curve: how long it holds while the most, or the least, important parts go.


@chefer(higher_is_better=False, masks=partial(top_away, fractions=STEPS), ceiling="remove")
def positive_perturbation(trial: Trial, *, fractions: Fractions = STEPS) -> float:
    """How long the decision holds while parts are taken away from the highest score to the lowest.

    Area under "is the target still predicted?" over 0, 10, …, 90 % of the parts; its mean over inputs is the area
    under the accuracy curve. Low is good. Pass the true labels as ``target`` for accuracy against labels.

    Misleads when: decisions flip at chance; a curve of probabilities (deletion) says more about few inputs.
    """
    return area(trial.game.stays(top_away(trial, fractions=fractions)), fractions)


@chefer(higher_is_better=True, masks=partial(bottom_away, fractions=STEPS), ceiling="keep")
def negative_perturbation(trial: Trial, *, fractions: Fractions = STEPS) -> float:
    """How long the decision holds while parts are taken away from the lowest score to the highest.

    Area under "is the target still predicted?" over 0, 10, …, 90 % of the parts. High is good.

    Misleads when: the model says the target of an empty input anyway.
    """
    return area(trial.game.stays(bottom_away(trial, fractions=fractions)), fractions)


# ERASER: what was called important, taken away or left alone.


def average(falls_F: Array, rule: str) -> float:
    """Over the bins: their mean (the authors' code), or their sum over one more (the paper counts k = 0 as well)."""
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
    """How far the prediction falls when the parts with the highest scores are taken away.

    mean over bins k of p(x) - p(x without the top k), k = 1, 5, 10, 20, 50 % of the parts, rounded up.
    ``average_as="paper"`` divides by one bin more (k = 0), as the paper writes; the authors' code takes the plain mean.

    Misleads when: what is left is no text or picture that the model has ever seen; then anything may fall.
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
    """How far the prediction falls when nothing but the parts with the highest scores is kept.

    mean over bins k of p(x) - p(the top k alone), k = 1, 5, 10, 20, 50 % of the parts, rounded up. Low is good; below
    zero, the model is surer of the few parts than of the whole.

    Misleads when: the model says this class of an empty input anyway: then everything is sufficient.
    """
    return average(falls(trial, top_kept(trial, fractions=(1.0, *bins)), value), average_as)


# Truthfulness: do the signs, and the ranks, of the scores agree with what happens without each part?

optimus = partial(
    perturbation,
    paper="Mylonas, Mollas & Tsoumakas 2022 (Optimus), arXiv:2209.10876",
    higher_is_better=True,
    cost_text="(parts + 1) forwards",
    masks=lambda trial, **options: leave_one_out(len(trial.scores_P)),
    ceiling="leave_one_out",
)


def agreement(scores_MP: Array, drops_P: Array, signed: bool) -> Array:
    """(M, P) s_i d_i; a part that a signed method calls neutral costs |d_i|."""
    if not signed:  # all parts count as positive; the authors scale attention to 1e-7…1, so that none is neutral
        return np.broadcast_to(drops_P, np.shape(scores_MP)).astype(float)
    signs = np.sign(scores_MP)
    return np.where(signs == 0, -np.abs(drops_P), signs * drops_P)


@optimus()
def truthfulness(trial: Trial, *, value: Value = "probability") -> float:
    """Whether the sign of each score agrees with how the prediction changes without that part.

    FT = Σ_i sign(w_i) d_i, d_i = p(x) - p(x without i); a neutral part (w_i = 0) counts as -|d_i|. Ranks play no role.

    Misleads when: methods without signs are compared by it: they all say "positive" everywhere and get the same value.
    """
    return float(agreement(trial.scores_P, trial.game.drops(value), trial.signed).sum())


def ranks(scores_MP: Array) -> Array:
    """(M, P) rank by size, 1 = largest |w|; parts that tie share the worst rank."""
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
    """Whether the parts whose absence changes the prediction most come first, with the right sign.

    RFT = Σ_i sign(w_i) d_i / rank_i, rank 1 = largest |w_i|, parts that tie share the worst rank.

    Misleads when: parts back each other up: it takes one part away at a time. Leave-one-out scores win it by
    construction, so a method must not be both chosen and praised by it.
    """
    return float(ranked(np.asarray(trial.scores_P)[None], trial.game.drops(value), trial.signed)[0])


# Completeness: do the scores add up to what is explained?


@perturbation(
    paper="Sundararajan, Taly & Yan 2017, arXiv:1703.01365",
    higher_is_better=False,
    cost_text="1 forward",
    masks=lambda trial: np.zeros((1, len(trial.scores_P)), dtype=bool),
)
def completeness(trial: Trial) -> float:
    """The gap between the sum of the scores and what they should add up to, relative to it.

    |Σφ - (s(x) - s₀)| / |s(x) - s₀|; s₀ is the value at the method's own background where it has one, else that of the
    input with all parts taken away. For signed methods only: attention is no share of a score. Low is good.

    Misleads when: taken for faithfulness: any scores can be scaled to add up.
    """
    explanation = trial.explanation
    if explanation is None or not trial.signed:
        return math.nan
    base = explanation.base
    if base is None:
        if explanation.scalar not in VALUES:
            return math.nan
        base = trial.game.empty(explanation.scalar)
    whole = explanation.value - base
    return abs(float(explanation.scores.sum()) - whole) / abs(whole) if whole else math.nan


# Random sets of parts: do the scores foretell what happens without them?

on_sets = partial(perturbation, cost_text="50 forwards, the same for every method")


def sets_away(trial: Trial, *, sets: int = 50, share: float | None = None, **options: object) -> Array:
    """(1 + M, P) the whole, then without random sets of parts."""
    parts = len(trial.scores_P)
    return np.concatenate([np.ones((1, parts), dtype=bool), ~random_sets(parts, sets, share, trial.seed)])


@on_sets(paper="Bhatt, Weller & Moura 2020, arXiv:2005.00631", higher_is_better=True, masks=sets_away)
def faithfulness_correlation(
    trial: Trial, *, sets: Count = 50, share: Share | None = None, value: Value = "probability"
) -> float:
    """Correlation of the summed scores of random sets of parts with the fall of the prediction without them.

    corr_S(Σ_{i∈S} w_i, p(x) - p(x without S)) over ``sets`` sets, of a ``share`` of the parts as in the paper, or
    (None) of any size, which are then the sets of infidelity, too. NaN where one side does not vary.

    Misleads when: sets of any size are drawn and all scores are positive: larger sets then score more and matter more,
    which is worth some correlation already. Compare with random.
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
    """Rank correlation of the summed scores of what is there with what the model says then, over random halves.

    Spearman_S(Σ_{i∈S} w_i, f(x with S alone)) over ``sets`` sets that lack a ``share`` of the parts: the linear
    datamodeling score. For answers of language models f is the answer's log-probability. NaN where one side does not
    vary.

    Misleads when: few parts matter: most halves then hold some of them, and ranks tell little.
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
    """Mean squared error of the scores as a forecast of how the output falls when random sets of parts go.

    E_S[(β Σ_{i∈S} w_i - (f(x) - f(x without S)))²]: the perturbation of a part that goes is 1, which fits scores that
    share out the whole effect of a part (input × gradient, Shapley values), not plain gradients. ``normalize``: β is
    the factor that fits best, since attention has no unit; False takes the scores as they are. Low is good.

    Misleads when: inputs with a large output range dominate the mean over inputs.
    """
    present = sets_away(trial, sets=sets, share=share)
    return squared_error(trial.scores_P, (~present[1:]).astype(float), falls(trial, present, value), normalize)


# Groups of parts: does the group with the higher scores matter more?


def groups_of(scores_P: Array, groups: int) -> list[Array]:
    """The parts from the highest score to the lowest, cut into groups whose sizes differ by one at most."""
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
    """Whether groups of parts with higher scores matter more, each pair of groups weighted by how far scores differ.

    Parts are cut into K groups G_1, …, G_K by falling score; ∇_i is the fall of the prediction without G_i alone.
    SaCo = Σ_{i<j} ±(s_i - s_j) / Σ_{i<j} (s_i - s_j), + where ∇_i > ∇_j, - where ∇_i < ∇_j, 0 where they are equal; s_i
    is the mean score of G_i. From -1 to 1, 0 is chance. The scores themselves count, not their order alone: a method
    that calls a difference large must be right about it. NaN where all groups have one score.

    Misleads when: there are fewer parts than groups (then each part is one), and when parts back each other up: a group
    goes while all others stay. Other transformations of the same order (squares, softmax) change it.
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
