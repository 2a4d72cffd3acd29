"""Learned gates: which heads can be closed together, found by training one hard-concrete gate per head.

Louizos, Welling & Kingma 2018 (arXiv:1712.01312); on heads: Voita et al. 2019 (arXiv:1905.09418). The model is frozen;
only the L·H numbers log a are trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from whyformer.borrow import refuse_without_gradients
from whyformer.capture.roles import Gate
from whyformer.codec import Float32
from whyformer.errors import BadInput
from whyformer.heads.importance_kinds import checked_labels, gated, label_indices, loss_of, open_gates
from whyformer.heads.pruning import METRICS, PruningCurve, measured
from whyformer.interop import dataframe
from whyformer.intervals import interval
from whyformer.parameters import BatchSize, Count, Filled, OneOf, Rate, Seed, Weight, checked
from whyformer.result import Result
from whyformer.run import Run
from whyformer.session import Session, passing_through
from whyformer.types import Cost
from whyformer.views.heads import gates_view
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]

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
    """What training left of the heads. ``scores`` (log a) order them: use it as ``order=`` of a pruning curve."""

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
        """How many heads the gates leave open."""
        return int((np.nan_to_num(self.gates) > 0).sum())

    def to_frame(self) -> pd.DataFrame:
        """One row per head."""
        heads = [tuple(map(int, at)) for at in np.argwhere(~np.isnan(self.gates))]
        names = {"gate": self.gates, "score": self.scores, "open": self.open}
        rows = [{"layer": i, "head": j} | {name: float(table[i, j]) for name, table in names.items()} for i, j in heads]
        return dataframe(rows)


view_of.register(LearnedGates, gates_view)


@checked
def learn_gates(
    model: Any,
    inputs: Any,
    labels: Any,
    *,
    processor: Any = None,
    tokenizer: Any = None,
    penalty: Weight = 0.02,
    steps: Count = 200,
    lr: Rate = 0.1,
    start: float = 2.0,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
) -> LearnedGates:
    """Train one gate per head to close as many heads as the task allows: loss + penalty · Σ_h P(gate_h open).

    penalty: what an open head costs, in units of the loss: the larger, the fewer heads stay.
    steps, lr: Adam on log a, on batches drawn from the inputs. start: log a at the beginning (2: nearly open).

    Misleads when: read as importance of a head on its own; gates are learned together, and of two heads that do the
    same job it is arbitrary (the seed) which one stays.
    """
    _check(penalty, steps, lr)
    opened = passing_through(
        model, inputs, processor=processor, attention_at=attention_at, batch_size=batch_size, progress=progress
    )
    with opened as session:
        refuse_without_gradients(session.model, "learn_gates")
        known = checked_labels(labels, session.size)
        options = {"steps": steps, "lr": lr, "start": start, "seed": seed, "batch_size": session.step}
        log_a = torch.full_like(open_gates(session), float(start))
        return _trained(session, known, log_a, penalty, options)


@checked
def gate_curve(
    model: Any,
    inputs: Any,
    labels: Any,
    *,
    test: tuple[Any, Any],
    processor: Any = None,
    tokenizer: Any = None,
    penalties: Annotated[Sequence[Weight], Filled()] = (0.005, 0.01, 0.02, 0.05, 0.1),
    steps: Count = 200,
    lr: Rate = 0.1,
    start: float = 2.0,
    metric: Annotated[str, OneOf(*METRICS)] = "accuracy",
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
) -> PruningCurve:
    """Train gates on ``inputs`` at several penalties and measure each on ``test`` = (inputs, labels): the metric
    against the heads kept. The point of the whole model is included; penalties that keep the same heads coincide.
    """
    trained = [
        learn_gates(
            model,
            inputs,
            labels,
            processor=processor,
            penalty=penalty,
            steps=steps,
            lr=lr,
            start=start,
            attention_at=attention_at,
            batch_size=batch_size,
            seed=seed,
            progress=progress,
        )
        for penalty in penalties
    ]
    opened = passing_through(
        model, test[0], processor=processor, attention_at=attention_at, batch_size=batch_size, progress=progress
    )
    with opened as session:
        known = checked_labels(test[1], session.size)
        whole = open_gates(session)
        tables = [whole] + [torch.nan_to_num(torch.from_numpy(result.gates)).to(whole) for result in trained]
        samples = session.gather(lambda run, rows: _measured(run, rows, tables, known, metric), label="learned gates")
        open_heads = np.array([len(session.heads), *(result.kept for result in trained)])
        order = np.argsort(-open_heads, kind="stable")
        low, high = interval(samples, seed)
        return PruningCurve(
            kept=open_heads[order],
            values=samples.mean(0)[order],
            low=low[order],
            high=high[order],
            samples=samples[:, order],
            metric=metric,
            order=(),
            name="learned gates",
            heads=len(session.heads),
            cost=session.cost(),
            warnings=session.warnings,
            model=type(session.model).__name__,
        )


def _check(penalty: float, steps: int, lr: float) -> None:
    if not isinstance(steps, int) or steps < 1:
        raise BadInput(f"steps={steps!r}: a whole number of at least 1.")
    if penalty < 0 or lr <= 0:
        raise BadInput(f"penalty={penalty}, lr={lr}: the penalty is at least 0 and the learning rate above 0.")


def _trained(
    session: Session, labels: list[Any], log_a: Tensor, penalty: float, options: dict[str, Any]
) -> LearnedGates:
    exists = torch.zeros_like(log_a, dtype=torch.bool)
    for at in session.heads:
        exists[at] = True
    log_a = log_a.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([log_a], lr=options["lr"])
    generator = torch.Generator().manual_seed(options["seed"])
    history: dict[str, list[float]] = {"loss": [], "open": []}
    rows: list[int] = []
    for _ in session.track(range(options["steps"]), "learning gates"):
        if len(rows) < min(session.step, session.size):  # a new pass over the inputs
            rows = torch.randperm(session.size, generator=generator).tolist()
        batch, rows = rows[: session.step], rows[session.step :]
        uniform = torch.rand(log_a.shape, generator=generator).clamp(1e-6, 1 - 1e-6).to(log_a.device)
        run = session.run(batch)
        with torch.enable_grad():
            role = Gate(run.batch.size, session.names, session.study.batch_axes, gates=sampled_gates(log_a, uniform))
            with role:
                logits = run.output.logits(run.batch)
            label_B = label_indices([labels[row] for row in batch], logits.detach(), run)
            loss = loss_of(logits, label_B).mean()
            still_open = open_probability(log_a)[exists].sum()
            (gradient,) = torch.autograd.grad(loss + penalty * still_open, log_a)
        log_a.grad = gradient
        optimizer.step()
        session.forwards += len(batch)
        session.backwards += len(batch)
        history["loss"].append(float(loss.detach()))
        history["open"].append(float(still_open.detach()))
    missing = ~exists

    def array(values: Tensor) -> Array:
        return values.detach().masked_fill(missing, torch.nan).cpu().numpy()

    return LearnedGates(
        gates=array(final_gates(log_a)),
        scores=array(log_a),
        open=array(open_probability(log_a)),
        history=history,
        penalty=penalty,
        heads=len(session.heads),
        options=options,
        cost=session.cost(),
    )


@torch.no_grad()
def _measured(run: Run, rows: list[int], tables: list[Tensor], labels: list[Any], metric: str) -> Tensor:
    logits = [gated(run, range(run.batch.size), table).float() for table in tables]
    return torch.stack([measured(run, at, logits[0], rows, labels, metric) for at in logits], 1)
