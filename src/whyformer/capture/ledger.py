"""The ledger: every softmax the model made, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SoftmaxCall:
    """One softmax (or marked attention map). ``claimed``: its key axis was contracted with values."""

    path: str
    shape: tuple[int, ...]
    axis: int
    layout: str | None = None
    claimed: bool = False
    contracted_elsewhere: bool = False

    @property
    def looks_like_attention(self) -> bool:
        """Three or more axes and a normalised axis longer than one; class probabilities and routers have fewer."""
        return len(self.shape) >= 3 and self.shape[self.axis] > 1

    def __str__(self) -> str:
        where = self.path or "the model itself"
        fate = "contracted over another axis" if self.contracted_elsewhere else "never multiplied with values"
        return f"{where}: softmax over axis {self.axis} of {self.shape}, {fate}"
