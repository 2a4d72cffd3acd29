"""Finding: what a check says, in words and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

LEVELS = ("ok", "note", "warning")


@dataclass(frozen=True)
class Finding:
    """One thing that a check found. ``warning``: doubt the explanation; ``note``: know this; ``ok``: looked, fine."""

    level: str
    check: str
    title: str
    text: str
    numbers: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"level {self.level!r} is none of {', '.join(LEVELS)}")

    def __str__(self) -> str:
        return f"{self.title}: {self.text}"
