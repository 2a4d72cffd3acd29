"""Does a map point at the cause? AUROC, mass and pointing per input, for every method."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import rankdata
from torch import nn

import whyformer as wf
from bench.known_truth.task import Array, Inputs, Planted, Task, moved
from bench.known_truth.training import says
from whyformer.errors import WhyformerError

# Beside the defaults of every method: readings that are as well known as the default.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grad_sam(reduce=key)": ("grad_sam", {"reduce": "key"}),
    "raw_attention(layers=mean)": ("raw_attention", {"layers": "mean"}),
    "value_norms(weight=gradient)": ("value_norms", {"weight": "gradient"}),
}
COST_CLASSES = ("1 forward", "forward + backward", "many passes")
WIDE = {"decompx", "value_zeroing"}  # their few passes do the work of one per unit: counted as many


def auroc(size_U: Array, cause_U: Array) -> float:
    """How often a unit of the cause is above a distractor; ties count half."""
    ranks, inside = rankdata(size_U), int(cause_U.sum())
    return float((ranks[cause_U].sum() - inside * (inside + 1) / 2) / (inside * (len(size_U) - inside)))


def mass(size_U: Array, cause_U: Array) -> float:
    """The share of the scores that lies on the cause; a map of zeros says as much as a flat one."""
    total = float(size_U.sum())
    return float(size_U[cause_U].sum()) / total if total > 0 else float(cause_U.mean())


def pointing(size_U: Array, cause_U: Array) -> float:
    """Is the highest unit in the cause? Among several equally high ones chance decides."""
    return float(cause_U[size_U == size_U.max()].mean())


def measures(scores_U: Array, cause_U: Array, counted_U: Array, signed: bool) -> dict[str, float]:
    """All three of the size of the scores, over the units that are counted; of signed scores AUROC as they are, too."""
    scores, cause = scores_U[counted_U].astype(float), cause_U[counted_U]
    size = np.abs(scores)
    found = {"auroc": auroc(size, cause), "mass": mass(size, cause), "pointing": pointing(size, cause)}
    return found | ({"auroc_signed": auroc(scores, cause)} if signed else {})


@dataclass(frozen=True)
class Found:
    """What one method found on one task: a number per input and measure, or why there is none."""

    method: str
    values: dict[str, list[float]] = field(default_factory=dict)
    forwards: float = float("nan")
    backwards: float = float("nan")
    seconds: float = float("nan")
    not_offered: str = ""

    @property
    def cost_class(self) -> str:
        """One forward; up to two forwards with up to two backwards; or more."""
        if self.method in WIDE:
            return COST_CLASSES[2]
        if self.forwards <= 1 and self.backwards == 0:
            return COST_CLASSES[0]
        return COST_CLASSES[1] if self.forwards <= 2 and 0 < self.backwards <= 2 else COST_CLASSES[2]


def contenders() -> dict[str, tuple[str, dict[str, Any]]]:
    return dict(sorted(({name: (name, {}) for name in wf.list_methods()} | VARIANTS).items()))


def selected(task: Task, model: nn.Module, planted: Planted, device: str) -> Array:
    """Inputs that the model gets right, and whose output the cause decides: only those have a known truth."""
    before = says(task, model, planted.inputs, device)
    fine: Array = before.numpy() == planted.asked_I
    for change in planted.changes.values():
        flipped = (says(task, model, change.inputs, device) != before).numpy()
        fine &= flipped | ~change.possible_I
    return np.flatnonzero(fine & (says(task, model, planted.rest_redrawn, device) == before).numpy())


def judged(
    task: Task, model: nn.Module, planted: Planted, rows: Array, name: str, device: str, batch_size: int = 25
) -> Found:
    """One method on the chosen inputs."""
    method, options = contenders()[name]
    inputs: Inputs = moved({k: v[rows] for k, v in planted.inputs.items()}, device)
    started = time.perf_counter()
    asked = [int(a) for a in planted.asked_I[rows]]
    explain = partial(wf.explain, model, processor=task.processor(), method=method, progress=False, **options)
    try:
        if method == "random":  # one seed gives all inputs of a length the same scores, which is no floor
            explained = [
                explain({k: v[i : i + 1] for k, v in inputs.items()}, target=[asked[i]], seed=i)[0]
                for i in range(len(rows))
            ]
        else:
            explained = explain(inputs, target=asked, batch_size=batch_size)
    except WhyformerError as error:
        return Found(name, not_offered=f"{type(error).__name__}: {error}")
    seconds = (time.perf_counter() - started) / len(rows)
    signed = wf.list_methods()[method].signed
    values: dict[str, list[float]] = {}
    ordinary = [e.scores[~np.array(e.units.special)] for e in explained]
    for row, scores in zip(rows, ordinary, strict=True):
        units = slice(len(scores))
        for key, value in measures(
            scores, planted.cause_IU[row, units], planted.counted_IU[row, units], signed
        ).items():
            values.setdefault(key, []).append(value)
    costs = [e.cost for e in explained]
    forwards, backwards = (float(np.mean([getattr(c, k) for c in costs])) for k in ("forwards", "backwards"))
    return Found(name, values, forwards, backwards, seconds)
