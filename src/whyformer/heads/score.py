"""The number that heads are judged by: the target's logit, or the loss at the true label."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer.errors import BadInput
from whyformer.outputs import resolve_targets, scalar_of
from whyformer.run import Run

SCALARS = ("logit", "loss")


def checked_labels(labels: Any, size: int) -> list[Any]:
    """Labels as a list, one per input; arrays and tensors are taken apart."""
    listed = labels.tolist() if callable(getattr(labels, "tolist", None)) else labels
    if isinstance(listed, (str, bytes)) or not isinstance(listed, Iterable):
        listed = [listed]
    found = list(listed)
    if len(found) != size:
        raise BadInput(f"{len(found)} labels for {size} inputs: give one label per input.")
    return found


def label_indices(labels: list[Any], logits_BC: Tensor, run: Run) -> Tensor:
    """(B,) class indices of labels given as names or numbers; for a single logit, 0 or 1."""
    if logits_BC.shape[1] == 1:
        if any(label not in (0, 1) for label in labels):
            raise BadInput(f"the model has one logit, so labels are 0 or 1; got {sorted(set(map(str, labels)))[:5]}.")
        return torch.tensor([int(label) for label in labels], device=logits_BC.device)
    targets = resolve_targets(list(labels), logits_BC, run.head.labels(), run.head.positions, run.head.token_id)
    return torch.tensor([t.index for t in targets], device=logits_BC.device)


def loss_of(logits_BC: Tensor, label_B: Tensor) -> Tensor:
    """(B,) cross-entropy; of a single logit, the binary one."""
    logits_BC = logits_BC.float()
    if logits_BC.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(logits_BC[:, 0], label_B.float(), reduction="none")
    return F.cross_entropy(logits_BC, label_B, reduction="none")


def prediction_of(logits_BC: Tensor) -> Tensor:
    """(B,) predicted class; of a single logit, whether it is positive."""
    if logits_BC.shape[1] == 1:
        return (logits_BC[:, 0] > 0).long()
    return logits_BC.argmax(1)


def score_of(run: Run, logits_BC: Tensor, rows: list[int] | None, labels: list[Any] | None) -> Tensor:
    """(n,) loss at ``labels`` where they are given, else the explained logit.

    ``rows`` are the run's inputs that the logits belong to (all of them by default); ``labels`` go with the rows.
    """
    if labels is not None:
        return loss_of(logits_BC, label_indices(labels, logits_BC.detach(), run))
    if rows is None:
        return run.scalars(logits_BC)
    return scalar_of(logits_BC.float(), [run.targets[row] for row in rows], run.scalar)
