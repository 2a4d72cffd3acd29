"""Layers that forget what they computed, and compute it again in backward."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch.utils.checkpoint
from torch import nn


def recomputable(model: nn.Module) -> list[nn.Module]:
    """Layers of transformers models that can do so."""
    return [m for m in model.modules() if any(c.__name__ == "GradientCheckpointingLayer" for c in type(m).__mro__)]


@contextlib.contextmanager
def recomputing(layers: list[nn.Module]) -> Iterator[None]:
    """These layers are computed again in backward, one at a time, so that only what lies between them is stored.

    They do so in training alone; it is the layer itself that is told so, none of its parts.
    """
    func = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False, preserve_rng_state=False)
    told = {"gradient_checkpointing": True, "training": True, "_gradient_checkpointing_func": func}
    before = [(layer, {name: layer.__dict__.get(name, told) for name in told}) for layer in layers]
    try:
        for layer in layers:
            layer.__dict__.update(told)
        yield
    finally:
        for layer, values in before:
            for name, value in values.items():
                if value is told:  # it had none of its own
                    layer.__dict__.pop(name, None)
                else:
                    layer.__dict__[name] = value
