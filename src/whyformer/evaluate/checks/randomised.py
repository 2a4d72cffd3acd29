"""Weights drawn anew, part by part, inside the model itself, and put back."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.borrow import memory_of
from whyformer.errors import NotOffered, one_of

BY = ("block", "module")
NUMBERED = re.compile(r"^(.*?\.\d+)(\.|$)")


@dataclass(frozen=True)
class Part:
    """Parameters that are drawn together."""

    name: str
    parameters: tuple[str, ...]


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


class Redrawn:
    """Draws parts of a model anew, and puts them back: ``with Redrawn(model) as drawn: drawn.draw(part, seed=1)``.

    There is no second model. Of every tensor that is random at the moment the original is held, on the CPU: one part's
    where parts go one by one, all of them at the end of a cascade. At the end, also after an exception or Ctrl-C, every
    bit is what it was, and so is what is remembered about the model (study/once.py). Hold the model's lock meanwhile.
    """

    def __init__(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point():
                raise NotOffered(f"{name} is quantised: its weights cannot be drawn anew. Load the model in float32.")
            if parameter.is_meta:
                raise NotOffered(f"{name} is not in memory (offloaded): its weights cannot be drawn anew and put back.")
        self.model = model
        self._parameters = dict(model.named_parameters())
        self._originals: dict[str, Tensor] = {}

    def __enter__(self) -> Redrawn:
        self._facts = dict(memory_of(self.model).facts)
        return self

    def __exit__(self, *exc: object) -> None:
        self.restore()
        facts = memory_of(self.model).facts
        facts.clear()
        facts.update(self._facts)

    @property
    def held(self) -> int:
        """Bytes of original weights that are kept aside now."""
        return sum(t.numel() * t.element_size() for t in self._originals.values())

    def draw(self, part: Part, seed: int) -> None:
        """Normal numbers with each parameter's own mean and spread: nothing that was learned but these two is left.

        Drawn again, a part has nothing to do with what it was drawn as before.
        """
        generator = torch.Generator().manual_seed(seed)
        for name in part.parameters:
            parameter = self._parameters[name]
            if name not in self._originals:
                self._originals[name] = parameter.detach().to("cpu", copy=True)
            _write(parameter, self._drawn(name, generator))

    def _drawn(self, name: str, generator: torch.Generator) -> Tensor:
        values = self._originals[name].float()
        mean = values.mean()
        spread = values.std() if values.numel() > 1 else values.abs().mean()
        drawn = mean + spread * torch.randn(values.shape, generator=generator)
        table = self.model.get_submodule(name.rpartition(".")[0])
        if isinstance(table, nn.Embedding) and table.padding_idx is not None:
            drawn[table.padding_idx] = values[table.padding_idx]
        return drawn

    def restore(self) -> None:
        """Every changed tensor as it came; the last one first, in case two of them share their memory."""
        stopped: KeyboardInterrupt | None = None
        while self._originals:
            try:
                name = next(reversed(self._originals))
                _write(self._parameters[name], self._originals[name])
                del self._originals[name]
            except KeyboardInterrupt as interrupt:  # not before everything is back
                stopped = interrupt
        if stopped is not None:
            raise stopped


def _write(parameter: Tensor, values: Tensor) -> None:
    # Weights that were made in inference mode can be written in it only. Leaving that mode switches gradients on.
    with torch.inference_mode(parameter.is_inference()), torch.no_grad():
        parameter.copy_(values.to(parameter))
