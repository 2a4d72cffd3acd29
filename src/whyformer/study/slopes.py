"""Slopes: is the gradient that was recorded, at the attention maps or at the input, the slope of the score?

What runs out of autograd's sight (a torch.autograd.Function with a backward of its own, re-entrant checkpointing,
``detach()``) leaves maps or inputs without a gradient, or with a part of it. So all of them are changed a little in one
random direction, and the change of the score is held to what the recorded gradients say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer.capture.roles import Rewrite
from whyformer.errors import CaptureError, NotOffered
from whyformer.types import Record

Changed = Callable[[Rewrite], Tensor]  # (B,) scores with every map rewritten
STEPS = (2.0**-8, 2.0**-5, 2.0**-11)  # by how much of itself a map is changed
TOLERANCE = 0.02  # of what all maps say together
NOISE = 16  # roundings, of which a score may collect as many
INPUT_SLOPES = ("input slopes",)  # among what a study was held to
UNSTEADY = 0.2  # by how much of itself a slope may change with the step and still be one

JUMPS = (
    "the score jumps close to where gradients were first taken (experts or positions that the model picks), so that "
    "they could not be held to measured slopes: they hold between two jumps at most."
)

REMEDY = (
    "Part of the model runs out of autograd's sight: a torch.autograd.Function with a backward of its own, re-entrant "
    "gradient checkpointing, detach() or no_grad(). Turn checkpointing off (model.gradient_checkpointing_disable(), or "
    "use_reentrant=False) or write the function out in plain torch."
)

NO_SLOPE = (
    "the gradients recorded at the attention maps are not the slope of the score ({said:.3g} where {slope:.3g} was "
    "measured), so that maps weighted by them would be wrong. " + REMEDY
)


@dataclass(frozen=True)
class Measured:
    """One direction: how the score moves along it by a step, what the gradients say, and how exact either can be."""

    moved: Callable[[float], float]  # the sum of all scores, a step away
    slope: float  # by the gradients
    size: float  # of the terms that it is a sum of
    noise: float  # of a score

    def agrees(self, slope: float, step: float) -> bool:
        """Whether a slope that was measured by this step is that of the gradients."""
        return abs(slope - self.slope) <= TOLERANCE * self.size + self.noise / step


def require_slopes(maps: Record, score_B: Tensor, changed: Changed, shared: bool = False) -> tuple[int, str]:
    """Refuse gradients that are not the slope of ``score_B``; how many passes that took, and what is left to say.

    shared: the scores are of one row, run once.
    """
    rows = slice(0, 1 if shared else None)
    said = [
        # Head by head, and directions drawn anew each time: maps of long inputs fill the memory by themselves.
        sum(
            float((gradient_QK.double() * map_QK.double() * direction_QK).sum())
            for gradient_HQK, map_HQK, direction_HQK in zip(
                site.attention_grad_BHQK,
                site.attention_BHQK,
                _direction(site.attention_BHQK[rows], number).expand(site.attention_BHQK.shape),
                strict=True,
            )
            for gradient_QK, map_QK, direction_QK in zip(gradient_HQK, map_HQK, direction_HQK, strict=True)
        )
        for number, site in enumerate(maps.sites)
        if site.attention_grad_BHQK is not None
    ]
    noise = noise_of(torch.finfo(maps.logits.dtype).eps, maps.logits)

    def moved(step: float) -> float:
        def rewrite(layer: int, first: int, attention_BHQK: Tensor) -> Tensor:
            whole_BHQK = maps.sites[layer].attention_BHQK[rows]
            direction = _direction(whole_BHQK, layer)[:, first : first + attention_BHQK.shape[1]]
            return attention_BHQK * (1 + step * direction).to(attention_BHQK.dtype)

        return float(changed(rewrite).double().sum())

    return require_measured(Measured(moved, sum(said), sum(map(abs, said)), noise), score_B)


def require_measured(measured: Measured, score_B: Tensor) -> tuple[int, str]:
    """The same of a change of the maps that someone else makes."""
    passes, doubt, slope = _held(measured, score_B)
    if slope is None:
        return passes, doubt
    raise CaptureError(NO_SLOPE.format(said=measured.slope, slope=slope))


def require_scaled_slopes(
    said: Mapping[int, float], logits: Tensor, score_B: Tensor, changed: Callable[[dict[int, float]], Tensor]
) -> tuple[int, str]:
    """As :func:`require_slopes`, along a change of each attention's size: ``said`` by its number, Σ A ∘ ∂s/∂A.

    changed: (B,) scores with every attention's result times a number.
    """
    generator = torch.Generator().manual_seed(0)
    by = {n: float(torch.rand((), generator=generator) + 0.5) * (1 if n % 2 else -1) for n in sorted(said)}
    terms = [slope * by[number] for number, slope in said.items()]

    def moved(step: float) -> float:
        return float(changed({n: 1 + step * direction for n, direction in by.items()}).double().sum())

    noise = noise_of(torch.finfo(logits.dtype).eps, logits)
    return require_measured(Measured(moved, sum(terms), sum(map(abs, terms)), noise), score_B)


def require_input_slopes(
    inputs: Tensor, gradient: Tensor, logits: Tensor, score_B: Tensor, step: float, changed: Callable[[Tensor], Tensor]
) -> tuple[int, str]:
    """Refuse input gradients that are not the slope of ``score_B``; how many passes that took, what is left to say.

    step: of the model's rounding. changed: (B,) scores with other numbers in place of ``inputs``.
    """
    numbers = inputs.detach().double()
    generator = torch.Generator().manual_seed(0)
    # Of either sign, since many models normalise what they read: they do not hear a change of scale.
    direction = torch.randn(numbers.shape, generator=generator, dtype=torch.float64).to(numbers.device) * numbers.abs()
    terms = gradient.double() * direction

    def moved(step: float) -> float:
        return float(changed((numbers + step * direction).to(inputs.dtype)).double().sum())

    measured = Measured(moved, float(terms.sum()), float(terms.square().sum().sqrt()), noise_of(step, logits))
    passes, doubt, slope = _held(measured, score_B)
    if slope is None:
        return passes, doubt
    raise NotOffered(
        f"the gradient at the input is not the slope of the score ({measured.slope:.3g} where {slope:.3g} was "
        f"measured), so that scores made of it would be wrong. {REMEDY}"
    )


def noise_of(step: float, logits: Tensor) -> float:
    return NOISE * step * (float(logits.detach().abs().max()) + 1) * len(logits) ** 0.5


def _held(measured: Measured, score_B: Tensor) -> tuple[int, str, float | None]:
    """How many passes it took, what is left to say, and the slope that was measured, where it is another."""

    if measured.agrees((measured.moved(STEPS[0]) - float(score_B.double().sum())) / STEPS[0], STEPS[0]):
        return 1, "", None
    slopes: list[float] = []
    for step in STEPS:  # a bend of the model, or one of its choices, may lie within one step, not within all
        slopes.append((measured.moved(step) - measured.moved(-step)) / (2 * step))
        if measured.agrees(slopes[-1], step):
            return 1 + 2 * len(slopes), "", None
    passes = 1 + 2 * len(slopes)
    if max(slopes) - min(slopes) > UNSTEADY * max(map(abs, slopes)) + measured.noise / min(STEPS):
        return passes, JUMPS, None
    return passes, "", slopes[0]


def require_reached(maps: Record, score_B: Tensor, changed: Changed, lost: Collection[int]) -> int:
    """Refuse maps without a path to the score that change it all the same; how many passes that took.

    lost: numbers of the sites of ``maps`` whose gradient autograd does not know. A map that nobody reads has none.
    """

    def rewrite(layer: int, first: int, attention_BHQK: Tensor) -> Tensor:
        return attention_BHQK * 0.5 if layer in lost else attention_BHQK

    paths = [maps.sites[i].path for i in sorted(lost)]
    return _unmoved(changed(rewrite), score_B, paths, lambda: changed(lambda layer, first, attention: attention))


def require_scaled_reached(
    paths: Sequence[str], score_B: Tensor, changed: Callable[[dict[int, float]], Tensor], lost: Collection[int]
) -> int:
    """The same, with each attention's result in place of its map."""
    return _unmoved(changed(dict.fromkeys(lost, 0.5)), score_B, paths, lambda: changed({}))


def _unmoved(changed_B: Tensor, score_B: Tensor, lost: Sequence[str], unchanged: Callable[[], Tensor]) -> int:
    if torch.equal(changed_B, score_B):
        return 1
    # Torch's own kernel, which was recorded, and attention written out, which is changed, are rounded differently.
    if torch.equal(changed_B, unchanged()):
        return 2
    paths = ", ".join(dict.fromkeys(path or "the model itself" for path in lost))
    raise CaptureError(
        f"the attention of {paths} reaches the score, and autograd knows no way from there, so that its gradient would "
        f"be recorded as zero. {REMEDY}"
    )


def _direction(like: Tensor, seed: int) -> Tensor:
    """Random numbers of one sign, so that a change does not average out over a large map."""
    generator = torch.Generator().manual_seed(seed)
    sign = 1 if torch.rand((), generator=generator) < 0.5 else -1
    return sign * (torch.rand(like.shape, generator=generator) + 0.5).to(like.device)
