"""Move the word embeddings of a running model by what ``delta(ids)`` says, at every lookup in its table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whyformer.capture.inputs.embedding import operands


class ShiftEmbedding(TorchFunctionMode):
    """Entered before an explanation starts: the method itself sees the moved embeddings.

    The shift is a function of the ids, so that every pass, variant and batch of an explanation moves alike.
    """

    def __init__(self, table: nn.Embedding, delta: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.delta = table.weight, delta

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__ != "embedding":
            return out
        ids, weight = operands(args, kwargs)
        return out + self.delta(ids).to(out) if weight is self.weight else out
