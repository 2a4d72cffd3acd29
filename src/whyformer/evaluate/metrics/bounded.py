"""Random removal that never takes much: F-Fidelity, on the model itself or on a copy fine-tuned on masked inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np

from whyformer.engines.perturbation.ranking import count_of, order_of
from whyformer.evaluate.metrics.faithfulness import Fractions, Value
from whyformer.evaluate.trial import Trial
from whyformer.parameters import Count, Limits
from whyformer.registry import metric

Array = np.ndarray[Any, Any]

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


@metric(
    paper="Zheng et al. 2025 (ICLR), arXiv:2410.02970",
    kind="faithfulness",
    higher_is_better=True,
    needs={"perturbation"},
    cost_text="10 forwards per size of the explanation, 5 of them",
    masks=partial(drawn_away, inside=True),
    ceiling="remove",
    on_surrogate=True,
)
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


@metric(
    paper="Zheng et al. 2025 (ICLR), arXiv:2410.02970",
    kind="faithfulness",
    higher_is_better=False,
    needs={"perturbation"},
    cost_text="10 forwards per size of the explanation, 5 of them",
    masks=partial(drawn_away, inside=False),
    ceiling="keep",
    on_surrogate=True,
)
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
