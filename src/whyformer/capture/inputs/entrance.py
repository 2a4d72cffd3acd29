"""The vectors that enter a model's first block: look at them in a later pass, or put others in their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from whyformer.capture.inputs.leaves import BeforeAttention, Traced


@dataclass(frozen=True)
class Entrance:
    """Which of the tensors that depend on the input, counted as the model makes them, enters the first block."""

    number: int
    sequence_first: bool

    @classmethod
    def of(cls, trace: Traced, given: int) -> Entrance | None:
        """Found in a traced pass; None where it is the input itself. ``given``: leaves that no function made."""
        tokens = trace.tokens()
        number = next(i for i, t in enumerate(trace.seen.vectors) if t is tokens) - given
        first = tuple(tokens.shape[:2]) != trace.seen.shapes[0]
        return None if number < 0 else cls(number, first)


class Enter(TorchFunctionMode):
    """Runs inside ``with``: keeps the vectors (B, N, D) in ``seen``, or replaces them by ``vectors_BND``.

    The input has to be a leaf that requires a gradient, as it was in the traced pass: that is how its descendants are
    told from everything else.
    """

    def __init__(self, entrance: Entrance, batch: int, positions: int, vectors_BND: Tensor | None = None) -> None:
        super().__init__()
        self.entrance, self.vectors_BND = entrance, vectors_BND
        self.seen: Tensor | None = None
        self._before = BeforeAttention(batch, positions)

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        counted = len(self._before.vectors)
        out = self._before.__torch_function__(func, types, args, kwargs)
        if len(self._before.vectors) == counted or counted != self.entrance.number:
            return out
        self.seen = out.transpose(0, 1) if self.entrance.sequence_first else out
        self._before.over = True  # nothing after it is counted
        if self.vectors_BND is None:
            return out
        return self.vectors_BND.transpose(0, 1) if self.entrance.sequence_first else self.vectors_BND
