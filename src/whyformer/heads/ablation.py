"""Ablation: take a head away, or leave it alone in its layer, and see what the score loses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whyformer.heads.score import score_of
from whyformer.heads.visit import gated
from whyformer.run import Run


def ablation(
    run: Run, open_LH: Tensor, heads: list[tuple[int, int]], labels: list[Any] | None, keep_one: bool
) -> Tensor:
    """(B, L, H) s(x) - s(x without the head), or the loss that taking it away adds; NaN where there is no head.

    keep_one: take all other heads of the layer away instead ("all but one").
    """
    everyone = list(range(run.batch.size))
    sign = -1 if labels is not None else 1
    with torch.no_grad():
        if labels is None:
            whole = run.value_B
        else:
            whole = score_of(run, run.logits, None, labels)
    result = torch.full((run.batch.size, *open_LH.shape), torch.nan)
    variants = [(row, layer, head) for layer, head in heads for row in everyone]
    step = max(run.batch_size, run.batch.size)
    for start in run.track(range(0, len(variants), step), "ablating heads"):
        chunk = variants[start : start + step]
        rows = [row for row, _, _ in chunk]
        gates = open_LH.repeat(len(chunk), 1, 1)
        for i, (_, layer, head) in enumerate(chunk):
            gates[i, layer, head] = 0
            if keep_one:
                gates[i, layer] = 1 - gates[i, layer]
        own = None if labels is None else [labels[row] for row in rows]
        with torch.no_grad():
            score = score_of(run, gated(run, rows, gates), rows, own)
        for (row, layer, head), value in zip(chunk, score.tolist(), strict=True):
            result[row, layer, head] = sign * (float(whole[row]) - value)
    return result
