"""Which module is running right now, read from the call stack: nothing is hooked, nothing in the model changes."""

from __future__ import annotations

import sys

from torch import nn


def module_names(model: nn.Module) -> dict[int, str]:
    return {id(module): name for name, module in model.named_modules()}


def current_path(names: dict[int, str]) -> str:
    """Dotted path of the innermost running module of the model, "" for the model itself."""
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, nn.Module):
            name = names.get(id(caller))
            if name is not None:
                return name
        frame = frame.f_back  # type: ignore[assignment]
    return ""
