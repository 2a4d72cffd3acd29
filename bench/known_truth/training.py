"""Training a tiny model until it passes the gate, and keeping it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.known_truth.task import Inputs, Planted, Task, moved

BATCH, LOOK = 64, 100  # inputs per step; steps between looks at the gate
WARM_UP = 100
FLIPS, STAYS = 0.95, 0.01  # the gate: changed causes flip at least so much, changed distractors at most so much
COMFORT = (0.985, 0.003)  # training goes on until the gate is passed with room to spare


@dataclass(frozen=True)
class Gate:
    """Does the model use the cause, and nothing else?"""

    right: float  # share of inputs about which it says what the rule says
    flipped: dict[str, float]  # part of the cause -> share of outputs that its change flips
    disturbed: float  # share of outputs that other distractors flip
    inputs: int

    def passed(self, flips: float = FLIPS, stays: float = STAYS) -> bool:
        return min(self.flipped.values()) >= flips and self.disturbed <= stays

    def __str__(self) -> str:
        parts = ", ".join(f"{part} {share:.1%}" for part, share in self.flipped.items())
        verdict = "passed" if self.passed() else "NOT PASSED"
        return f"right {self.right:.1%}; flips: {parts}; distractors {self.disturbed:.2%}; {verdict}"


@torch.no_grad()
def says(task: Task, model: nn.Module, inputs: Inputs, device: str) -> Tensor:
    """(I,) the class with the highest score, in pieces that fit the cache of a small machine."""
    pieces = zip(*(values.split(256) for values in inputs.values()), strict=True)
    parts = (moved(dict(zip(inputs, piece, strict=True)), device) for piece in pieces)
    return torch.cat([task.logits(model, part).argmax(-1).cpu() for part in parts])


def gate(task: Task, model: nn.Module, planted: Planted, device: str) -> Gate:
    before = says(task, model, planted.inputs, device)
    flipped = {}
    for part, change in planted.changes.items():
        after = says(task, model, change.inputs, device)
        flipped[part] = float((after != before).numpy()[change.possible_I].mean())
    redrawn = says(task, model, planted.rest_redrawn, device)
    right = (before == torch.from_numpy(planted.asked_I)).float().mean()
    return Gate(float(right), flipped, float((redrawn != before).float().mean()), len(before))


def trained(task: Task, seed: int, device: str, steps: int | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """A model that passes the gate on inputs of its own, or what there is after all steps; and how it went."""
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 1])
    model = task.model().to(device).train()
    steps = steps or task.steps
    looked_at = task.held_out(np.random.default_rng([seed, 2]), 1000 if steps >= LOOK else 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.rate, weight_decay=0.01)
    warm_up = min(WARM_UP, steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min(1, (i + 1) / warm_up) * (0.55 + 0.45 * math.cos(math.pi * i / steps))
    )
    step, comfortable = 0, 0
    for step in range(1, steps + 1):
        inputs, labels = task.batch(rng, BATCH)
        loss = task.loss(model, moved(inputs, device), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % LOOK == 0:
            model.eval()
            comfortable = comfortable + 1 if gate(task, model, looked_at, device).passed(*COMFORT) else 0
            model.train()
            if comfortable == 2:
                break
    return model.eval(), {"steps": step, "loss": float(loss.detach())}


def recipe_of(task: Task, seed: int) -> str:
    """Layers, steps and rate, and the size of what the model begins with and of what it is first shown."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        begins = sum(float(p.detach().double().abs().sum()) for p in task.model().parameters())
    inputs, labels = task.batch(np.random.default_rng([seed, 1]), 8)
    shown = sum(float(values.double().sum()) for values in (*inputs.values(), labels))
    return f"{task.name} {task.steps} {task.rate} {begins:.6g} {shown:.6g}"


def kept(
    task: Task, seed: int, device: str, cache: Path | None, kind: str, steps: int | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """The model from the cache, or trained and put there. ``kind`` tells apart what must not be mixed up.

    One that was trained in another way (layers, steps, rate, and whatever else begins a model) is trained again: its
    weights would fit, and nothing would tell.
    """
    path = None if cache is None else cache / f"{task.name}-{kind}-{seed}.pt"
    recipe = recipe_of(task, seed)
    if path is not None and path.exists():
        saved = torch.load(path, map_location=device, weights_only=True)
        if saved.get("recipe") == recipe:
            model = task.model().to(device).eval()
            model.load_state_dict(saved["weights"])
            return model, saved["training"]
    model, training = trained(task, seed, device, steps)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"weights": model.state_dict(), "training": training, "recipe": recipe}, path)
    return model, training
