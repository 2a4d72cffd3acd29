"""What a torch function is called, as function modes see it."""

from __future__ import annotations

from typing import Any


def name_of(func: Any) -> str | None:
    """Its name; None for attributes such as x.shape and x.device: only x.T and x.mT make tensors that matter."""
    name: str = func.__name__
    if name != "__get__":
        return name
    attribute = getattr(func, "__self__", func).__name__
    return attribute if attribute in {"T", "mT"} else None
