"""Pictures with a planted stamp, read by a ViT of six layers that the command trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

import whyformer as wf
from bench.frontier.contenders import Contenders, of_many_passes, of_one_pass
from bench.frontier.planted import PlantedSubject, Trained
from bench.frontier.subject import Array
from bench.known_truth.backgrounds import PATCH
from bench.known_truth.stamps import GRID


class Pictures(PlantedSubject):
    """The probability of the right class; absent patches have the picture's mean colour, as in our methods."""

    name = "image"
    masking: ClassVar[dict[str, Any]] = {"replace": "mean"}

    def __init__(self, trained: Trained) -> None:
        super().__init__(trained)
        self.made_of = f"{self.count} pictures of {GRID * GRID} patches; {trained.gate}"

    def scores_P(self, number: int, explanation: wf.Explanation) -> Array:
        scores: Array = explanation.scores[~np.array(explanation.units.special)]
        return scores

    def cause_P(self, number: int) -> Array:
        cause: Array = self.trained.planted.cause_IU[self.trained.rows[number]]
        return cause

    def values(self, number: int, present_VP: Array) -> Array:
        pixels = self.tensors([number])["pixel_values"]
        there = present_VP.reshape(-1, 1, GRID, GRID).repeat(PATCH, 2).repeat(PATCH, 3)
        shown = torch.where(torch.from_numpy(there), pixels, pixels.mean((2, 3), keepdim=True))
        return np.exp(self.log_probability(number, {"pixel_values": shown}))


def contenders() -> Contenders:
    return of_one_pass() | of_many_passes("mean") | {"vit_cx": ("vit_cx", {})}


def subject(count: int, seed: int, cache: Path | None, photos: Path | None = None, device: str = "cpu") -> Pictures:
    return Pictures(Trained("stamps", count, seed, cache, None if photos is None else str(photos), device))
