"""Prune heads: curves of accuracy by order of importance, and learned gates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from whyformer import parameters
from whyformer.capture.roles import Gate
from whyformer.errors import BadInput, UnknownName, not_allowed, shown
from whyformer.evidence import interval, share_interval
from whyformer.heads import importance_kinds as kinds
from whyformer.heads.importance import HeadImportance
from whyformer.loan.backwards import refuse_without_gradients
from whyformer.results.codec import Float32, Float64, Int64
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.results.types import Cost
from whyformer.run import Run
from whyformer.run.session import passing_through
from whyformer.shapes import Array
from whyformer.views.head_views import gates_view, pruning_view
from whyformer.views.view import view_of

Metric = Callable[[Tensor, Tensor], Tensor]  # logits (B, C), labels (B,) -> (B,)

METRICS = ("accuracy", "loss", "agreement")
SHARES = ("accuracy", "agreement")  # of inputs: eight of eight right are no proof of 100 %
ORDERS = "'random', a HeadImportance, LearnedGates, an array (layers × heads), or a list of (layer, head) pairs"
PAIRS = parameters.domain_of(Sequence[tuple[parameters.Place, parameters.Place] | list[parameters.Place]])


@dataclass(frozen=True, eq=False)
class PruningCurve(Result):
    """A metric against the number of heads kept, from all to none, with 95 % confidence intervals over the inputs.

    Intervals of accuracy and agreement are Wilson's: they have a width even where all of a few inputs are right.

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
    order: tuple[tuple[int, int], ...]  # (layer, head), the first taken away first
    name: str  # what made the order
    heads: int  # of the whole model
    cost: Cost = field(default_factory=Cost)
    warnings: tuple[str, ...] = ()
    model: str = ""

    @property
    def area(self) -> float:
        """Mean of the metric over the share of heads kept: a single value to compare orders."""
        order = np.argsort(self.kept)
        return float(np.diff(self.kept[order] / self.heads) @ (self.values[order][1:] + self.values[order][:-1]) / 2)

    @property
    def title(self) -> str:
        """Model, metric and order of the heads, on one line."""
        return f"{self.model}: {self.metric} against heads kept ({self.name})"

    def to_frame(self) -> DataFrame:
        """Return one row per point."""
        return dataframe({"kept": self.kept, self.metric: self.values, "low": self.low, "high": self.high})


@parameters.checked
def pruning_curve(
    model: Any,
    inputs: Any,
    labels: Any = None,
    *,
    processor: Any = None,
    tokenizer: Any = None,
    order: Any = "random",
    metric: Annotated[str, parameters.OneOf(*METRICS)] | Metric = "accuracy",
    points: Annotated[int, parameters.Limits(2)] | None = None,
    attention_at: Mapping[str, str] | None = None,
    batch_size: parameters.BatchSize | None = None,
    seed: parameters.Seed = 0,
    progress: bool | None = None,
) -> PruningCurve:
    """Remove heads, the least important first, and compute the metric after each step.

    order: a ``HeadImportance``, ``LearnedGates`` or (L, H) array (lowest score first), a list of (layer, head) in the
    order of removal, or "random" (seeded).
    metric: "accuracy", "loss" or "agreement" (same prediction as the whole model; needs no labels), or a function of
    (logits, labels) that returns one value per input.
    points: the number of points of the curve, all heads and none included; every number of heads by default, 21 points
    from 48 heads on.

    Misleads when: the order was computed on the test inputs: use other inputs for the curve.
    """
    if labels is None and metric != "agreement":
        raise BadInput('labels are needed, one per input, or metric="agreement".')
    options: dict[str, Any] = {"processor": processor, "attention_at": attention_at, "batch_size": batch_size}
    with passing_through(model, inputs, progress=progress, **options) as session:
        known = None if labels is None else kinds.checked_labels(labels, session.size)
        removed, name = removal_order(order, session.heads, seed)
        total = len(removed)
        wanted = points if points is not None else (total + 1 if total < 48 else 21)
        steps = sorted({round(x) for x in np.linspace(0, total, min(wanted, total + 1))})  # heads taken away
        gates = [kinds.open_gates(session) for _ in steps]
        for step, gates_LH in zip(steps, gates, strict=True):
            for at in removed[:step]:
                gates_LH[at] = 0
        samples = session.gather(lambda run, rows: _values(run, rows, gates, known, metric), label="pruning")
        low, high = interval(samples, seed) if metric not in SHARES else share_interval(samples.mean(0), len(samples))
        return PruningCurve(
            kept=np.array([total - n for n in steps]),
            values=samples.mean(0),
            low=low,
            high=high,
            samples=samples,
            metric=metric if isinstance(metric, str) else getattr(metric, "__name__", "metric"),
            order=tuple(removed),
            name=name,
            heads=total,
            cost=session.cost(),
            warnings=session.warnings,
            model=type(session.model).__name__,
        )


def removal_order(order: Any, heads: list[tuple[int, int]], seed: int) -> tuple[list[tuple[int, int]], str]:
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
    if pairs is parameters.NOT_ALLOWED:
        raise not_allowed("order", order, ORDERS, owner="pruning_curve")
    pairs = [tuple(pair) for pair in pairs]
    if sorted(pairs) != sorted(heads):
        raise BadInput(f"the order must name each of the model's {len(heads)} heads once, as (layer, head).")
    return pairs, "given order"


@torch.no_grad()
def _values(run: Run, rows: list[int], gates: list[Tensor], labels: list[Any] | None, metric: str | Metric) -> Tensor:
    """(b, P) the metric of each input at each point, the first of which is the whole model."""
    logits = [kinds.gated(run, range(run.batch.size), table).float() for table in gates]
    if metric == "agreement":
        label_B = kinds.prediction_of(logits[0])
    else:
        assert labels is not None
        label_B = kinds.label_indices([labels[row] for row in rows], logits[0], run)
    return torch.stack([_measured(logits_BC, label_B, metric) for logits_BC in logits], 1)


def _measured(logits_BC: Tensor, label_B: Tensor, metric: str | Metric) -> Tensor:
    """(b,) one metric of one batch."""
    if callable(metric):
        values = metric(logits_BC, label_B)
        if not isinstance(values, Tensor) or values.shape != (len(logits_BC),):
            raise BadInput(f"metric returned {shown(values)}: it must return a tensor with one value per input.")
        return values
    return (
        kinds.loss_of(logits_BC, label_B) if metric == "loss" else (kinds.prediction_of(logits_BC) == label_B).float()
    )


# Learned gates: which heads can be closed together, found by training one hard-concrete gate per head.
#
# Louizos, Welling & Kingma 2018 (arXiv:1712.01312); on heads: Voita et al. 2019 (arXiv:1905.09418). The model is
# frozen; only the L·H numbers log a are trained.

BETA, GAMMA, ZETA = 0.33, -0.1, 1.1  # temperature, and the stretch that lets a gate be exactly 0 or 1


def sampled_gates(log_a: Tensor, uniform: Tensor) -> Tensor:
    """A draw of the gates: clip(σ((log u - log(1-u) + log a)/β)·(ζ-γ) + γ, 0, 1)."""
    noise = uniform.log() - (-uniform).log1p()
    return (((noise + log_a) / BETA).sigmoid() * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def final_gates(log_a: Tensor) -> Tensor:
    """The gates after training, without noise and without temperature: clip(σ(log a)·(ζ-γ) + γ, 0, 1)."""
    return (log_a.sigmoid() * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def open_probability(log_a: Tensor) -> Tensor:
    """P(gate > 0) = σ(log a - β·log(-γ/ζ)); its sum is the expected number of open heads, the L0 penalty."""
    return (log_a - BETA * math.log(-GAMMA / ZETA)).sigmoid()


@dataclass(frozen=True, eq=False)
class LearnedGates(Result):
    """Gates of heads after training. ``scores`` (log a) order the heads: pass it as ``order=`` of a pruning curve."""

    what: ClassVar[str] = "learned gates"
    axes: ClassVar[Mapping[str, str]] = {"gates": "LH", "scores": "LH", "open": "LH"}

    gates: Float32  # (L, H), exactly 0 where a head was closed
    scores: Float32  # (L, H) log a
    open: Float32  # (L, H) probability of being open
    history: dict[str, list[float]]  # loss and expected number of open heads, step by step
    penalty: float
    heads: int
    options: dict[str, Any] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
    name: str = "learned gates"

    @property
    def kept(self) -> int:
        """The number of heads with an open gate."""
        return int((np.nan_to_num(self.gates) > 0).sum())

    def to_frame(self) -> DataFrame:
        """Return one row per head."""
        return dataframe(kinds.rows_of(gate=self.gates, score=self.scores, open=self.open))


@parameters.checked
def learn_gates(
    model: Any,
    inputs: Any,
    labels: Any,
    *,
    processor: Any = None,
    tokenizer: Any = None,
    penalty: parameters.Weight = 0.02,
    steps: parameters.Count = 200,
    lr: parameters.Rate = 0.1,
    start: float = 2.0,
    attention_at: Mapping[str, str] | None = None,
    batch_size: parameters.BatchSize | None = None,
    seed: parameters.Seed = 0,
    progress: bool | None = None,
) -> LearnedGates:
    """Train one gate per head to close as many heads as the task allows: loss + penalty · Σ_h P(gate_h open).

    penalty: the cost of an open head, in units of the loss: the larger, the fewer heads stay open.
    steps, lr: Adam on log a, on batches drawn from the inputs. start: initial log a (2: nearly open).

    Misleads when: used as the importance of single heads: gates are learned together, and of two redundant heads an
    arbitrary one (by the seed) stays open.
    """
    opening: dict[str, Any] = {"processor": processor, "attention_at": attention_at, "batch_size": batch_size}
    with passing_through(model, inputs, progress=progress, **opening) as session:
        refuse_without_gradients(session.model, "learn_gates")
        known = kinds.checked_labels(labels, session.size)
        log_a = torch.full_like(kinds.open_gates(session), float(start)).requires_grad_()
        exists = torch.zeros_like(log_a, dtype=torch.bool)
        for at in session.heads:
            exists[at] = True
        optimizer = torch.optim.Adam([log_a], lr=lr)
        generator = torch.Generator().manual_seed(seed)
        history: dict[str, list[float]] = {"loss": [], "open": []}
        rows: list[int] = []
        for _ in session.track(range(steps), "learning gates"):
            if len(rows) < min(session.step, session.size):  # a new pass over the inputs
                rows = torch.randperm(session.size, generator=generator).tolist()
            batch, rows = rows[: session.step], rows[session.step :]
            uniform = torch.rand(log_a.shape, generator=generator).clamp(1e-6, 1 - 1e-6).to(log_a.device)
            run = session.run(batch)
            with torch.enable_grad():
                gates = sampled_gates(log_a, uniform)
                with Gate(run.batch.size, session.names, session.study.batch_axes, gates=gates):
                    logits = run.output.logits(run.batch)
                label_B = kinds.label_indices([known[row] for row in batch], logits.detach(), run)
                loss = kinds.loss_of(logits, label_B).mean()
                still_open = open_probability(log_a)[exists].sum()
                (gradient,) = torch.autograd.grad(loss + penalty * still_open, log_a)
            log_a.grad = gradient
            optimizer.step()
            session.forwards += len(batch)
            session.backwards += len(batch)
            history["loss"].append(float(loss.detach()))
            history["open"].append(float(still_open.detach()))

        def array(values: Tensor) -> Array:
            return values.detach().masked_fill(~exists, torch.nan).cpu().numpy()

        return LearnedGates(
            gates=array(final_gates(log_a)),
            scores=array(log_a),
            open=array(open_probability(log_a)),
            history=history,
            penalty=penalty,
            heads=len(session.heads),
            options={"steps": steps, "lr": lr, "start": start, "seed": seed, "batch_size": session.step},
            cost=session.cost(),
        )


view_of.register(PruningCurve, pruning_view)
view_of.register(LearnedGates, gates_view)
