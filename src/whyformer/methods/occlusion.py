"""Occlusion: take one unit away at a time."""

from __future__ import annotations

from typing import Any

import torch

from whyformer.registry import Passes, method
from whyformer.run import Attribution, Run


def _cost(units: int, **options: object) -> Passes:
    return units + 1, 0


@method(
    paper="Zeiler & Fergus 2014, arXiv:1311.2901; leave-one-out: Li, Monroe & Jurafsky 2016, arXiv:1612.08220",
    needs={"perturbation"},
    cost=_cost,
    cost_text="(units + 1) forwards",
    signed=True,
    class_specific=True,
    specificity="black box",
)
def occlusion(run: Run, *, replace: str | int | None = None) -> Attribution:
    """How much the score falls when a unit is taken away: r_i = s(x) - s(x without i).

    ``replace``: what stands in its place. Text: "mask", "unk", "pad", "delete", "attention_mask" or a token id;
    images: "mean", "zero", "blur"; floats: "zero", "mean". The default is the first of these that the model has.

    Misleads when: units back each other up (taking one of two synonyms away changes nothing) and when the model has
    never seen such gaps.
    """
    replacement: Any = replace if replace is not None else run.subject.replacements[0]
    scores = torch.zeros(run.keep_BN.shape, dtype=torch.float32, device=run.keep_BN.device)
    values = run.value_B
    for row, units in enumerate(run.track(run.units, "occlusion")):
        variants = run.subject.without_unit(run.batch, row, units, replacement)
        drop = values[row] - run.score(variants, row).float()
        removable = torch.tensor(run.subject.removable(units), device=drop.device)
        scores[row, run.keep_BN[row].nonzero()[:, 0]] = torch.where(removable, drop, 0.0)
    return Attribution(scores)
