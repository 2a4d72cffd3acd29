"""Weights drawn anew, part by part, on a copy of a model."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from whyformer.errors import NotOffered, one_of

BY = ("block", "module")
NUMBERED = re.compile(r"^(.*?\.\d+)(\.|$)")


@dataclass(frozen=True)
class Part:
    """Parameters that are drawn together."""

    name: str
    parameters: tuple[str, ...]


def copied(model: nn.Module) -> nn.Module:
    """A copy to be spoilt; the user's model is never touched."""
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            raise NotOffered(f"{name} is quantised: its weights cannot be drawn anew. Load the model in float32.")
    return copy.deepcopy(model)


def parts_of(model: nn.Module, forward: Callable[[nn.Module], Any], by: str = "block") -> list[Part]:
    """All parameters, from the output down to the input: in the reverse order of the modules' calls.

    ``by``: "block", everything inside one numbered block (``layer.3``) together, or "module", each module with
    parameters of its own. Modules that hold parameters beside other modules (CLS and position tokens) count too;
    those that were never called come last.
    """
    one_of("by", by, BY)
    order: list[str] = []
    names = {id(m): name for name, m in model.named_modules()}
    handles = [
        module.register_forward_hook(lambda m, *_: order.append(names[id(m)]))
        for module in model.modules()
        if module._parameters
    ]
    try:
        with torch.no_grad():
            forward(model)
    finally:
        for handle in handles:
            handle.remove()
    last_call = {name: i for i, name in enumerate(order)}
    groups: dict[str, list[str]] = {}
    rank: dict[str, int] = {}
    for name, _ in model.named_parameters():  # shared parameters are named once
        module = name.rpartition(".")[0]
        match = NUMBERED.match(module) if by == "block" else None
        part = match.group(1) if match else module or "the model itself"
        groups.setdefault(part, []).append(name)
        rank[part] = max(rank.get(part, -1), last_call.get(module, -1))
    ordered = sorted(groups, key=lambda part: -rank[part])
    return [Part(part, tuple(groups[part])) for part in ordered]


@torch.no_grad()
def redraw(model: nn.Module, part: Part, seed: int) -> None:
    """Normal numbers with each parameter's own mean and spread: nothing that was learned but these two is left."""
    generator = torch.Generator().manual_seed(seed)
    parameters = dict(model.named_parameters())
    for name in part.parameters:
        old = parameters[name]
        values = old.float().cpu()
        mean = values.mean()
        spread = values.std() if values.numel() > 1 else values.abs().mean()
        drawn = mean + spread * torch.randn(values.shape, generator=generator)
        table = model.get_submodule(name.rpartition(".")[0])
        if isinstance(table, nn.Embedding) and table.padding_idx is not None:
            drawn[table.padding_idx] = values[table.padding_idx]
        old.copy_(drawn.to(old))
