"""Swayed: how the score moves when torch's own attentions are swayed (capture/sway.py), and two questions in one pass.

Are the recorded gradients the slope of the score? And does the model say the same while nobody looks? The pass that
measures a slope is one in which nobody looks. If what it says is what was said under inspection, as closely as of two
passes is asked, and the score moved as the gradients say, both are answered. Wherever one of them is in doubt, each is
asked by itself, as of other models.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor, nn

from whyformer.capture.sway import Direction, Sway
from whyformer.loan.borrow import known_about, modules_of
from whyformer.results.types import Record
from whyformer.study.interference import (
    MIXES,
    STEPS,
    TOLERANCE,
    Measured,
    Part,
    halved,
    noise_of,
    rounding,
    rounding_step,
    same,
)

SHARE = 0.25  # of what two passes may differ by: so much a step may move a score
SMALLEST = 2.0**-17  # a step that float32 still tells from none
HOPE = 4  # times the tolerance: what roundings may amount to before it is not worth a pass


class OffSway(Exception):
    """The model does not attend by the kernels that were recorded when nobody looks."""


def may_sway(model: nn.Module, maps: Record) -> bool:
    """Numbers are fine enough, and no kernel of torch's that holds a whole layer may take the attentions' place."""
    if not maps.sites or rounding_step(model, maps.logits) > torch.finfo(torch.float32).eps:
        return False
    whole = (nn.TransformerEncoderLayer, nn.MultiheadAttention)
    return not (torch.backends.mha.get_fastpath_enabled() and any(isinstance(m, whole) for m in modules_of(model)))


class Swayed:
    """The attentions of a record, a direction for each, and the scores of passes in which they are swayed.

    part: logits of some rows of the batch, by themselves. score: (B,) explained values of logits.
    """

    def __init__(self, maps: Record, part: Part, score: Callable[[Tensor], Tensor]) -> None:
        self.maps, self.part, self.score = maps, part, score
        shapes = [site.attention_BHQK.shape for site in maps.sites]
        self.directions = [Direction.of(shape, i, maps.logits.device) for i, shape in enumerate(shapes)]
        slopes = [d.slopes(site) for d, site in zip(self.directions, maps.sites, strict=True)]
        self.slopes_BL = torch.stack(slopes, 1)
        self.passes = 0

    def logits(self, step: float, rows: slice) -> Tensor:
        sway = Sway([direction.part(rows) for direction in self.directions], step)
        with torch.no_grad(), sway:
            logits = self.part(rows)
        if not sway.fits:
            raise OffSway
        return logits

    @cached_property
    def measured(self) -> Measured:
        """For slopes.py: the same question as with maps that are rewritten."""

        def moved(step: float) -> float:
            self.passes += 1
            return float(self.score(self.logits(step, slice(len(self.maps.logits)))).double().sum())

        slopes_L = self.slopes_BL.sum(0)
        noise = noise_of(torch.finfo(self.maps.logits.dtype).eps, self.maps.logits)
        return Measured(moved, float(slopes_L.sum()), float(slopes_L.abs().sum()), noise)

    def says_both(self, model: nn.Module, halves: bool) -> bool:
        """Whether one pass shows that the model says the same by itself and that gradients are slopes.

        As strict as either question by itself: every logit stays within the rounding that a plain pass is allowed, the
        step's own effect included, and the slope within what its first measurement is allowed. halves: find out as well
        whether rows change each other's answers.
        """
        looked, measured = self.maps.logits.detach().float(), self.measured
        largest = float(self.slopes_BL.abs().sum(1).max())
        step = min(STEPS[0], SHARE * rounding(model, looked) / largest) if largest else 0.0
        if step < SMALLEST or measured.noise / step > HOPE * TOLERANCE * measured.size:
            return False
        self.passes += 1
        halves = halves and len(looked) > 1 and MIXES not in known_about(model)

        def part(rows: slice) -> Tensor:
            return self.logits(step, rows)

        said = halved(part, len(looked)) if halves else part(slice(len(looked)))
        if said.shape != looked.shape or not same(model, said.detach().float(), looked):
            return False
        with torch.no_grad():
            moved = float((self.score(said).double() - self.score(self.maps.logits).double()).sum())
        if not measured.agrees(moved / step, STEPS[0]):
            return False
        if halves:
            known_about(model)[MIXES] = False
        return True
