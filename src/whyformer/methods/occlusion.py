"""Occlusion: take one unit away at a time."""

from __future__ import annotations

from typing import Any

import torch

from whyformer.engines.perturbation.variants import other_replacements, used_replacement
from whyformer.inputs.streams import without_each
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
    images: "mean", "zero", "blur"; vectors: "zero", "mean" (their own); tables: "zero", or "mean" with
    Table(reference=…). The default is the first of these that the model has. With several streams each takes what it
    has; image tokens inside a text are taken away in the picture.

    Misleads when: units back each other up (taking one of two synonyms away changes nothing) and when the model has
    never seen such gaps.
    """
    replacement: Any = replace if replace is not None else run.modality.replacements[0]
    scores = torch.zeros(run.keep_BN.shape, dtype=torch.float32, device=run.keep_BN.device)
    values = run.value_B
    for row, units in enumerate(run.track(run.units, "occlusion")):
        # Queries of the model's own beside a single input (a learned query that pools) stay: their score is zero.
        if run.multi_stream and not run.modality.multi_input:
            found = run.score(without_each(run.modality, run.batch, row, units, replacement), row)
        else:
            parts = run.modality.variants(run.batch, row, units, replacement, run.batch_size)
            found = torch.cat([run.score(part, row) for part in parts])
        drop = values[row] - found.float()
        removable = torch.tensor(run.modality.removable(units), device=drop.device)
        scores[row, run.keep_BN[row].nonzero()[:, 0]] = torch.where(removable, drop, 0.0)
    remarks = [other_replacements(run, replacement)] * run.batch.size
    return Attribution(scores, warnings=remarks, used={"replace": used_replacement(run, replacement)})
