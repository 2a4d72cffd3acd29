"""What calling a model of image and text takes: its random draws put in order, and logits that it keeps to itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode


class SortedDraws(TorchFunctionMode):
    """Patches drawn at random come in order. ViLT shuffles them on every call; attention does not mind, units do."""

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        return out.sort(-1).values if func.__name__ == "multinomial" else out


@contextmanager
def heard(module: nn.Module) -> Iterator[list[Any]]:
    """The outputs of a part of the model, while inside."""
    outputs: list[Any] = []

    def listen(module: nn.Module, args: Any, output: Any) -> None:
        outputs.append(output)

    handle = module.register_forward_hook(listen)
    try:
        yield outputs
    finally:
        handle.remove()
