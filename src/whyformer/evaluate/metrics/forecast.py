"""Scores as a forecast: of what happens without random sets of parts, and of which group of parts matters more."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from scipy.stats import spearmanr

from whyformer.engines.perturbation.players import order_of, random_sets
from whyformer.evaluate.candidate import Trial
from whyformer.evaluate.metrics.faithfulness import Value, falls, perturbation
from whyformer.parameters import Count, Limits, Share, Weight
from whyformer.registry import metric
from whyformer.shapes import Array

# Judged by the scores alone: how steady they are under small changes of the input, and how few parts carry them.


@metric(
    paper="Yeh et al. 2019, arXiv:1901.09392",
    kind="robustness",
    higher_is_better=False,
    needs={"explaining_again"},
    cost_text="10 × the method's own",
)
def max_sensitivity(trial: Trial, *, radius: Weight = 0.02, samples: Count = 10) -> float:
    """The largest relative change of the scores among inputs with a little noise.

    max_k ‖φ(x + δ_k) - φ(x)‖ / ‖φ(x)‖, δ uniform in ±radius times the spread (standard deviation) of the input's
    numbers: pixels, columns, or word embeddings. Low is good.

    Misleads when: taken for faithfulness: constant scores are the least sensitive of all.
    """
    if trial.again is None:
        return float("nan")
    scores = np.asarray(trial.scores_P, dtype=float)
    size = float(np.linalg.norm(scores))
    if size == 0:
        return float("nan")
    return max(float(np.linalg.norm(trial.again(draw, radius) - scores)) for draw in range(samples)) / size


@metric(
    paper="Gini index, as in Chalasani et al. 2020, arXiv:1810.06583",
    kind="complexity",
    higher_is_better=True,
    needs=set(),
    cost_text="none",
)
def sparsity(trial: Trial) -> float:
    """Gini index of the sizes of the scores: 0 where all are equal, near 1 where one part has everything.

    Σ_i (2i - n - 1) |φ|_(i) / (n Σ|φ|) with sizes in ascending order.

    Misleads when: taken for quality: a wrong map can be as sparse as a right one.
    """
    sizes = np.sort(np.abs(np.asarray(trial.scores_P, dtype=float)))
    total, count = float(sizes.sum()), len(sizes)
    if total == 0:
        return float("nan")
    return float(((2 * np.arange(1, count + 1) - count - 1) * sizes).sum() / (count * total))


# Random sets of parts: do the scores foretell what happens without them?


def sets_away(trial: Trial, *, sets: int = 50, share: float | None = None, **options: object) -> Array:
    """(1 + M, P) the whole, then without random sets of parts."""
    parts = len(trial.scores_P)
    return np.concatenate([np.ones((1, parts), dtype=bool), ~random_sets(parts, sets, share, trial.seed)])


@perturbation(
    paper="Bhatt, Weller & Moura 2020, arXiv:2005.00631",
    higher_is_better=True,
    cost_text="50 forwards, the same for every method",
    masks=sets_away,
)
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


@perturbation(
    paper="Cohen-Wang et al. 2024 (ContextCite), arXiv:2409.00729; Park et al. 2023, arXiv:2303.14186",
    higher_is_better=True,
    cost_text="50 forwards, the same for every method",
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


@perturbation(
    paper="Yeh et al. 2019, arXiv:1901.09392",
    higher_is_better=False,
    cost_text="50 forwards, the same for every method",
    masks=sets_away,
)
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
