"""Weights that are elsewhere: accelerate leaves them on the meta device, and a hook brings them for each pass."""

from __future__ import annotations

import torch
from torch import nn

from whyformer.errors import NotOffered


def offloaded(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Weights of a module by name, its parts' left out, that are not here."""
    return [(name, p) for name, p in module._parameters.items() if p is not None and p.is_meta]


def require_loaded(model: nn.Module) -> None:
    """Refuse a model with weights on the meta device that no hook brings."""
    brought: tuple[str, ...] = ()  # paths whose hook places everything below
    for path, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        if getattr(hook, "place_submodules", False):
            brought += (f"{path}." if path else "",)
        missing = offloaded(module)
        hooked = hook is not None or module._forward_pre_hooks or "forward" in module.__dict__
        if missing and not hooked and not path.startswith(brought):
            name = f"{path}.{missing[0][0]}" if path else missing[0][0]
            raise NotOffered(
                f"{name} is on the meta device, which holds shapes and no numbers, and no hook loads it before a pass: "
                "there is nothing to explain yet. Load the weights, e.g. with from_pretrained(…) or "
                "model.load_state_dict(state, assign=True)."
            )


def execution_device(model: nn.Module) -> torch.device:
    """Where a model runs whose first weight is on the meta device: as its other weights, or its hooks, say."""
    for parameter in model.parameters():
        if not parameter.is_meta:
            return parameter.device
    for module in model.modules():
        device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return torch.device(device)
    return torch.device("cpu")
