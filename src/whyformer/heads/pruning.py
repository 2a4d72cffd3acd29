"""Pruning curves: heads taken away one after the other, and what the model can still do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from whyformer.codec import Float64, Int64
from whyformer.errors import BadInput, UnknownName, not_allowed, shown
from whyformer.heads.importance import HeadImportance
from whyformer.heads.importance_kinds import checked_labels, gated, label_indices, loss_of, open_gates, prediction_of
from whyformer.interop import dataframe
from whyformer.intervals import interval
from whyformer.parameters import NOT_ALLOWED, BatchSize, Limits, OneOf, Place, Seed, checked, domain_of
from whyformer.result import Result
from whyformer.run import Run
from whyformer.session import Session, passing_through
from whyformer.types import Cost
from whyformer.views.heads import pruning_view
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]
Metric = Callable[[Tensor, Tensor], Tensor]  # logits (B, C), labels (B,) -> (B,)
Order = Any  # HeadImportance, (L, H) scores, (layer, head) pairs, or "random"

METRICS = ("accuracy", "loss", "agreement")
ORDERS = "'random', a HeadImportance, LearnedGates, an array (layers × heads), or a list of (layer, head) pairs"
PAIRS = domain_of(Sequence[tuple[Place, Place] | list[Place]])


@dataclass(frozen=True, eq=False)
class PruningCurve(Result):
    """A metric against the number of heads kept, from all of them to none, with 95 % limits over the inputs.

    Its pictures take ``beside``, other curves to draw with it.
    """

    what: ClassVar[str] = "pruning curve"
    axes: ClassVar[Mapping[str, str]] = {"kept": "P", "values": "P", "low": "P", "high": "P", "samples": "SP"}

    kept: Int64  # (P,)
    values: Float64  # (P,)
    low: Float64
    high: Float64
    samples: Float64  # (S, P) one row per input
    metric: str
    order: tuple[tuple[int, int], ...]  # (layer, head), the first taken away first; () for learned gates
    name: str  # what made the order
    heads: int  # of the whole model
    cost: Cost = field(default_factory=Cost)
    warnings: tuple[str, ...] = ()
    model: str = ""

    @property
    def area(self) -> float:
        """Mean height of the curve over the share of heads kept: one number to compare orders by."""
        order = np.argsort(self.kept)
        return float(np.trapezoid(self.values[order], self.kept[order] / self.heads))

    @property
    def title(self) -> str:
        """Model, metric and order of the heads, on one line."""
        return f"{self.model}: {self.metric} against heads kept ({self.name})"

    def to_frame(self) -> pd.DataFrame:
        """One row per point."""
        return dataframe({"kept": self.kept, self.metric: self.values, "low": self.low, "high": self.high})


view_of.register(PruningCurve, pruning_view)


@checked
def pruning_curve(
    model: Any,
    inputs: Any,
    labels: Any = None,
    *,
    processor: Any = None,
    tokenizer: Any = None,
    order: Order = "random",
    metric: Annotated[str, OneOf(*METRICS)] | Metric = "accuracy",
    points: Annotated[int, Limits(2)] | None = None,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
) -> PruningCurve:
    """Take heads away, the least important first, and measure after each step.

    order: a ``HeadImportance``, ``LearnedGates`` or (L, H) array (lowest score goes first), a list of (layer, head) in
    the order they go, or "random" (seeded).
    metric: "accuracy", "loss" or "agreement" (same prediction as the whole model; needs no labels), or a function of
    (logits, labels) that gives one value per input.
    points: how many numbers of heads are tried, all and none included; every one by default, 21 from 48 heads on.

    Misleads when: the order was found on the inputs it is tested on; use others.
    """
    if labels is None and metric != "agreement":
        raise BadInput('labels are needed, one per input, or metric="agreement".')
    opened = passing_through(
        model, inputs, processor=processor, attention_at=attention_at, batch_size=batch_size, progress=progress
    )
    with opened as session:
        known = None if labels is None else checked_labels(labels, session.size)
        removed, name = removal_order(order, session.heads, seed)
        steps = _steps(len(removed), points)
        gates = _gates(session, removed, steps)
        samples = session.gather(lambda run, rows: _values(run, rows, gates, known, metric), label="pruning")
        low, high = interval(samples, seed)
        return PruningCurve(
            kept=np.array([len(removed) - n for n in steps]),
            values=samples.mean(0),
            low=low,
            high=high,
            samples=samples,
            metric=metric if isinstance(metric, str) else getattr(metric, "__name__", "metric"),
            order=tuple(removed),
            name=name,
            heads=len(removed),
            cost=session.cost(),
            warnings=session.warnings,
            model=type(session.model).__name__,
        )


def removal_order(order: Order, heads: list[tuple[int, int]], seed: int) -> tuple[list[tuple[int, int]], str]:
    """All heads in the order in which they go, and a name for it."""
    if isinstance(order, str):
        if order != "random":
            raise UnknownName("order", order, ("random", "a HeadImportance", "an (L, H) array", "(layer, head) pairs"))
        shuffled = np.random.default_rng(seed).permutation(len(heads))
        return [heads[i] for i in shuffled], f"random, seed {seed}"
    scores: Any = getattr(order, "scores", order if isinstance(order, np.ndarray) else None)
    if hasattr(scores, "shape"):
        size = (max(layer for layer, _ in heads) + 1, max(head for _, head in heads) + 1)
        if tuple(scores.shape) != size:
            raise BadInput(f"the order has scores of shape {tuple(scores.shape)}, the model has {size} layers × heads.")
        name = f"{order.kind}, least first" if isinstance(order, HeadImportance) else "scores, least first"
        return sorted(heads, key=lambda at: (float(scores[at]), at)), getattr(order, "name", name)
    pairs = PAIRS.take(order)
    if pairs is NOT_ALLOWED:
        raise not_allowed("order", order, ORDERS, owner="pruning_curve")
    pairs = [tuple(pair) for pair in pairs]
    if sorted(pairs) != sorted(heads):
        raise BadInput(f"the order must name each of the model's {len(heads)} heads once, as (layer, head).")
    return pairs, "given order"


def _steps(total: int, points: int | None) -> list[int]:
    """Numbers of heads taken away."""
    wanted = points if points is not None else (total + 1 if total < 48 else 21)
    return sorted({round(x) for x in np.linspace(0, total, min(wanted, total + 1))})


def _gates(session: Session, removed: list[tuple[int, int]], steps: list[int]) -> list[Tensor]:
    tables = []
    for step in steps:
        gates = open_gates(session)
        for layer, head in removed[:step]:
            gates[layer, head] = 0
        tables.append(gates)
    return tables


@torch.no_grad()
def _values(run: Run, rows: list[int], gates: list[Tensor], labels: list[Any] | None, metric: str | Metric) -> Tensor:
    """(b, P) the metric of each input at each point."""
    everyone = range(run.batch.size)
    logits = [gated(run, everyone, table).float() for table in gates]
    return torch.stack([measured(run, at, logits[0], rows, labels, metric) for at in logits], 1)


def measured(
    run: Run, logits_BC: Tensor, whole_BC: Tensor, rows: list[int], labels: list[Any] | None, metric: str | Metric
) -> Tensor:
    """(b,) one metric of one batch; ``whole_BC`` are the logits of the whole model."""
    if metric == "agreement":
        return (prediction_of(logits_BC) == prediction_of(whole_BC)).float()
    assert labels is not None
    label_B = label_indices([labels[row] for row in rows], whole_BC, run)
    if callable(metric):
        values = metric(logits_BC, label_B)
        if not isinstance(values, Tensor) or values.shape != (len(logits_BC),):
            raise BadInput(f"metric gave {shown(values)}: a tensor with one value per input is needed.")
        return values
    if metric == "loss":
        return loss_of(logits_BC, label_B)
    return (prediction_of(logits_BC) == label_B).float()
