"""Maximized: the input that a unit likes best, and how it was reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from whyformer.errors import UnknownName

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Maximized:
    """A picture, or tokens."""

    unit: str
    value: float  # of the unit, for the image as shown, or for the tokens as listed
    history: tuple[float, ...]  # of the unit, step by step (of the changed image; of the soft embeddings)
    image: Array | None = None  # (height, width, 3) bytes
    tokens: tuple[str, ...] = ()
    checkerboard: float = float("nan")  # difference across patch borders ÷ inside patches; 1: no grid to be seen
    start: float = float("nan")  # the unit's value before the first step
    options: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    model: str = ""

    def plot(self, path: str | Path | None = None) -> Any:
        """The result beside the course of the objective; written to ``path`` if given. Returns the figure."""
        from whyformer.views.concepts import maximized_picture

        return maximized_picture(self, path)

    def save(self, path: str | Path) -> Path:
        """Write the picture of ``plot`` (.png, .svg, .pdf)."""
        path = Path(path)
        if path.suffix not in {".png", ".svg", ".pdf"}:
            raise UnknownName("file type", path.suffix or str(path), (".png", ".svg", ".pdf"))
        self.plot(path)
        return path
