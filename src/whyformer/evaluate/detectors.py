"""A detector's queries under perturbation: does another one take the object over that the explained one gives up?

The value that is measured is that of the explained query, by its number. Where a second query names the same object
in its place, the value falls although the detector still sees the object; that is counted here, and said.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.run import Run

SAME = 0.5  # overlap (intersection over union) from which two boxes are of one object


def asks_each(modality: Modality, classes: int) -> bool:
    """Is each class asked for by itself (a sigmoid), as DETR's successors do? DETR has one class more: no object."""
    return modality.objects and classes == getattr(modality.model.config, "num_labels", None)


class Queries:
    """The queries of one image beside the one that is explained."""

    def __init__(self, run: Run, row: int) -> None:
        self.run, self.row = run, row
        one = run.batch.select([row])
        self.query, self.index = one.positions[0], run.targets[row].index
        output = self._call(one)
        self.box_4 = output.pred_boxes[0, self.query].float()
        self.had_Q = self._others(output)[0]

    @torch.no_grad()
    def _call(self, batch: Batch) -> Any:
        np.add.at(self.run.forwards_B, [self.row] * batch.size, 1)
        return self.run.modality.call(batch, **self.run.output.extra)

    def say(self, batch: Batch) -> list[Tensor]:
        """(M,) each: probability and logit of the class at the explained query, whether the query still names it, and
        whether another one does instead that did not before."""
        output = self._call(batch)
        logits_MC = output.logits[:, self.query].float()
        each = asks_each(self.run.modality, logits_MC.shape[1])
        probability = (logits_MC.sigmoid() if each else logits_MC.softmax(1))[:, self.index]
        stays = self._named(logits_MC) == self.index
        taken = (self._others(output) & ~self.had_Q).any(1) & ~stays
        return [probability, logits_MC[:, self.index], stays, taken]

    def _named(self, logits_XC: Tensor) -> Tensor:
        """(X,) the class that a query names: the most probable one; -1 where even that has less than one half."""
        best = logits_XC.argmax(-1)
        if not asks_each(self.run.modality, logits_XC.shape[-1]):
            return best
        return torch.where(logits_XC.amax(-1) > 0, best, -1)

    def _others(self, output: Any) -> Tensor:
        """(M, Q) other queries that name the same class at the same place."""
        naming = self._named(output.logits.float()) == self.index
        naming &= overlap(output.pred_boxes.float(), self.box_4) >= SAME
        naming[:, self.query] = False
        return naming


def overlap(boxes: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of boxes (…, 4) given by centre, width and height."""
    low, high = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    other_low, other_high = other[:2] - other[2:] / 2, other[:2] + other[2:] / 2
    sides = (torch.minimum(high, other_high) - torch.maximum(low, other_low)).clamp(min=0)
    inside = sides.prod(-1)
    union = boxes[..., 2:].prod(-1) + other[2:].prod() - inside
    return inside / union.clamp(min=1e-12)
