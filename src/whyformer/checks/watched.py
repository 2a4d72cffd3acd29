"""What the checks of attention watch: the probabilities of the answer; of a similarity, how much of it is left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from whyformer.checks.distances import probabilities
from whyformer.engines.perturbation.game import game_of_scores
from whyformer.engines.perturbation.variants import Replaced
from whyformer.errors import NotOffered
from whyformer.evaluate.detectors import asks_each
from whyformer.run import Run

NOTHING = 1e-6  # a change of similarity that is none

IN_SHARES = (
    "The model compares two inputs: |Δp| is the change of their similarity as a share of what their units add to it."
)


def said_of(run: Run) -> Callable[[Tensor], Tensor]:
    """(V, C) logits → (V, C) probabilities.

    A similarity (CLIP, two texts) is no probability: scaled by a hundred, its sigmoid is 1 whatever happens. What is
    left of it counts instead, (s - s∅) / (s(x) - s∅), with s∅ that of both inputs with every unit replaced: 1 as it is,
    0 where nothing of the inputs is left. It is handed on as two columns, 1 - share and share. So is the probability
    of the class where a detector asks for each class by itself.
    """
    if asks_each(run.modality, run.logits.shape[1]):
        return partial(_of_class, run.targets[0].index)
    if not run.modality.compares:
        return probabilities
    units = [i for i, special in enumerate(run.units[0].special) if not special]
    whole = float(run.value_B[0])
    everything_away = Replaced(run, 0, [units], run.modality.replacements[0])
    empty = float(game_of_scores(run, 0, everything_away, 1).scores(np.array([[False]]))[0])
    if abs(whole - empty) < NOTHING:
        raise NotOffered("the similarity is the same without any unit: there is nothing that attention could change.")

    def shares(logits_VC: Tensor) -> Tensor:
        share = (logits_VC.float() - empty) / (whole - empty)
        return torch.cat([1 - share, share], 1)

    return shares


def _of_class(index: int, logits_VC: Tensor) -> Tensor:
    yes = logits_VC.float()[:, [index]].sigmoid()
    return torch.cat([1 - yes, yes], 1)


def column_of(run: Run) -> int:
    """Where the explained class stands in what is said."""
    alone = run.logits.shape[1] == 1 or run.modality.compares or asks_each(run.modality, run.logits.shape[1])
    return 1 if alone else run.targets[0].index


def require_decision(run: Run) -> None:
    if run.modality.compares:
        raise NotOffered(
            "the model compares two inputs: a similarity is no decision, so none can flip. jain_wallace and "
            "wiegreffe_pinter measure how far it moves."
        )
