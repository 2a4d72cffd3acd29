"""What is recorded: the model, the gradient of the explained score and the formula, from static inputs to one tensor.

Nothing on the way may ask the device for a number. What a plain run asks (is anything NaN, which class is predicted, is
anything padded) is computed on the device here, and looked at when everything has come back together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.intercept import module_names
from whyformer.capture.record import observe, record
from whyformer.capture.roles import Observe, Recorder
from whyformer.errors import NotOffered
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.registry import Method
from whyformer.run import Attribution, Run
from whyformer.study import Study, with_streams
from whyformer.targets import scalar_of
from whyformer.types import Record, Target

PREDICTED = -1  # in place of a class: the one that the model says


@dataclass(frozen=True)
class Question:
    """What is asked about inputs, whatever they are."""

    method: Method
    options: dict[str, Any]
    scalar: str
    keep_layers: bool
    seed: int

    @property
    def grad(self) -> bool:
        return "attention_gradients" in self.method.needs

    @property
    def key(self) -> tuple[Any, ...]:
        return self.method.name, repr(self.options), self.scalar, self.keep_layers


@dataclass
class Statics:
    """Tensors that a graph reads: they stay where they are, and are written to before each replay."""

    tensors: dict[str, Tensor]
    keep_BN: Tensor | None
    index_B: Tensor  # classes that are explained
    versus_B: Tensor | None  # and those that they are held against


@dataclass
class Computation:
    """One explanation of a batch, from its statics to one (B, …) row of numbers per input."""

    modality: Modality
    study: Study
    question: Question
    statics: Statics
    parts: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of the numbers: name -> shape without B
    told: dict[str, Any] = field(default_factory=dict)  # what the method says of itself, whatever the input

    def __call__(self) -> Tensor:
        question, statics = self.question, self.statics
        batch = Batch(statics.tensors, keep_BN=statics.keep_BN)
        how = {"scalar": question.scalar, "seed": question.seed, "keep_layers": question.keep_layers}
        run = Run(self.modality, batch, self.study, **how)  # type: ignore[arg-type]
        run.recorded = True
        role = (Recorder if question.grad else Observe)(
            batch.size, module_names(self.modality.model), self.study.batch_axes
        )
        kind = (question.grad, batch.size > 1)
        role.plan = self.study.plans.at(kind, self.study.torch_own)
        if isinstance(role, Recorder):
            maps = record(lambda: self._logits(run), role, lambda logits: self._scores(run, logits))
        else:
            maps = observe(lambda: self._logits(run), role)
        maps = with_streams(maps, self.study)
        nothing_B = torch.zeros(batch.size, device=statics.index_B.device)
        run.adopt(maps, question.grad, nothing_B if statics.keep_BN is None else None)
        attribution = question.method.run(run, **question.options)
        outcome = {
            "logits": maps.logits,
            "share": run.padding_share_B,
            "elsewhere": self._elsewhere(run, maps, nothing_B),
        }
        outcome |= self._numbers(attribution)
        self.parts = {name: tuple(tensor.shape[1:]) for name, tensor in outcome.items()}
        return torch.cat([tensor.detach().float().reshape(batch.size, -1) for tensor in outcome.values()], 1)

    def _logits(self, run: Run) -> Tensor:
        """As Output.logits, whose care for random numbers cannot be recorded: models that draw are not."""
        output, batch = run.output, replace(run.batch)
        raw = self.modality.call(batch, **output.extra)
        its_own = self.modality.logits(raw, batch, run.scalar)
        return output.row_per_input(raw, batch) if its_own is None else its_own

    def _scores(self, run: Run, logits_BC: Tensor) -> Tensor:
        """(B,) the explained values, differentiable."""
        best_B, statics = logits_BC.detach().argmax(1), self.statics
        anything = [Target(0, independent=run.output.independent)]

        def value(index_B: Tensor) -> Tensor:
            chosen_B1 = torch.where(index_B == PREDICTED, best_B, index_B)[:, None]
            return scalar_of(logits_BC, anything, run.reading, chosen_B1)

        if statics.versus_B is None:
            return value(statics.index_B)
        return value(statics.index_B) - value(statics.versus_B)

    @staticmethod
    def _elsewhere(run: Run, maps: Record, nothing_B: Tensor) -> Tensor:
        """(B,) 1 where a row has a gradient that is not among those that feed the head (see Run._require_readout)."""
        last, readout = maps.sites[-1], run.study.readout
        if last.attention_grad_BHQK is None or readout is None or readout.besides:
            return nothing_B
        rows = slice(last.first_query, last.first_query + last.attention_grad_BHQK.shape[2])
        unread_BQ = (run.keep_BN & (run.readout_BN == 0))[:, rows]
        return ((last.attention_grad_BHQK.abs().amax((1, 3)) > 0) & unread_BQ).any(1).float()

    def _numbers(self, attribution: Attribution) -> dict[str, Tensor]:
        if attribution.detail or attribution.warnings or attribution.checks or isinstance(attribution.matrix_BQK, dict):
            raise NotOffered(f"{self.question.method.name} says more than scores and maps here.")
        self.told = {"signed": attribution.signed, "used": attribution.used}
        named = {
            "scores": attribution.scores_BN,
            "matrix": attribution.matrix_BQK,
            "layers": attribution.layers_BLQK,
        }
        return {name: tensor for name, tensor in named.items() if isinstance(tensor, Tensor)}

    def read(self, numbers_BX: Tensor) -> dict[str, Tensor]:
        """The parts of the numbers, once they are on the host."""
        sizes = [torch.Size(shape).numel() for shape in self.parts.values()]
        parts = zip(self.parts.items(), numbers_BX.split(sizes, 1), strict=True)
        return {name: part.reshape(len(part), *shape) for (name, shape), part in parts}

    def attribution(self, parts: dict[str, Tensor]) -> Attribution:
        return Attribution(
            parts["scores"], matrix_BQK=parts.get("matrix"), layers_BLQK=parts.get("layers"), **self.told
        )
