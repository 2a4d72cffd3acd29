"""F-Fidelity and IDSDS: few features are removed, on the model itself or on a copy fine-tuned on masked inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import numpy as np
from scipy.stats import spearmanr

from whyformer.engines.perturbation.players import count_of, leave_one_out, order_of
from whyformer.evaluate.candidate import Trial
from whyformer.evaluate.metrics.faithfulness import Fractions, Value, perturbation
from whyformer.parameters import Count, Limits
from whyformer.shapes import Array

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


@perturbation(
    paper="Hesse, Schaub-Meyer & Roth 2024 (IDSDS, NeurIPS), arXiv:2407.11910",
    higher_is_better=True,
    cost_text="(features + 1) forwards",
    masks=lambda trial, **options: leave_one_out(len(trial.scores_P)),
    ceiling="leave_one_out",
    on_surrogate=True,
)
def single_deletion(trial: Trial, *, value: Value = "probability") -> float:
    """Rank correlation of the scores with the falls of the prediction when one feature alone is masked.

    Spearman_i(w_i, p(x) - p(x without i)), from -1 to 1; 0 is chance; higher is better. NaN where all scores or all
    falls are equal. p is the model's own, unless ``compare(surrogate=…)`` is a copy that was fine-tuned on masked
    inputs (``wf.masked_surrogate``): to it they are not unusual.

    Misleads when: features are redundant: only one is masked at a time. Without a copy, leave-one-out scores are best
    by construction.
    """
    # NOTE[DIFF] the paper uses the logit (value="logit"), and scores of the copy: compare(copy.model, …).
    falls_P = (trial.surrogate or trial.game).drops(value)
    if np.ptp(trial.scores_P) == 0 or np.ptp(falls_P) == 0:
        return float("nan")
    return float(spearmanr(trial.scores_P, falls_P).statistic)
