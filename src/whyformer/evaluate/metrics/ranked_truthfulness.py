"""Ranked faithful truthfulness (RFT): truthfulness in which the first of a ranking counts most."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.evaluate.metrics.truthfulness import agreement, masks
from whyformer.evaluate.trial import Trial
from whyformer.registry import metric

Array = np.ndarray[Any, Any]


def ranks(scores_MP: Array) -> Array:
    """(M, P) rank by size, 1 = largest |w|; parts that tie share the worst rank."""
    sizes = np.abs(np.asarray(scores_MP, dtype=float))
    # The worst rank of a tie is the number of parts that are at least as large.
    ascending = np.sort(sizes, axis=-1)
    count = sizes.shape[-1]
    smaller = np.stack([np.searchsorted(row, own, side="left") for row, own in zip(ascending, sizes, strict=True)])
    return count - smaller


def ranked(scores_MP: Array, drops_P: Array, signed: bool) -> Array:
    """(M,) RFT of many rankings of one input."""
    return (agreement(scores_MP, drops_P, signed) / ranks(scores_MP)).sum(-1)


@metric(
    paper="Mylonas, Mollas & Tsoumakas 2022 (Optimus), arXiv:2209.10876",
    kind="faithfulness",
    higher_is_better=True,
    needs={"perturbation"},
    cost_text="(parts + 1) forwards",
    masks=masks,
    ceiling="leave_one_out",
)
def ranked_truthfulness(trial: Trial, *, value: str = "probability") -> float:
    """Whether the parts whose absence changes the prediction most come first, with the right sign.

    RFT = Σ_i sign(w_i) d_i / rank_i, rank 1 = largest |w_i|, parts that tie share the worst rank.

    Misleads when: parts back each other up: it takes one part away at a time. Leave-one-out scores win it by
    construction, so a method must not be both chosen and praised by it.
    """
    return float(ranked(np.asarray(trial.scores_P)[None], trial.game.drops(value), trial.signed)[0])
