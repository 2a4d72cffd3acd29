"""Random scores: the floor that every method has to beat."""

from __future__ import annotations

import torch

from whyformer.registry import constant, method
from whyformer.run import Attribution, Run


@method(
    paper="a baseline, no paper",
    needs=set(),
    cost=constant(1, 0),
    cost_text="1 forward",
    signed=False,
    class_specific=False,
    specificity="black box",
)
def random(run: Run) -> Attribution:
    """Numbers drawn from a seeded generator, one per unit, that know nothing of the model.

    Misleads always; a method that does not beat it on a faithfulness metric explains nothing there.
    """
    keep_BN = run.keep_BN
    scores = torch.zeros(keep_BN.shape)
    for row, keep in enumerate(keep_BN.cpu()):
        # Each input draws its own stream, so that neither batch nor padding changes its scores.
        generator = torch.Generator().manual_seed(run.seed)
        scores[row, keep] = torch.rand(int(keep.sum()), generator=generator)
    return Attribution(scores.to(keep_BN.device))
