"""Faithfulness: does the model's answer change as the scores say when parts of the input are taken away?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import numpy as np

from whyformer.engines.perturbation.game import VALUES
from whyformer.engines.perturbation.players import FRACTIONS, area, leave_one_out, only_top, without_bottom, without_top
from whyformer.errors import one_of
from whyformer.evaluate.candidate import Trial
from whyformer.parameters import NotEmpty, OneOf, Share
from whyformer.registry import metric
from whyformer.shapes import Array

BINS = (0.01, 0.05, 0.1, 0.2, 0.5)  # ERASER's
STEPS = tuple(i / 10 for i in range(10))  # 0, 10, …, 90 %
AVERAGES = ("code", "paper")
Fractions = Annotated[Sequence[Share], NotEmpty()]
Value = Annotated[str, OneOf(*VALUES)]
perturbation = partial(metric, kind="faithfulness", needs={"perturbation"})  # metrics that run variants of the input

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


def each_away(trial: Trial, **options: object) -> Array:
    """(1 + P, P) the whole, then without each part."""
    return leave_one_out(len(trial.scores_P))


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


@perturbation(
    paper="Petsiuk, Das & Saenko 2018 (RISE), arXiv:1806.07421",
    higher_is_better=False,
    cost_text="20 forwards",
    masks=top_away,
    ceiling="remove",
)
def deletion(trial: Trial, *, fractions: Fractions = FRACTIONS, value: Value = "probability") -> float:
    """Area under the prediction while parts are taken away from the highest score to the lowest.

    Trapezoids over 0, 5, …, 100 % of the parts, as a share of the width. Low is good.

    Misleads when: what is put in place (grey, mask) is itself evidence for or against the class.
    """
    # NOTE[DIFF] the authors take pixels away one row's worth at a time; here whole units (patches, tokens, columns).
    return area(trial.game.values(top_away(trial, fractions=fractions), value), fractions)


@perturbation(
    paper="Petsiuk, Das & Saenko 2018 (RISE), arXiv:1806.07421",
    higher_is_better=True,
    cost_text="20 forwards",
    masks=top_kept,
    ceiling="keep",
)
def insertion(trial: Trial, *, fractions: Fractions = FRACTIONS, value: Value = "probability") -> float:
    """Area under the prediction while parts are put in from the highest score to the lowest, beginning with none.

    Trapezoids over 0, 5, …, 100 % of the parts, as a share of the width. High is good.

    Misleads when: the model is sure of an empty input already.
    """
    # NOTE[DIFF] the authors begin insertion with a blurred image and deletion ends in grey; here one replacement
    # serves both, so that the variants are shared (replace="blur" gives the authors' insertion).
    return area(trial.game.values(top_kept(trial, fractions=fractions), value), fractions)


# The decision along such a curve: how long it holds while the most, or the least, important parts go.


@perturbation(
    paper="Chefer, Gur & Wolf 2021 (CVPR), arXiv:2012.09838",
    higher_is_better=False,
    cost_text="9 forwards",
    masks=partial(top_away, fractions=STEPS),
    ceiling="remove",
)
def positive_perturbation(trial: Trial, *, fractions: Fractions = STEPS) -> float:
    """How long the decision holds while parts are taken away from the highest score to the lowest.

    Area under "is the target still predicted?" over 0, 10, …, 90 % of the parts; its mean over inputs is the area
    under the accuracy curve. Low is good. Pass the true labels as ``target`` for accuracy against labels.

    Misleads when: decisions flip at chance; a curve of probabilities (deletion) says more about few inputs.
    """
    return area(trial.game.stays(top_away(trial, fractions=fractions)), fractions)


@perturbation(
    paper="Chefer, Gur & Wolf 2021 (CVPR), arXiv:2012.09838",
    higher_is_better=True,
    cost_text="9 forwards",
    masks=partial(bottom_away, fractions=STEPS),
    ceiling="keep",
)
def negative_perturbation(trial: Trial, *, fractions: Fractions = STEPS) -> float:
    """How long the decision holds while parts are taken away from the lowest score to the highest.

    Area under "is the target still predicted?" over 0, 10, …, 90 % of the parts. High is good.

    Misleads when: the model says the target of an empty input anyway.
    """
    return area(trial.game.stays(bottom_away(trial, fractions=fractions)), fractions)


# ERASER: what was called important, taken away or left alone.


def average(falls_F: Array, rule: str) -> float:
    """Over the bins: their mean (the authors' code), or their sum over one more (the paper counts k = 0 as well)."""
    one_of("average", rule, AVERAGES)
    return float(falls_F.sum() / (len(falls_F) + (rule == "paper")))


@perturbation(
    paper="DeYoung et al. 2020 (ERASER), arXiv:1911.03429",
    higher_is_better=True,
    cost_text="1 forward per bin",
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


@perturbation(
    paper="DeYoung et al. 2020 (ERASER), arXiv:1911.03429",
    higher_is_better=False,
    cost_text="1 forward per bin",
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


def agreement(scores_MP: Array, drops_P: Array, signed: bool) -> Array:
    """(M, P) s_i d_i; a part that a signed method calls neutral costs |d_i|.

    An unsigned method says "how much", never "against": all of its parts count as positive (the authors scale
    attention to between 1e-7 and 1, so that none is neutral).
    """
    if not signed:
        return np.broadcast_to(drops_P, np.shape(scores_MP)).astype(float)
    signs = np.sign(scores_MP)
    return np.where(signs == 0, -np.abs(drops_P), signs * drops_P)


@perturbation(
    paper="Mylonas, Mollas & Tsoumakas 2022 (Optimus), arXiv:2209.10876",
    higher_is_better=True,
    cost_text="(parts + 1) forwards",
    masks=each_away,
    ceiling="leave_one_out",
)
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


@perturbation(
    paper="Mylonas, Mollas & Tsoumakas 2022 (Optimus), arXiv:2209.10876",
    higher_is_better=True,
    cost_text="(parts + 1) forwards",
    masks=each_away,
    ceiling="leave_one_out",
)
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
