"""Slopes: is the gradient that was recorded at the attention maps the slope of the score?

What runs out of autograd's sight (a torch.autograd.Function with a backward of its own, re-entrant checkpointing,
``detach()``) leaves maps without a gradient, or with a part of it. So all maps are changed a little in one random
direction, and the change of the score is held to what the recorded gradients say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from whyformer.capture.roles import Rewrite
from whyformer.errors import CaptureError
from whyformer.types import Record

Changed = Callable[[Rewrite], Tensor]  # (B,) scores with every map rewritten
STEPS = (2.0**-8, 2.0**-5, 2.0**-11)  # by how much of itself a map is changed
TOLERANCE = 0.02  # of what all maps say together
NOISE = 16  # roundings, of which a score may collect as many
UNSTEADY = 0.2  # by how much of itself a slope may change with the step and still be one

JUMPS = (
    "the score jumps close to where gradients were first taken (experts or positions that the model picks), so that "
    "gradients of attention could not be held to measured slopes: they hold between two jumps at most."
)

REMEDY = (
    "Part of the model runs out of autograd's sight: a torch.autograd.Function with a backward of its own, re-entrant "
    "gradient checkpointing, detach() or no_grad(). Turn checkpointing off (model.gradient_checkpointing_disable(), or "
    "use_reentrant=False) or write the function out in plain torch; or use a method that needs no gradients of "
    "attention (attention_rollout, occlusion)."
)


def require_slopes(maps: Record, score_B: Tensor, changed: Changed, shared: bool = False) -> tuple[int, str]:
    """Refuse gradients that are not the slope of ``score_B``; how many passes that took, and what is left to say.

    shared: the scores are of one row, run once.
    """
    rows = slice(0, 1 if shared else None)
    directions = [_direction(site.attention_BHQK[rows], number) for number, site in enumerate(maps.sites)]
    said = [
        float((site.attention_grad_BHQK.double() * site.attention_BHQK.double() * direction).sum())
        for site, direction in zip(maps.sites, directions, strict=True)
        if site.attention_grad_BHQK is not None
    ]
    noise = NOISE * torch.finfo(maps.logits.dtype).eps * (float(maps.logits.abs().max()) + 1) * len(score_B) ** 0.5

    def moved(step: float) -> float:
        def rewrite(layer: int, first: int, attention_BHQK: Tensor) -> Tensor:
            direction = directions[layer][:, first : first + attention_BHQK.shape[1]]
            return attention_BHQK * (1 + step * direction).to(attention_BHQK.dtype)

        return float(changed(rewrite).double().sum())

    whole, size = sum(said), sum(map(abs, said))

    def agrees(slope: float, step: float) -> bool:
        return abs(slope - whole) <= TOLERANCE * size + noise / step

    slope = (moved(STEPS[0]) - float(score_B.double().sum())) / STEPS[0]
    if agrees(slope, STEPS[0]):
        return 1, ""
    slopes: list[float] = []
    for step in STEPS:  # a bend of the model, or one of its choices, may lie within one step, not within all
        slopes.append((moved(step) - moved(-step)) / (2 * step))
        if agrees(slopes[-1], step):
            return 1 + 2 * len(slopes), ""
    if max(slopes) - min(slopes) > UNSTEADY * max(map(abs, slopes)) + noise / min(STEPS):
        return 1 + 2 * len(slopes), JUMPS
    slope = slopes[0]
    raise CaptureError(
        f"the gradients recorded at the attention maps are not the slope of the score ({whole:.3g} where {slope:.3g} "
        f"was measured), so that maps weighted by them would be wrong. {REMEDY}"
    )


def require_reached(maps: Record, score_B: Tensor, changed: Changed, lost: Collection[int]) -> int:
    """Refuse maps without a path to the score that change it all the same; how many passes that took.

    lost: numbers of the sites of ``maps`` whose gradient autograd does not know. A map that nobody reads has none.
    """

    def rewrite(layer: int, first: int, attention_BHQK: Tensor) -> Tensor:
        return attention_BHQK * 0.5 if layer in lost else attention_BHQK

    if torch.equal(changed(rewrite), score_B):
        return 1
    paths = ", ".join(dict.fromkeys(maps.sites[i].path or "the model itself" for i in sorted(lost)))
    raise CaptureError(
        f"the attention of {paths} reaches the score, and autograd knows no way from there, so that its gradient would "
        f"be recorded as zero. {REMEDY}"
    )


def _direction(like: Tensor, seed: int) -> Tensor:
    """Random numbers of one sign, so that a change does not average out over a large map."""
    generator = torch.Generator().manual_seed(seed)
    sign = 1 if torch.rand((), generator=generator) < 0.5 else -1
    return sign * (torch.rand(like.shape, generator=generator, dtype=torch.float64) + 0.5).to(like.device)
