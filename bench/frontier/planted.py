"""Models of known truth that the command trains: the cause of every answer is known, so pointing is measured, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import whyformer as wf
from bench.frontier.subject import Array, Subject
from bench.known_truth.job import task_of
from bench.known_truth.scoring import selected
from bench.known_truth.task import Inputs, Planted, moved
from bench.known_truth.training import gate, kept

SEEDS = 3  # of models: the first that passes the gate is taken; that of the inputs is the command's
LOOKED_AT = 300  # inputs to see that the model uses the cause, and to take from


class Trained:
    """A model that uses the cause and nothing else, and inputs of which each one shows it."""

    def __init__(
        self, name: str, count: int, seed: int, cache: Path | None, photos: str | None = None, device: str = "cpu"
    ) -> None:
        self.seed, self.task = seed, task_of(name, photos)
        kind = "photos" if photos and self.task.modality == "image" else "plain"
        self.planted: Planted = self.task.held_out(np.random.default_rng([seed, 3]), max(LOOKED_AT, count))
        for number in range(SEEDS):
            self.model: nn.Module = kept(self.task, number, device, cache, kind)[0]
            self.gate = gate(self.task, self.model, self.planted, device)
            if self.gate.passed():
                break
            print(f"model {number} of {name!r} does not do what was planted: {self.gate}", flush=True)
        else:
            raise SystemExit(f"no model of {name!r} does what was planted")
        self.rows: Array = selected(self.task, self.model, self.planted, device)[:count]

    @property
    def device(self) -> str:
        return str(next(self.model.parameters()).device)


class PlantedSubject(Subject):
    """The target is the right class."""

    def __init__(self, trained: Trained) -> None:
        super().__init__(wf.Explainer(trained.model, trained.task.processor()), len(trained.rows))
        self.trained = trained

    def tensors(self, rows: Sequence[int]) -> Inputs:
        return {k: v[self.trained.rows[list(rows)]] for k, v in self.trained.planted.inputs.items()}

    def inputs(self, rows: Sequence[int]) -> Any:
        return self.tensors(rows)

    def further(self, count: int) -> Any:
        return self.trained.task.held_out(np.random.default_rng([self.trained.seed, 5]), count).inputs

    def asked(self, number: int) -> int:
        return int(self.trained.planted.asked_I[self.trained.rows[number]])

    def targets(self, rows: Sequence[int]) -> list[int]:
        return [self.asked(i) for i in rows]

    @torch.no_grad()
    def log_probability(self, number: int, inputs: Inputs) -> Array:
        """(V,) of the right class, for variants of an input."""
        logits = self.trained.task.logits(self.trained.model, moved(inputs, self.trained.device))
        value: Array = logits.log_softmax(-1)[:, self.asked(number)].cpu().numpy()
        return value
